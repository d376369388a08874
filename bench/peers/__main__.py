"""``python -m bench.peers``: builds the peers, measures every plugin in the same way, and prints one table.

It requires root, Go and namespaces. If one of these is missing, it reports that and exits with 77.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from bench.table import machine
from devhost import __version__

from . import changes, mishaps, scenarios
from .outcome import Outcome, Question, table
from .plugins import DEVHOST, PEERS, Plugin
from .programs import Unavailable, built
from .running import TooLate, usable

UNAVAILABLE = 77
"""The exit code that means "skipped" to test drivers such as Automake."""

LIMIT = 3600.0
"""The time limit in seconds; five samples of each figure take half an hour."""

Asked = AsyncIterator[tuple[str, Plugin, Outcome]]
Ask = Callable[[Sequence[Plugin], int], Asked]


def _as(name: str, ask: Callable[[Sequence[Plugin], int], AsyncIterator[tuple[Plugin, Outcome]]]) -> Ask:
    async def named(plugins: Sequence[Plugin], repeats: int) -> Asked:
        async for plugin, outcome in ask(plugins, repeats):
            yield name, plugin, outcome

    return named


ASKS: dict[str, Ask] = {
    "size": _as("size", scenarios.sizes),
    "start": _as("start", scenarios.starts),
    "memory": _as("memory", scenarios.memory),
    "idle": _as("idle", scenarios.idle),
    "kubelet": _as("kubelet", scenarios.kubelet_restarts),
    "no-kubelet": _as("no-kubelet", scenarios.no_kubelet),
    "plug": changes.plugged,
    "faults": changes.faults,
    "edit": _as("edit", mishaps.edited),
    "typo": _as("typo", mishaps.mistyped),
    "bad": _as("bad", mishaps.one_bad),
}
"""The questions."""

TOGETHER = ("memory", "idle")
"""Questions that are measured for all plugins at the same time, while nothing else happens."""

QUESTIONS = (
    Question("size", "size of the program"),
    Question("start", "start → complete list"),
    Question("memory", "resident memory at rest"),
    Question("idle", "CPU of one core at rest"),
    Question("plugged", "a device is plugged in → list"),
    Question("unplugged", "a device is pulled out → list"),
    Question("again", "… and the next change → list"),
    Question("kubelet", "the kubelet restarts → complete list"),
    Question("no-kubelet", "the plugin starts 10 s before the kubelet → complete list"),
    Question("fault-gpu", "an NVIDIA GPU reports Xid 79 → Unhealthy"),
    Question("repair-gpu", "… and the fault is over → Healthy"),
    Question("fault-rdma", "the port of an RDMA adapter goes down → Unhealthy"),
    Question("repair-rdma", "… and is up again → Healthy"),
    Question("fault-fpga", "an FPGA reads as ones → Unhealthy"),
    Question("repair-fpga", "… and works again → Healthy"),
    Question("edit", "the configuration is edited → list"),
    Question("typo", "a key or flag is mistyped"),
    Question("bad", "one device is not as it should be"),
)


async def run(
    names: Sequence[str], plugins: Sequence[Plugin], repeats: int
) -> tuple[dict[tuple[str, str], Outcome], list[str]]:
    """All results by question and plugin, and the errors."""
    cells: dict[tuple[str, str], Outcome] = {}
    broken: list[str] = []
    here = asyncio.current_task()
    assert here is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, here.cancel)
    with suppress(TimeoutError):
        async with asyncio.timeout(LIMIT):
            await _ask(names, plugins, repeats, cells, broken)
            return cells, broken
    return cells, [*broken, f"not every question was answered within {LIMIT:g} s"]


async def _ask(
    names: Sequence[str],
    plugins: Sequence[Plugin],
    repeats: int,
    cells: dict[tuple[str, str], Outcome],
    broken: list[str],
) -> None:
    for name in names:
        for some in [plugins] if name in TOGETHER else [[plugin] for plugin in plugins]:
            try:
                async for question, plugin, outcome in ASKS[name](some, repeats):
                    cells[question, plugin.title] = outcome
                    sys.stderr.write(f"{plugin.title}: {question}: {outcome.text}\n")
            except (TooLate, OSError, RuntimeError) as error:
                broken.append(f"{name}: {', '.join(plugin.title for plugin in some)}: {error}")


def why_not() -> str:
    """Why no plugin can run on this machine; empty if they can."""
    if os.geteuid() != 0:
        return "mounting one machine over another requires root"
    missing = [name for name in ("unshare", "mount", "cc") if not shutil.which(name)]
    return f"{missing[0]} is not installed" if missing else usable()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 success, 1 failure, 77 not possible on this machine."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="samples of each figure (5)")
    parser.add_argument("--only", action="append", choices=list(ASKS), metavar="NAME", help=", ".join(ASKS))
    options = parser.parse_args(arguments)
    if reason := why_not():
        print(f"skipped: {reason}")
        return UNAVAILABLE
    plugins = [DEVHOST]
    for peer in PEERS:
        try:
            assert peer.program is not None
            peer.needs()
            built(peer.program)
            plugins.append(peer)
        except Unavailable as error:
            print(f"without {peer.title}: {error}")
    if plugins == [DEVHOST]:
        print("skipped: no plugin to compare with")
        return UNAVAILABLE
    load = os.getloadavg()[0]
    cells, broken = asyncio.run(run(options.only or list(ASKS), plugins, options.repeats))
    asked = [question for question in QUESTIONS if any(question.name == name for name, _ in cells)]
    print(table(asked, [plugin.title for plugin in plugins], cells))
    print(f"\n{versions(plugins)}\n{machine(load)}")
    for text in broken:
        print(f"failed: {text}", file=sys.stderr)
    return int(bool(broken))


def versions(plugins: Sequence[Plugin]) -> str:
    """The compared releases, and the commit of devhost."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    names = [f"{p.program.module} {p.program.version}" for p in plugins if p.program]
    return ", ".join([f"devhost {__version__} ({told.stdout.strip() or 'no commit'})", *dict.fromkeys(names)])


if __name__ == "__main__":
    sys.exit(main())
