"""What the kernel and the file system say, heard in the loop: real uevents and real directories."""

from __future__ import annotations

import asyncio
import ctypes.util
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import pyudev

from devhost.backend import Event
from devhost.backend.files import by_soname
from devhost.discovery.uevents import Monitors, UeventMonitor


def writable_uevent() -> Path | None:
    """A device whose ``uevent`` file makes the kernel say "change" when written to, and which stays."""
    if os.geteuid() != 0:
        return None
    for pattern in ("/sys/class/block/*/uevent", "/sys/class/tty/*/uevent"):
        for file in sorted(Path("/").glob(pattern.lstrip("/"))):
            if file.parent.name.startswith(("loop", "zram")):
                continue  # other tests and programs make these, and remove them
            try:
                file.open("w").close()
            except OSError:
                continue
            return file.resolve()
    return None


UEVENT = writable_uevent()
real_uevents = pytest.mark.skipif(UEVENT is None, reason="needs root and a writable uevent file in /sys")


class Heard(list[Event]):
    """A sink; ``until`` waits for an event that it names, at most 20 s."""

    def __init__(self) -> None:
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.append(event)
        self._news.set()

    async def until(self, wanted: Callable[[Event], bool]) -> Event:
        async with asyncio.timeout(60):
            while True:
                for event in self:
                    if wanted(event):
                        return event
                self._news.clear()
                await self._news.wait()


@pytest.fixture
def change() -> Callable[[], str]:
    """Makes the kernel send a uevent; the path of the device it is about."""

    def write() -> str:
        assert UEVENT is not None
        UEVENT.write_text("change")
        return str(UEVENT.parent)

    return write


@pytest.fixture
def udevd(tmp_path: Path) -> Path:
    """A root directory in which udevd seems to run."""
    control = tmp_path / "udevd/run/udev/control"
    control.parent.mkdir(parents=True)
    control.touch()
    return tmp_path / "udevd"


CHILDLESS = """
import asyncio, sys

STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system"}

def refuse(event, arguments):
    if event in STARTS:
        raise AssertionError(f"it starts a process: {event} {arguments}")

sys.addaudithook(refuse)

from devhost.discovery.uevents import UeventMonitor

async def main():
    try:
        UeventMonitor(print).close()
    except OSError:
        print("no netlink here, and libudev was loaded")

asyncio.run(main())
"""


def test_listening_for_uevents_starts_no_process() -> None:
    """ldconfig and gcc, with which libraries can be found, cost more than everything else at the start."""
    subprocess.run([sys.executable, "-c", CHILDLESS], check=True, timeout=240)


@pytest.mark.parametrize("known", [{}, {"c": "libc.so.of-no-distribution"}])
def test_libraries_that_have_no_soname_are_found_in_the_ordinary_way(
    known: dict[str, str],
) -> None:
    ordinary = ctypes.util.find_library
    with by_soname(known):
        assert ctypes.util.find_library("c") == ordinary("c")
    assert ctypes.util.find_library is ordinary


@pytest.mark.root
@real_uevents
async def test_a_kernel_uevent_arrives_with_everything_a_backend_needs(change: Any) -> None:
    heard = Heard()
    monitor = UeventMonitor(heard)
    try:
        path = change()
        if monitor.source == "kernel":
            event = await heard.until(lambda event: event.sys_path == path)
            assert (event.action, event.subsystem in {"block", "tty"}) == ("change", True)
            assert event.dev_node == f"/dev/{path.rpartition('/')[2]}"
        else:
            await heard.until(lambda event: event.sys_path in (path, ""))
    finally:
        monitor.close()


@pytest.mark.root
@real_uevents
async def test_after_close_there_are_no_events(change: Any) -> None:
    heard, other = Heard(), Heard()
    closed, monitor = UeventMonitor(heard), UeventMonitor(other)
    closed.close()
    closed.close()
    try:
        change()
        await other.until(lambda event: True)
        assert not heard
    finally:
        monitor.close()


@pytest.mark.root
@real_uevents
async def test_a_full_buffer_causes_a_full_scan_and_later_events_arrive(
    change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    monitor = UeventMonitor(heard, buffer=4096)
    try:
        for _ in range(300):  # the loop has no turn meanwhile, so the buffer overflows
            change()
        await heard.until(lambda event: event == Event())
        if monitor.source == "kernel":
            await asyncio.sleep(0)
            heard.clear()
            path = change()
            await heard.until(lambda event: event.sys_path == path)
        assert "reading uevents failed" not in caplog.messages
    finally:
        monitor.close()


@pytest.mark.root
@real_uevents
async def test_where_udevd_runs_the_kernels_events_are_only_a_late_second_look(
    change: Any, udevd: Path
) -> None:
    heard = Heard()
    monitor = UeventMonitor(heard, udevd, own_root=udevd, settle=0.05)
    try:
        assert monitor.source == "udev"
        for _ in range(2):
            change()
            change()
            await heard.until(lambda event: event == Event())
            heard.clear()
    finally:
        monitor.close()


@pytest.mark.root
@real_uevents
async def test_without_udevds_events_the_kernels_count_at_once_and_a_late_scan_follows(
    change: Any, tmp_path: Path, udevd: Path
) -> None:
    """This is so in a pod with its own network; udevd sets names and permissions after the kernel."""
    heard = Heard()
    monitor = UeventMonitor(heard, udevd, own_root=tmp_path / "pod", settle=0.05)
    try:
        assert monitor.source == "kernel"
        change()
        await heard.until(lambda event: bool(event.sys_path))
        await heard.until(lambda event: event == Event())
    finally:
        monitor.close()


async def test_refused_netlink_sockets_are_named_with_a_fix_and_used_once_they_are_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sys").mkdir()
    shown: list[str] = []
    monitors = Monitors(lambda event: None, tmp_path, lambda: shown.append(monitors.uevents_failure))

    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def unclear(*_: object) -> NoReturn:
        raise OSError("Could not create udev monitor")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        patch.setattr(pyudev.Monitor, "from_netlink", unclear)
        monitors.open()
        monitors.look()
    reason = (
        "cannot receive uevents: Operation not permitted"
        " (allow netlink sockets: RestrictAddressFamilies= of the systemd unit, or seccomp)"
    )
    assert shown == [reason] == [record.fields["reason"] for record in caplog.records]
    monitors.look()
    monitors.close()
    assert shown == [reason, ""]


async def test_a_missing_libudev_is_looked_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looked: list[None] = []

    def missing() -> NoReturn:
        looked.append(None)
        raise ImportError("No library named udev")

    monkeypatch.setattr(pyudev, "Context", missing)
    monitors = Monitors(lambda event: None, tmp_path, lambda: None)
    monitors.open()
    monitors.look()
    assert len(looked) == 1
    assert monitors.uevents_failure.endswith("libudev is missing (install libudev, then restart devhost)")


async def test_a_monitor_that_opens_only_half_way_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, udevd: Path
) -> None:
    class Monitor:
        opened: list[Monitor] = []  # noqa: RUF012 - reset by the class being made per test

        def __init__(self) -> None:
            self.descriptors = os.pipe()
            self.opened.append(self)

        @classmethod
        def from_netlink(cls, context: object, source: str) -> Monitor:
            if source == "udev":
                raise OSError(errno.EPERM, "no netlink for you")
            return cls()

        def set_receive_buffer_size(self, size: int) -> None:
            raise OSError(errno.EPERM, "no capability")

        def start(self) -> None:
            return

        def fileno(self) -> int:
            return self.descriptors[0]

    monkeypatch.setattr(pyudev, "Monitor", Monitor)
    with pytest.raises(OSError, match="no netlink"):
        UeventMonitor(Heard(), own_root=udevd)
    (only,) = Monitor.opened
    assert not asyncio.get_running_loop().remove_reader(only.fileno())
    for descriptor in only.descriptors:
        os.close(descriptor)
