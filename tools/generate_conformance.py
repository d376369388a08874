"""Generates ``docs/conformance.md``: what a kubelet asks of a device plugin, and the tests that show it.

    python tools/generate_conformance.py

The promises stand here; which test shows which comes from the markers at the tests::

    @pytest.mark.conformance(16, 17)
    @pytest.mark.field_failure("F6")

``tests/conformance/test_conformance_page.py`` fails when a promise has no test, a marker names something
that does not exist, or the page is not what this writes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "conformance.md"

SECTIONS: Mapping[str, Mapping[int, str]] = {
    "Registration": {
        1: "The plugin server answers before Register is sent: the kubelet dials back within that call.",
        2: "Register carries version `v1beta1`, the socket's bare name, the resource, and the options that "
        "GetDevicePluginOptions gives.",
        3: "GetDevicePluginOptions is answered while Register is still pending.",
        4: "A refusal is shown in the status, counted, and followed by another try; other resources do not "
        "notice.",
        5: "Where there is no kubelet.sock yet, devhost waits and registers when it appears (measured: "
        "within 0.3 s).",
        6: "A kubelet.sock on which nobody listens is tried again, ever more slowly.",
        7: "A Register that is never answered ends at a deadline of 15 s, above the kubelet's own 10 s, and "
        "leaves no task behind.",
        8: "The configuration refuses a resource name exactly when the kubelet would.",
        9: "Each resource has a server, a socket and a registration of its own, and lists only its devices.",
        10: "Socket names are short and distinct whatever the resource's name: within a kubelet's directory "
        "no path passes 107 bytes.",
        11: "A socket left by a devhost that died is removed at start; a live one, or another plugin's, is "
        "not touched.",
        12: "Sockets have mode 0600 and our owner from the moment they exist; the kubelet's directory is "
        "left to the kubelet to make.",
        13: "Register is sent with the authority `localhost`; calls with any authority are served.",
        14: "The channel of Register sends no HTTP/2 ping and is closed after the call.",
    },
    "Device lists": {
        15: "The first list after a stream opens is complete, and is never a placeholder.",
        16: "A burst of changes is one complete list; a stream sends four lists at once and then at most "
        "five a second; no change is no list.",
        17: "Health is spelt `Healthy` or `Unhealthy`, which the kubelet compares exactly.",
        18: "A device that falls ill and recovers moves allocatable down and up; capacity stays.",
        19: "A device that vanishes while a pod holds it stays listed as `Unhealthy`; any other leaves the "
        "list after two seconds as `Unhealthy`.",
        20: "No device is an empty list on an open stream.",
        21: "Ids are unique, at most 63 characters, and the same after a restart and in any order of "
        "discovery.",
        22: "A device that is found twice is listed once.",
        23: "Fifty thousand devices are served; what would pass the kubelet's limit of 4 MiB is refused with "
        "a reason and never sent.",
        24: "An unknown NUMA node is left out; a known one is listed once.",
        25: "A cancelled stream ends its task at once, and the next stream begins with the complete list.",
        26: "Two streams on one server both get every change.",
        27: "A reader that does not read delays no other resource, and then gets only the newest list.",
    },
    "Loss and return": {
        28: "A stream that the kubelet ends is followed by one registration on a new socket.",
        29: "A stream that is cut right after it opened, again and again, is answered with a back-off from 1 "
        "s to 30 s.",
        30: "After a kubelet restart every resource registers once, on a new socket (measured: within "
        "0.3 s).",
        31: "The same after a crash that leaves the old kubelet.sock behind.",
        32: "Without inotify the restart is found by looking, every 5 s.",
        33: "A socket of ours that somebody deletes is replaced, and its resource registers again.",
        34: "A directory that is removed and made anew is watched again.",
        35: "An event about the kubelet that a resource is registered with leads to nothing.",
        36: "Two kubelet restarts in a row end with one registration of each resource, at the last kubelet.",
        37: "The old stream has ended before the new Register is sent.",
        38: "No socket path is ever registered twice; after `already connected` the next try has another.",
        39: "A resource that cannot register tries alone; the others are registered once.",
        40: "SIGTERM ends the streams, unlinks our sockets and leaves kubelet.sock alone, within 5 s; the "
        "kubelet keeps the capacity.",
        41: "After SIGKILL the next start removes the stale sockets and registers; pods keep what they hold.",
        42: "In a rolling update the new instance has sockets of its own, the old one unlinks only its own, "
        "and all devices end allocatable; with a kubelet from 1.37 on they never cease to be.",
        43: "A backend that hangs loses its own devices only; a stalled event loop ends the process.",
    },
    "Calls for a pod": {
        44: "One container request gets one answer, with exactly the nodes, permissions, mounts, "
        "environment, annotations and CDI names of its devices.",
        45: "Several container requests get as many answers, in their order.",
        46: "An unknown or unhealthy id fails the call before anything is done for it.",
        47: "The same ids again get the same answer.",
        48: "A request without ids is an error and nothing else.",
        49: "A host path that is missing fails the call by name and makes its device `Unhealthy`; an answer "
        "never has a dead path.",
        50: "An Allocate that hangs ends with DEADLINE_EXCEEDED after 8 s; other calls are answered "
        "meanwhile.",
        51: "The answer for a device is the same after devhost restarts, because kubelets replay "
        "old answers.",
        52: "A CDI name in an answer stands in a valid file, written whole, before any list names its "
        "device, and stays there over a restart.",
        53: "A preference is a subset of what is free, has the devices it must have, is of the size asked "
        "for, the same each time, and on as few NUMA nodes as can be.",
        54: "A preference that cannot be met is the best there is, never an error.",
        55: "A call that the options do not ask for is never made by a kubelet, and answered all the same.",
        56: "PreStartContainer may be repeated, ends before the kubelet's 30 s, and a failure of it may be "
        "tried again.",
        57: "A hundred allocations at once each get their own devices.",
    },
    "Observability": {
        58: "Metrics tell registrations, failures, streams, the size of the last list and the time of "
        "Allocate; readiness wants a live stream for every resource.",
        59: "A clock that jumps, and a process that was stopped for a while, lead to no new registration.",
        60: "The podresources service tells who holds a device and when it is released; its throttling, its "
        "silence, wrong answers and its absence release nothing.",
    },
}
"""What each line promises, in sections. The numbers are names: tests and reports refer to them."""

OPEN: Mapping[int, str] = {}
"""Promises that are not kept yet, and what that means."""

FAILURES: Mapping[str, tuple[str, str]] = {
    "F1": (
        "Register is sent before the plugin serves, and times out.",
        "The server runs before the call is made.",
    ),
    "F2": (
        "The kubelet ends the stream; the plugin runs on and never registers again.",
        "The end of a stream is the loss of the registration.",
    ),
    "F3": (
        "A list handler does not notice that its stream is gone; tasks pile up.",
        "Each stream's task ends with its stream.",
    ),
    "F4": (
        "The watch is on a file, or is lost with its directory.",
        "The directory and its parent are watched, and looked at every 5 s besides.",
    ),
    "F5": ("No inotify instance is left.", "Looking every 5 s is enough."),
    "F6": (
        "The event of kubelet.sock's creation arrives after the registration and causes another.",
        'An event says only "look"; device, inode and change time of the socket decide.',
    ),
    "F7": (
        "Two registrations of one resource overlap, and the end of the old one cuts off the new one.",
        "The old stream ends first, each registration has a new path, and a loss is made good.",
    ),
    "F8": (
        "A plugin restarts in a tight loop.",
        "Every loss is followed by a back-off that doubles to 30 s.",
    ),
    "F9": (
        "Each failed try leaves a socket behind.",
        "A server unlinks its socket however it ends; what a killed process left is swept at the next start.",
    ),
    "F10": (
        "A refused registration makes the plugin exit or hang.",
        "It is tried for ever, and shown meanwhile.",
    ),
    "F11": ("A device list passes 4 MiB, and the resource is dead.", "The plan refuses the devices past it."),
    "F12": (
        "An Allocate that hangs stops the admission of every pod of the node.",
        "Allocate ends at a deadline of 8 s, off the event loop.",
    ),
    "F13": (
        "An error of a vendor's library fails pods for good.",
        "A preference is never an error; an Allocate names what is missing, and its device turns unhealthy "
        "so that no other pod gets it.",
    ),
    "F14": (
        "After a reboot, pods are admitted before the plugin runs, and fail.",
        "No plugin can prevent this, because the kubelet does not wait for plugins. What a plugin can do is "
        "be quick (see [performance.md](performance.md)) and have a high priority class, as the manifests in "
        "[deploy](../deploy/README.md) do; controllers make failed pods anew.",
    ),
    "F15": (
        "The first list is empty or all unhealthy while the plugin still looks, so pods are refused.",
        "A resource is registered when its backend has answered.",
    ),
    "F16": (
        "The kubelet restarts while the plugin is away, and the resource stands at zero.",
        "Registering is all it takes, and is done at every start.",
    ),
    "F17": (
        "The kubelet's root directory is moved, and the plugin looks for kubelet.sock there.",
        "The plugin directory does not move with it: it is fixed in the kubelet. devhost has one option for "
        "it, `--kubelet-dir`, with the kubelet's own value as default, and derives it from nothing. What "
        "does move is podresources: `--pod-resources` says where to.",
    ),
    "F18": ("A strict server or client refuses the authority that gRPC makes of a path.", "See line 13."),
    "F19": ("Two resources share one server, which cannot tell them apart.", "See line 9."),
    "F20": (
        "A resource that is renamed or removed stays on the node at its old count.",
        "An empty list is sent before the resource leaves, so the count is zero at once. The key itself "
        "stays: kubelets never remove it, an administrator may (`kubectl edit node --subresource=status`).",
    ),
    "F21": ("A device in use is dropped from the list.", "It stays, as `Unhealthy`, until it is released."),
    "F22": ("NUMA node -1 is sent as if it were one.", "Negative nodes are left out where devices come in."),
    "F23": (
        "The plugin may not write to the kubelet's directory, or mounts the socket file, which goes stale.",
        "The first ends with one line that says how to mend it; the manifests mount the directory.",
    ),
    "F24": (
        "A gRPC server that stops unlinks its path, even if the path is another's by then.",
        "No path is ever used by two servers.",
    ),
    "F25": (
        "A fork after gRPC has started, or a blocking read in the event loop, freezes the plugin.",
        "The host never forks, and a backend that needs a process starts a program anew; backends run on "
        "threads of their own, each call with a deadline.",
    ),
    "F26": (
        "A frozen plugin keeps its sockets open, and the kubelet notices nothing.",
        "A watchdog ends the process when its event loop has not answered for 20 s, with exit code 4 and "
        "every thread's stack in the log.",
    ),
}
"""What went wrong in the field, and why it does not here."""

CANNOT = frozenset({"F14", "F17"})
"""Failures without a test of their own: the sentence says why."""

INTRODUCTION = """\
# Conformance

What a kubelet asks of a device plugin, as sixty promises, each with the tests that show it; and below,
what has gone wrong with device plugins in the field, and why it does not go wrong here. Generated by
`make docs` from the markers at the tests.

The tests run devhost against the [simulator](simulator.md) over real sockets, in both of its profiles
(kubelets up to 1.36, and from 1.37 on), and are part of `make test`. Times in a promise are constants of
the code, or were measured on an idle machine; tests wait for effects and check orders, so that a busy
machine does not fail them.

    .venv/bin/pytest tests/conformance
"""


@dataclass(frozen=True, order=True)
class Shown:
    """A test and what its markers say it shows; ``line`` is where its first decorator stands."""

    file: str
    name: str
    line: int
    lines: tuple[int, ...] = ()
    failures: tuple[str, ...] = ()


def tests(root: Path = ROOT) -> list[Shown]:
    """Every test with one of the two markers, by file and place."""
    found: list[Shown] = []
    for pattern in ("tests/**/test_*.py", "plugins/*/tests/**/test_*.py"):
        for file in root.glob(pattern):
            found += _marked(file, str(file.relative_to(root)))
    return sorted(found, key=lambda test: (test.file, test.line))


def _marked(file: Path, name: str) -> Iterator[Shown]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        marks: dict[str, list[object]] = {"conformance": [], "field_failure": []}
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                kind = ast.unparse(decorator.func).removeprefix("pytest.mark.")
                if kind in marks:
                    marks[kind] += [ast.literal_eval(argument) for argument in decorator.args]
        if any(marks.values()):
            lines = tuple(int(str(line)) for line in marks["conformance"])
            yield Shown(name, node.name, node.lineno, lines, tuple(map(str, marks["field_failure"])))


def page(shown: list[Shown] | None = None) -> str:
    """The whole page."""
    shown = tests() if shown is None else shown
    lines = [INTRODUCTION]
    for title, promises in SECTIONS.items():
        lines += [f"## {title}", "", "| | promise | shown by |", "|---|---|---|"]
        for number, promise in promises.items():
            proof = [test for test in shown if number in test.lines]
            lines.append(f"| {number} | {promise} | {_proof(proof, OPEN.get(number, ''))} |")
        lines.append("")
    lines += ["## Failures seen in the field", ""]
    lines += ["| | what happened | why not here | shown by |", "|---|---|---|---|"]
    for name, (failure, answer) in FAILURES.items():
        proof = [test for test in shown if name in test.failures]
        lines.append(f"| {name} | {failure} | {answer} | {_proof(proof, '')} |")
    return "\n".join(lines) + "\n"


def _proof(shown: list[Shown], open_because: str) -> str:
    links = [f"[{test.name.removeprefix('test_').replace('_', ' ')}](../{test.file})" for test in shown]
    if open_because:
        links.append(f"**open**: {open_because}")
    return "<br>".join(links) or "-"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
