"""A running plugin: a process in namespaces with the machine, and a simulated kubelet."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from devhost_testing.kubelet import KubeletSimulator, events

from bench.process import TICKS, cpu_seconds

from .machine import Machine
from .plugins import Plugin
from .texts import complaint, message, together

START_LIMIT = 20.0
"""Seconds for the first complete list."""

STOP_LIMIT = 10.0

NAMESPACES = ("unshare", "--mount", "--net", "--propagation", "private", "--")

NETLINK_KOBJECT_UEVENT = 15
CLONE_NEWNET = 0x40000000


class TooLate(Exception):
    """An expected event did not happen within the limit."""


@dataclass(slots=True)
class Node:
    """A machine, a kubelet, and the directory with the files of both."""

    place: Path
    machine: Machine
    kubelet: KubeletSimulator

    async def listed(self, fits: Callable[[], bool], limit: float) -> float:
        """The time (monotonic seconds) when a condition was true; checked after each event.

        Raises:
            TooLate: it was not true within ``limit`` seconds.
        """
        try:
            await self.kubelet.wait_for(lambda: fits() or None, limit)
        except TimeoutError:
            raise TooLate(f"not within {limit:g} s") from None
        return list(self.kubelet.events)[-1].at

    def offers(self, plugins: Iterable[Plugin]) -> bool:
        """Whether the kubelet has all devices of these plugins, with an open stream."""
        shown = self.kubelet.allocatable()
        wanted = [item for plugin in plugins for item in plugin.offers.items()]
        return all(shown.get(name) == count for name, count in wanted)


@dataclass(slots=True)
class Running:
    """A started plugin."""

    plugin: Plugin
    node: Node
    process: asyncio.subprocess.Process
    log: Path

    def began(self) -> float:
        """Monotonic seconds just before the plugin's program started."""
        return float((self.node.place / "began").read_text(encoding="ascii"))

    def processes(self) -> list[int]:
        """Its process and the descendants."""
        return family(self.process.pid)

    def memory(self) -> float:
        """Resident memory of all its processes in MB (10⁶ bytes); shared mappings count once."""
        return together([Path(f"/proc/{pid}/smaps").read_text("utf-8") for pid in self.processes()])

    def cpu(self) -> float:
        """CPU time of all its processes so far, in seconds."""
        stats = [Path(f"/proc/{pid}/stat").read_text("ascii") for pid in self.processes()]
        return sum(cpu_seconds(stat, TICKS) for stat in stats)

    def said(self) -> str:
        """The last line of its log that is not a stack trace."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return complaint(text.replace(f"{self.node.place}/", ""))

    async def uevent(self, action: str, *devices: tuple[str, str]) -> None:
        """Makes the kernel send uevents to the plugin, with ``subsystem`` and ``sys_path`` of each.

        A machine of files causes none; the kernel forwards uevents that root writes (since Linux 4.18,
        ``uevent_net_rcv_skb`` in lib/kobject_uevent.c).
        """
        await asyncio.to_thread(_send, self.process.pid, [message(action, *device) for device in devices])


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text("ascii").split():
            found += family(int(child))
    return found


def _send(pid: int, messages: list[bytes]) -> None:
    """Runs in a separate thread, because only that thread enters the other network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open("rb") as home, Path(f"/proc/{pid}/ns/net").open("rb") as there:
        for namespace in (there, home):
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            if namespace is there:
                mouth = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT)
    with mouth:
        for each in messages:
            mouth.sendto(each, (0, 0))


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    """A machine and a kubelet until the end of the block."""
    # short, because the path of a socket has at most 107 bytes, and the Intel FPGA plugin uses 74 for a name
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as name:
        place = Path(name)
        machine = await asyncio.to_thread(Machine, place)
        async with KubeletSimulator(place / "k" / "device-plugins") as kubelet:
            yield Node(place, machine, kubelet)


@asynccontextmanager
async def started(plugin: Plugin, at: Node, *, config: str | None = None) -> AsyncIterator[Running]:
    """Starts a plugin, with ``config`` as the text of its file if given; stops it at the end."""
    command = await asyncio.to_thread(plugin.command, at.place)
    file = plugin.configuration(at.place)
    if config is not None and file is not None:
        file.write_text(config, encoding="utf-8")
    log = at.place / f"{command[0].rpartition('/')[2]}.log"
    inside = Path(__file__).with_name("inside.py")
    (at.place / "began").unlink(missing_ok=True)
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *(*NAMESPACES, sys.executable, "-S", str(inside), str(at.place), *plugin.options, "--", *command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=os.environ | at.machine.environment | plugin.environment(),
        )
    try:
        yield Running(plugin, at, process, log)
    finally:
        await _stop(process)


@asynccontextmanager
async def serving(plugin: Plugin) -> AsyncIterator[Running]:
    """A plugin with a separate kubelet, after all its devices are listed.

    Raises:
        TooLate: they were not listed in time; the text has the end of its log.
    """
    async with node() as at, started(plugin, at) as running:
        await ready(running)
        yield running


async def ready(running: Running) -> float:
    """The time when the kubelet had all devices of the plugin.

    Raises:
        TooLate: it did not within :data:`START_LIMIT`; the text has the end of its log.
    """
    try:
        return await running.node.listed(lambda: running.node.offers([running.plugin]), START_LIMIT)
    except TooLate as error:
        shown = dict(running.node.kubelet.allocatable())
        raise TooLate(f"{running.plugin.title}: {error}; {shown}; {running.said()}") from None


def usable() -> str:
    """Why a machine cannot be mounted over this one; empty if it can."""
    attempt = [
        "unshare",
        "--mount",
        "--net",
        "--propagation",
        "private",
        "--",
        "mount",
        "-t",
        "tmpfs",
        "none",
        "/var/lib",
    ]
    try:
        done = subprocess.run(attempt, capture_output=True, text=True, timeout=START_LIMIT, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stderr.strip()[-200:] if done.returncode else ""


def last_start(at: Node) -> float:
    """The time when the kubelet last started to answer."""
    return at.kubelet.events.of(events.Started)[-1].at


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_LIMIT)
        except TimeoutError:
            process.kill()
            await process.wait()
