"""Generates ``docs/conformance.md``: promises to the kubelet, and the tests of each.

    python tools/generate_conformance.py

The promises are in this file. Markers at the tests assign tests to promises::

    @pytest.mark.conformance(16, 17)
    @pytest.mark.field_failure("F6")

``tests/conformance/test_conformance_page.py`` fails if a promise has no test, if a marker names a promise
that does not exist, or if the page is out of date.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "conformance.md"

SECTIONS: Mapping[str, Mapping[int, str]] = {
    "Registration": {
        1: "The plugin server answers before Register is sent, because the kubelet dials back within that "
        "call.",
        2: "Register has version `v1beta1`, the name of the socket without a directory, the resource, and "
        "the options that GetDevicePluginOptions returns.",
        3: "GetDevicePluginOptions is answered while Register is still pending.",
        4: "A refusal is shown in the status, counted, and followed by another try; other resources are not "
        "affected.",
        5: "If there is no kubelet.sock, devhost waits and registers when it appears (measured: within 0.3 "
        "s).",
        6: "A kubelet.sock on which no process listens is tried again with back-off.",
        7: "A Register without an answer ends at a deadline of 15 s, above the kubelet's own 10 s, and "
        "leaves no task behind.",
        8: "The configuration refuses a resource name exactly when the kubelet would.",
        9: "Each resource has a separate server, socket and registration, and lists only its devices.",
        10: "Socket names are short and distinct for all resource names: no path in a kubelet's directory is "
        "longer than 107 bytes.",
        11: "At the start, sockets of a devhost that was killed are removed; sockets in use, and those of "
        "other plugins, are not.",
        12: "Sockets are created with mode 0600 and the owner of the process; only the kubelet creates its "
        "directory.",
        13: "Register is sent with the authority `localhost`; calls with any authority are served.",
        14: "The channel of Register sends no HTTP/2 ping and is closed after the call.",
    },
    "Device lists": {
        15: "The first list of a stream is complete and never a placeholder.",
        16: "A burst of changes leads to one complete list; a stream sends four lists at once and then at "
        "most five a second; without a change no list is sent.",
        17: "Health is `Healthy` or `Unhealthy`, which the kubelet compares exactly.",
        18: "A device that becomes unhealthy and recovers changes allocatable; capacity stays.",
        19: "A device that vanishes while a pod holds it stays listed as `Unhealthy`; any other is listed as "
        "`Unhealthy` for two seconds and then leaves the list.",
        20: "Without devices, an empty list is sent and the stream stays open.",
        21: "Ids are unique, at most 63 characters long, and the same after a restart and for any order of "
        "discovery.",
        22: "A device that is found twice is listed once.",
        23: "Fifty thousand devices are served; devices beyond the kubelet's limit of 4 MiB are refused with "
        "a reason and never sent.",
        24: "An unknown NUMA node is omitted; a known one is listed once.",
        25: "A cancelled stream ends its task at once, and the next stream begins with the complete list.",
        26: "Two streams on one server both get every change.",
        27: "A client that does not read delays no other resource, and then gets only the newest list.",
    },
    "Loss and return": {
        28: "When the kubelet ends a stream, the resource registers once on a new socket.",
        29: "If each stream ends right after it opens, registrations follow with a back-off from 1 s to 30 "
        "s.",
        30: "After a kubelet restart every resource registers once on a new socket (measured: within 0.3 s).",
        31: "The same applies after a crash that leaves the old kubelet.sock behind.",
        32: "Without inotify a restart is found by polling every 5 s.",
        33: "If a devhost socket is deleted, its resource registers again on a new one.",
        34: "A directory that is removed and created again is watched again.",
        35: "An event about the kubelet with which a resource is registered has no effect.",
        36: "Two kubelet restarts in a row end with one registration of each resource with the last kubelet.",
        37: "The old stream has ended before the new Register is sent.",
        38: "No socket path is ever registered twice; after `already connected` the next try uses a new one.",
        39: "If a resource cannot register, only that resource is tried again; the others register once.",
        40: "SIGTERM ends the streams and unlinks devhost's sockets, but not kubelet.sock, within 5 s; the "
        "kubelet keeps the capacity.",
        41: "After SIGKILL the next start removes the stale sockets and registers; pods keep their devices.",
        42: "In a rolling update each instance has its own sockets and unlinks only those, and all devices "
        "are allocatable at the end; with a kubelet 1.37 or later they stay allocatable throughout.",
        43: "A backend that hangs affects only its own devices; a stalled event loop ends the process.",
    },
    "Calls for a pod": {
        44: "A container request gets one answer, with exactly the nodes, permissions, mounts, variables, "
        "annotations and CDI names of its devices.",
        45: "Several container requests get as many answers, in the same order.",
        46: "An unknown or unhealthy id fails the call before anything is done.",
        47: "The same ids again get the same answer.",
        48: "A request without ids is an error and has no other effect.",
        49: "A missing host path fails the call with its name and makes its device `Unhealthy`; no answer "
        "contains a missing path.",
        50: "An Allocate that hangs ends with DEADLINE_EXCEEDED after 8 s; other calls are answered "
        "meanwhile.",
        51: "The answer for a device is the same after devhost restarts, because kubelets reuse old answers.",
        52: "A CDI name in an answer is in a valid, completely written file before any list contains its "
        "device, and stays there after a restart.",
        53: "A preference is a subset of the free devices of the requested size, includes the required "
        "devices, is the same each time, and uses as few NUMA nodes as possible.",
        54: "A preference that cannot be met is answered with the best possible choice, never with an error.",
        55: "A kubelet makes no call that the options do not request; devhost answers it anyway.",
        56: "PreStartContainer may be repeated, ends before the kubelet's 30 s, and may be tried again after "
        "a failure.",
        57: "A hundred allocations at once each get their own devices.",
    },
    "Observability": {
        58: "Metrics show registrations, failures, streams, the number of devices and the duration of "
        "Allocate; readiness needs an open stream for every resource.",
        59: "A clock that jumps, or a process that was stopped for a while, leads to no new registration.",
        60: "podresources shows who holds a device and when it is released; if it is throttled, silent, "
        "wrong or absent, nothing is released.",
    },
    "Registration of the DRA driver": {
        61: "The registration socket appears after the service socket is served.",
        62: "GetInfo is answered while a backend hangs.",
        63: "GetInfo has type, name, endpoint and versions, the newest version first.",
        64: "A refusal of the kubelet is shown with its reason until it accepts.",
        65: "A kubelet that restarts uses the driver again.",
        66: "Stale sockets of the driver are replaced, and those in use are not.",
        67: "SIGTERM unlinks both sockets; the slices stay.",
        68: "A start after SIGKILL uses the same paths.",
        69: "v1 and v1beta1 answer the same; only v1 has share ids.",
        70: "A socket path of more than 107 bytes is refused with the configuration.",
        71: "One connection carries claims and health.",
    },
    "Claims": {
        72: "The CDI file of a claim is on the disk before the answer.",
        73: "Prepare of a prepared claim gives the same answer and writes nothing.",
        74: "An error concerns only its claim.",
        75: "A claim that is missing, replaced, not allocated, or of other drivers: four different texts.",
        76: "Results and options of other drivers are ignored.",
        77: "A device of a subrequest is reported for the request.",
        78: "Options of the claim follow those of its class; an unknown one is refused with its path.",
        79: "No CDI name is twice in a container, and the first of a device is its own.",
        80: "Containers with different requests get only their own devices.",
        81: "A device that is unknown, withdrawn, unhealthy or incomplete is named in the error.",
        82: "A device that another claim holds is refused with that claim.",
        83: "A device of a container is refused to claims, and one of a claim to containers.",
        84: "Admin access neither holds a device nor is refused one that is held.",
        85: "A shared device is prepared up to its number of slots, and the shares are kept apart.",
        86: "Unprepare of an unknown claim succeeds, also twice.",
        87: "Unprepare works without the API server.",
        88: "Without the API server, Prepare fails within 10 s and blocks no other claim.",
        89: "A Prepare that is cancelled, or ends after Unprepare, leaves nothing.",
        90: "A full disk is an error that leaves no file and no holder.",
        91: "A restart between Prepare and Unprepare changes nothing.",
        92: "After a reboot nothing is held, and claims are prepared again.",
        93: "An emptied CDI directory is filled again.",
        94: "The record of a claim without pod and object is removed after a grace period.",
        95: "A claim of two pods holds its devices until Unprepare.",
    },
    "ResourceSlices": {
        96: "A slice names node, pool, generation and count, and its Node owns it.",
        97: "A resource without devices is one empty slice.",
        98: "A slice has at most 64 devices; the names are in the order of the slices.",
        99: "A changed attribute is one write that keeps the generation.",
        100: "An added slice gives all slices a new generation; two are never complete at once.",
        101: "Deleted slices come back, also those that a starting kubelet deletes.",
        102: "An edit by another client is undone.",
        103: "A lost answer to a create leaves no second slice.",
        104: "Failures are followed by back-off; at most five slices are written in a second.",
        105: "A watch that ends or is outdated, a rotated token and a 401 are recovered from.",
        106: "A field that the API server drops is reported once, with its fallback; no loop follows.",
        107: "A refused attribute or device costs only itself.",
        108: "The policy of the chart admits slices of the pod's node and driver only.",
        109: "The name of the Node may differ from that of the host.",
        110: "A resource that leaves the file leaves no slice.",
    },
    "Moves, health and size": {
        111: "A resource moves to DRA and back with held devices and allocated claims, across restarts.",
        112: "At no moment do the Node and the slices both offer a device.",
        113: "A health stream begins with everything, repeats it within 15 s, and sends changes within 1 s.",
        114: "The health of a backend that hangs is not repeated, and becomes unknown.",
        115: "A taint keeps the time at which it was added.",
        116: "A version that is not semantic is published as text.",
        117: "Without `serve: dra` nothing of the driver is imported; with it, devhost uses at most 56 MB.",
        118: "Ten thousand devices are published within 60 s, and a restart writes nothing.",
        119: "With `dra.metadata`, containers read which devices each request has, for claims and claims of "
        "templates (KEP-5304; upstream: `must mount device metadata for resource claims`, `… for "
        "resource claim templates`, `must map device metadata to the right containers`).",
        120: "Metadata files are removed with the claim, after crashes and restarts too.",
        121: "An entry gives causes of unhealthy devices separate taints with `NoSchedule`, `NoExecute` or "
        "`None` (KEP-5055).",
    },
    "Names in slices": {
        122: "Devices have the attributes and capacities that claims and classes of other drivers select by.",
        123: "Slices and sockets of another program with the driver's name are left alone, and reported.",
    },
    "Shared counters": {
        124: "Schedulers get devices that exclude each other together, and give one of them (KEP-4815).",
    },
    "Sharing by amount": {
        125: "Claims use amounts of a device and never more than it has, after restarts too (KEP-5075; "
        "upstream: `must allow multiple allocations and consume capacity`).",
        126: "Containers of such a claim are limited, or the claim is refused.",
    },
    "Status of claims": {
        127: "With `dra.status`, a claim shows whether each device is ready, and devhost can write nothing "
        "else of it (KEP-4817; upstream: `must be possible for a node ServiceAccount to update the node "
        "ResourceClaim.Status.Devices once allocated`, `must be impossible for a node ServiceAccount to "
        "update the non-node ResourceClaim.Status.Devices once allocated`).",
        128: "What other drivers and programs have written of a claim stays.",
        129: "Writes are few, are retried, and delay no claim that is prepared.",
    },
}
"""The promises, in sections. Their numbers are names: tests and reports refer to them."""

OPEN: Mapping[int, str] = {}
"""Promises that are not kept yet, and what that means."""

UPSTREAM: Mapping[str, Mapping[str, str]] = {
    "test/e2e_node/dra_test.go": {
        "must register after Kubelet restart": "a_restarted_kubelet_keeps_pods_and_the_slices_come_back",
        "must register after plugin restart": "a_restarted_devhost_keeps_claims_and_writes_no_slice",
        "must recover and register after NotifyRegistrationStatus failure": (
            "a_refused_registration_is_shown_with_its_reason"
        ),
        "must process pod created when kubelet is not running": (
            "claims_survive_an_emptied_directory_while_nothing_runs"
        ),
        "must keep pod in pending state if NodePrepareResources times out": (
            "a_backend_that_hangs_is_an_error_before_the_kubelet_gives_up"
        ),
        "must run pod if NodePrepareResources fails and then succeeds": "a_refused_claim_is_refused_alone",
        "must run pod if NodePrepareResources is in progress for one plugin when Kubelet restarts": (
            "a_cancelled_prepare_leaves_nothing"
        ),
        "must run pod if NodeUnprepareResources fails and then succeeds": (
            "a_claim_stays_held_if_its_file_cannot_be_removed"
        ),
        "must retry NodePrepareResources after Kubelet restart": (
            "the_same_claim_twice_gets_the_same_answer_and_the_file_is_untouched"
        ),
        "must retry NodeUnprepareResources after Kubelet restart": (
            "releasing_is_done_for_an_unknown_claim_and_again"
        ),
        "must call NodeUnprepareResources for deleted pod": (
            "a_record_without_pod_and_claim_is_removed_after_the_grace"
        ),
        "must use one gRPC connection for all service calls": "one_connection_carries_health_and_claims",
        "must reuse one gRPC connection for service and health-monitoring calls": (
            "one_connection_carries_health_and_claims"
        ),
        "should automatically reconnect both DRA and Health API after connection drop": (
            "sockets_that_are_removed_are_made_again"
        ),
        "must be removed on kubelet startup": "slices_that_a_starting_kubelet_deletes_come_back",
        "should reflect device health changes in the Pod's status": (
            "changes_are_sent_within_a_second_and_together"
        ),
        "should reflect device health changes for a plugin which only supports the v1alpha1 health API": (
            "both_health_services_begin_with_the_whole_list"
        ),
        "should reflect device health changes for devices with ShareID": (
            "two_shares_of_one_device_in_one_claim_are_two_devices_with_their_names"
        ),
        "should update health to Unknown when plugin stops and recover upon restart": (
            "the_health_of_a_backend_that_hangs_is_not_repeated"
        ),
    },
    "test/e2e/dra/dra.go": {
        "must be possible for a node ServiceAccount to update the node ResourceClaim.Status.Devices once "
        "allocated": ("a_claim_shows_whether_its_device_is_ready_and_a_restart_writes_nothing"),
        "must be impossible for a node ServiceAccount to update the non-node ResourceClaim.Status.Devices "
        "once allocated": "the_api_server_admits_only_devices_of_the_driver_in_claims_of_the_node",
        "registers plugin": "a_claim_gets_the_device_that_its_expression_selects",
        "must unprepare resources for force-deleted pod": (
            "a_record_without_pod_and_claim_is_removed_after_the_grace"
        ),
        "must map configs and devices to the right containers": (
            "containers_with_different_requests_get_only_their_own"
        ),
        "must manage ResourceSlices": "devices_are_published_in_a_slice_of_the_node",
        "reconciles ResourceSlices with ReconcilePoolWithName": "a_foreign_edit_is_undone",
        "DaemonSet with admin access": "admin_access_never_holds_and_is_never_refused_for_that",
        "supports claim and class parameters": "the_options_of_a_claim_replace_those_of_its_class",
        "supports simple pod referencing inline resource claim": (
            "the_tutorial_works_from_the_first_step_to_the_way_back"
        ),
        "supports external claim referenced by multiple pods": (
            "two_pods_share_a_claim_and_its_device_is_free_when_both_are_gone"
        ),
        "supports inline claim referenced by multiple containers": "two_containers_of_a_pod_use_one_claim",
        "uses the config for the selected subrequest": "a_device_of_a_subrequest_is_named_by_its_request",
        "must allow multiple allocations and consume capacity": (
            "as_many_claims_share_a_device_as_it_has_replicas"
        ),
        "NoSchedule keeps pod pending": "an_unhealthy_device_is_only_for_claims_that_tolerate_it",
        "NoSchedule can be tolerated": "an_unhealthy_device_is_only_for_claims_that_tolerate_it",
        "must run a pod with explicit extended resource with one container one resource": (
            "an_old_pod_gets_a_device_by_the_extended_name"
        ),
        "process extended resources after device plugin uninstall": (
            "a_resource_moves_to_dra_and_back_while_pods_come_and_go"
        ),
        "supports count/resourceclaims.resource.k8s.io ResourceQuota": (
            "a_quota_limits_the_devices_of_a_class"
        ),
        "must apply per-node permission checks": "the_policy_admits_only_slices_of_the_pods_node_and_driver",
    },
}
"""Cases of Kubernetes' own suites that concern a driver, by name, each with the test of the same behaviour.

Cases of the scheduler and of API objects, such as counters, have none: devhost takes no part in them.
"""

FAILURES: Mapping[str, tuple[str, str]] = {
    "F1": (
        "Register is sent before the plugin serves, and times out.",
        "The server runs before the call is made.",
    ),
    "F2": (
        "The kubelet ends the stream; the plugin runs on and never registers again.",
        "The end of a stream counts as the loss of the registration.",
    ),
    "F3": (
        "A list handler does not notice that its stream has ended; tasks accumulate.",
        "Each stream's task ends with its stream.",
    ),
    "F4": (
        "A watch is on a file, or is lost with its directory.",
        "The directory and its parent are watched, and polled every 5 s.",
    ),
    "F5": (
        "No inotify instance is left.",
        "Polling every 5 s is enough.",
    ),
    "F6": (
        "The event of kubelet.sock's creation arrives after the registration and causes another.",
        "An event only triggers a look; device, inode and change time of the socket decide.",
    ),
    "F7": (
        "Two registrations of one resource overlap, and the end of the old one disconnects the new one.",
        "The old stream ends first, each registration has a new path, and a lost one is made again.",
    ),
    "F8": (
        "A plugin restarts in a tight loop.",
        "Each loss is followed by a back-off that doubles to 30 s.",
    ),
    "F9": (
        "Each failed try leaves a socket behind.",
        "A server always unlinks its socket; sockets of a killed process are removed at the next start.",
    ),
    "F10": (
        "A refused registration makes the plugin exit or hang.",
        "It is tried until it succeeds, and shown meanwhile.",
    ),
    "F11": (
        "A list exceeds 4 MiB, and the resource stops working.",
        "The plan refuses devices beyond that.",
    ),
    "F12": (
        "An Allocate that hangs stops the admission of every pod on the node.",
        "Allocate ends at a deadline of 8 s, off the event loop.",
    ),
    "F13": (
        "An error in a vendor library makes pods fail permanently.",
        "A preference is never an error; Allocate names what is missing, and the device becomes unhealthy so "
        "that no other pod gets it.",
    ),
    "F14": (
        "After a reboot, pods are admitted before the plugin runs, and fail.",
        "[No plugin can prevent this](kubelet-contract.md#after-a-reboot). The "
        "[manifests](../deploy/README.md) set a high priority class.",
    ),
    "F15": (
        "The first list is empty or unhealthy while the plugin still scans, so pods are refused.",
        "A resource is registered once its backend has answered.",
    ),
    "F16": (
        "The kubelet restarts while the plugin is not running, and the resource stays at zero.",
        "Every start registers every resource, which is enough.",
    ),
    "F17": (
        "The kubelet's root directory is moved, and the plugin expects kubelet.sock there.",
        "The plugin directory is fixed in the kubelet and does not move. The podresources socket does: set "
        "`--pod-resources`.",
    ),
    "F18": (
        "A strict server or client refuses the authority that gRPC makes from a path.",
        "See promise 13.",
    ),
    "F19": (
        "Two resources share one server, which cannot distinguish them.",
        "See promise 9.",
    ),
    "F20": (
        "A renamed or removed resource stays on the node with its old count.",
        "An empty list is sent before the resource leaves, so the count is zero at once. [The name "
        "stays](troubleshooting.md#8-the-node-does-not-show-it).",
    ),
    "F21": (
        "A device in use is dropped from the list.",
        "It stays listed as `Unhealthy` until it is released.",
    ),
    "F22": (
        "NUMA node -1 is sent as a node.",
        "Negative nodes are removed when devices are found.",
    ),
    "F23": (
        "The plugin cannot write to the kubelet's directory, or mounts the socket file, which becomes stale.",
        "The error message includes the fix; the manifests mount the directory.",
    ),
    "F24": (
        "A gRPC server that stops unlinks its path, even if another server uses the path by then.",
        "No path is ever used by two servers.",
    ),
    "F25": (
        "A fork after gRPC has started, or a blocking read in the event loop, freezes the plugin.",
        "The host never forks, and backends start processes only by executing a program. Backends run on "
        "separate threads, with a deadline for each call.",
    ),
    "F26": (
        "A frozen plugin keeps its sockets open, and the kubelet does not notice.",
        "A watchdog ends the process when its event loop has not answered for 20 s, with exit code 4 and "
        "every thread's stack in the log.",
    ),
}
"""Failures of device plugins in the field, and why they do not occur in devhost."""

CANNOT = frozenset({"F14", "F17"})
"""Failures without a test; the sentence explains why."""

INTRODUCTION = """\
# Conformance

What devhost promises to a kubelet, with the tests of each promise. Generated by `make docs` from the markers
at the tests.

The tests run devhost against the [simulator](simulator.md) over real sockets, in both of its profiles
(kubelets up to 1.36, and from 1.37 on): `make test` uses the newer one, `make test-all` both. Times are
constants of the code, or were measured on an idle machine.

    .venv/bin/pytest tests/conformance
"""


@dataclass(frozen=True, order=True)
class Shown:
    """A test with the promises and failures of its markers; ``line`` is that of its first decorator."""

    file: str
    name: str
    line: int
    lines: tuple[int, ...] = ()
    failures: tuple[str, ...] = ()


def tests(root: Path = ROOT) -> list[Shown]:
    """Every test with one of the two markers, by file and line."""
    found: list[Shown] = []
    for pattern in ("tests/**/test_*.py", "plugins/*/tests/**/test_*.py", "packages/*/tests/**/test_*.py"):
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
        lines += [f"## {title}", ""]
        for number, promise in promises.items():
            proof = [test for test in shown if number in test.lines]
            lines.append(f"{number}. {promise}{_proof(proof, OPEN.get(number, ''))}")
        lines.append("")
    lines += _upstream()
    lines += ["## Failures seen in the field", "", "Each failure, and why it does not occur in devhost:", ""]
    for name, (failure, answer) in FAILURES.items():
        proof = [test for test in shown if name in test.failures]
        lines.append(f"- **{name}** {failure} *{answer}*{_proof(proof, '')}")
    return "\n".join(lines) + "\n"


def files_of_tests(root: Path = ROOT) -> dict[str, str]:
    """The file of each test function, by its name without ``test_``."""
    found: dict[str, str] = {}
    for file in [*root.glob("tests/**/test_*.py"), *root.glob("packages/*/tests/**/test_*.py")]:
        for name in re.findall(r"^(?:async )?def test_(\w+)", file.read_text(encoding="utf-8"), re.M):
            found[name] = str(file.relative_to(root))
    return found


def _upstream() -> Iterator[str]:
    files = files_of_tests()
    yield from ("## Kubernetes' own cases for DRA drivers", "")
    yield "Behaviour that Kubernetes tests with its own driver, and the same tested with devhost."
    for suite, cases in UPSTREAM.items():
        yield from ("", f"`{suite}`:", "")
        for case, name in cases.items():
            yield f"- {case}<br>\n  [`{name}`](../{files[name]})"
    yield ""


def _proof(shown: list[Shown], open_because: str) -> str:
    """The links to the tests, one a line below the promise."""
    links = [f"[`{test.name.removeprefix('test_')}`](../{test.file})" for test in shown]
    if open_because:
        links.append(f"**open**: {open_because}")
    return "".join(f"<br>\n    {link}" for link in links)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
