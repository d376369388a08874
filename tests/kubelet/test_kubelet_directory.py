"""How devhost treats the states of the kubelet's directory."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.kubelet import KubeletSimulator
from kit.kubelet import ToyResource
from kit.waiting import background, until

from devhost.backend.errors import EnvironmentFailure
from devhost.kubelet.kubelet_socket import (
    ABSENT,
    NO_DIRECTORY,
    NOT_A_DIRECTORY,
    REMOVED,
    KubeletSocket,
    check_directory,
)
from devhost.kubelet.podresources_poller import PodResources
from devhost.kubelet.registration import Registration, RegistrationState
from devhost.kubelet.rivals import Rivals
from devhost.kubelet.server import socket_name
from devhost.planning.timing import KubeletTiming
from devhost.runtime.worker import FileWorker
from devhost.telemetry.metrics import Metrics


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    return directory


@pytest.fixture
def mount(directory: Path) -> Iterator[Path]:
    """The directory as a container with a mount of it sees it, even after it was removed."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


async def test_a_directory_without_a_socket_is_waited_for(directory: Path) -> None:
    kubelet = KubeletSocket(directory)
    await kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (ABSENT, (True, ""))


async def test_a_missing_directory_is_waited_for(directory: Path) -> None:
    directory.rmdir()
    kubelet = KubeletSocket(directory)
    await kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (NO_DIRECTORY, (True, ""))


async def test_a_removed_directory_that_is_still_mounted_is_not_waited_for(
    directory: Path, mount: Path
) -> None:
    kubelet = KubeletSocket(mount)
    await kubelet.look()
    assert kubelet.usable() == (True, "")
    directory.rmdir()
    directory.mkdir()
    await kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (REMOVED, (False, REMOVED))


async def test_a_file_in_place_of_the_directory_is_reported(directory: Path) -> None:
    kubelet = KubeletSocket(directory)
    await kubelet.look()
    directory.rmdir()
    directory.touch()
    await kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (NOT_A_DIRECTORY, (True, ""))
    with pytest.raises(EnvironmentFailure, match="is not a directory"):
        check_directory(directory)
    directory.unlink()
    directory.mkdir()
    await kubelet.look()
    assert kubelet.failure == ABSENT


async def test_an_unreadable_directory_is_reported(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if directory in Path(path).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    kubelet = KubeletSocket(directory)
    await kubelet.look()
    assert kubelet.failure == "cannot read the kubelet's directory: Permission denied"


@pytest.mark.usefixtures("ordinary_rights")
@pytest.mark.parametrize(
    ("above", "mode", "words"),
    [(False, 0o300, "cannot read"), (False, 0o500, "cannot write to"), (True, 0o000, "cannot reach")],
)
def test_a_directory_without_permission_is_one_line_with_the_fix(
    directory: Path, above: bool, mode: int, words: str
) -> None:
    closed = directory.parent if above else directory
    closed.chmod(mode)
    try:
        with pytest.raises(EnvironmentFailure, match=f"^{words} .*{directory.name}.*run devhost as root"):
            check_directory(directory)
    finally:
        closed.chmod(0o700)


def test_an_unsearchable_parent_directory_is_one_line_with_the_fix(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **_: Any) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(
        EnvironmentFailure, match=r"^cannot reach the kubelet's directory .*: Permission denied \(run devhost"
    ):
        check_directory(directory)


async def test_a_second_change_within_one_clock_tick_is_noticed(directory: Path) -> None:
    kubelet = KubeletSocket(directory, identify=lambda path: (1, 2, 3))
    await kubelet.look()
    seen = []
    kubelet.subscribe(lambda: seen.append(dict(kubelet.servers)))
    socket = directory / socket_name("example.com/toy")
    socket.touch()
    await kubelet.look()
    await kubelet.look()
    socket.unlink()
    await kubelet.look()
    assert [bool(servers) for servers in seen] == [True, False]


@dataclass
class Hanging:
    """The directory, on a file system that hangs until :attr:`over` is set."""

    over: threading.Event
    reached: asyncio.Event
    """Whether a thread has looked."""
    looked: set[int]
    """The threads that have looked."""


@pytest.fixture
def hanging(directory: Path, monkeypatch: pytest.MonkeyPatch, hang: threading.Event) -> Callable[[], Hanging]:
    """Lets the file system hang from the call on."""

    def begin() -> Hanging:
        loop, found = asyncio.get_running_loop(), Hanging(hang, asyncio.Event(), set())

        def slowed(call: Callable[..., Any]) -> Callable[..., Any]:
            def wait(path: Path | str, *args: Any, **options: Any) -> Any:
                if not hang.is_set() and directory in (Path(path), *Path(path).parents):
                    found.looked.add(threading.get_ident())
                    loop.call_soon_threadsafe(found.reached.set)
                    if threading.get_ident() != threading.main_thread().ident:
                        hang.wait(60)
                return call(path, *args, **options)

            return wait

        for name in ("stat", "lstat", "listdir", "scandir", "access", "unlink"):
            monkeypatch.setattr(os, name, slowed(getattr(os, name)))
        return found

    return begin


@pytest.mark.parametrize("work", [KubeletSocket.run, KubeletSocket.look])
async def test_a_directory_that_hangs_does_not_stop_the_event_loop(
    directory: Path,
    hanging: Callable[[], Hanging],
    work: Callable[[KubeletSocket], Coroutine[Any, Any, object]],
) -> None:
    seen = asyncio.Event()
    kubelet = KubeletSocket(directory, poll=0.01)
    kubelet.subscribe(seen.set)
    slow = hanging()
    async with background(work(kubelet)), asyncio.timeout(60):
        await slow.reached.wait()
        assert not seen.is_set()
        slow.over.set()
        await seen.wait()
    assert threading.main_thread().ident not in slow.looked


async def test_a_devhost_that_starts_does_not_wait_forever_for_a_directory_that_hangs(
    directory: Path, hanging: Callable[[], Hanging]
) -> None:
    kubelet = KubeletSocket(directory, worker=FileWorker("kubelet directory", "", 0.05))
    slow = hanging()
    with pytest.raises(EnvironmentFailure, match=r"cannot use .*: it did not answer within 0.05 s"):
        await kubelet.open()
    assert slow.looked and threading.main_thread().ident not in slow.looked


async def test_a_registration_looks_at_nothing_in_a_directory_that_hangs_and_stays(
    directory: Path, hanging: Callable[[], Hanging]
) -> None:
    async with KubeletSimulator(directory) as simulator:
        kubelet = KubeletSocket(directory, poll=0.01, worker=FileWorker("kubelet directory", "", 0.05))
        rivals = Rivals(PodResources(directory / "absent.sock"), directory)
        timing = KubeletTiming(poll=0.01, kubelet_start=0.0)
        registration = Registration(ToyResource(), kubelet, rivals, Metrics(), lambda: None, timing=timing)
        async with background(kubelet.run()), background(rivals.run()), background(registration.run()):
            await simulator.wait_for(lambda: registration.streams == 1)
            told: list[str] = []
            kubelet.subscribe(lambda: told.append(kubelet.unread))
            slow = hanging()
            await until(lambda: "4 earlier calls still hang" in kubelet.unread)
            assert any("did not answer within 0.05 s" in reason for reason in told)
            slow.looked.clear()  # what was under way when the directory began to hang has ended
            registration.follow(take_over=False)  # its next step begins with a look
            for _ in range(100):  # more turns of the loop than that step takes
                await asyncio.sleep(0)
            assert threading.main_thread().ident not in slow.looked
            slow.over.set()
            await until(lambda: not kubelet.unread)
            assert registration.condition.state is RegistrationState.REGISTERED
            assert registration.condition.registrations == 1


async def test_a_look_is_not_older_than_its_caller_and_callers_share_it(
    directory: Path, hang: threading.Event
) -> None:
    loop, reached, asked = asyncio.get_running_loop(), asyncio.Event(), []
    former, present = (1, 1, 1), (2, 2, 2)

    def identify(path: Path) -> tuple[int, int, int] | None:
        if path == directory:
            return None
        asked.append(path)
        if hang.is_set():
            return present
        loop.call_soon_threadsafe(reached.set)
        hang.wait(60)
        return former

    kubelet = KubeletSocket(directory, identify=identify)
    async with asyncio.timeout(60):
        first = asyncio.create_task(kubelet.look())
        await reached.wait()
        later = [asyncio.create_task(kubelet.look()) for _ in range(3)]
        await asyncio.sleep(0)
        hang.set()
        assert await asyncio.gather(first, *later) == [True] * 4
    assert kubelet.identity == present
    assert len(asked) == 2


async def test_a_look_may_rely_on_a_reading_that_is_new_enough_and_succeeded(directory: Path) -> None:
    now, read, broken = 100.0, 0, False

    def identify(path: Path) -> tuple[int, int, int]:
        nonlocal read
        read += path == directory
        if broken:
            raise OSError(errno.EIO, "Input/output error")
        return (1, 2, 3)

    kubelet = KubeletSocket(directory, identify=identify, clock=lambda: now)
    assert await kubelet.look(0.5)
    now += 0.25
    assert (await kubelet.look(0.5), read) == (True, 1)
    now += 0.25
    assert (await kubelet.look(0.5), read) == (True, 2)
    assert (await kubelet.look(), read) == (True, 3)
    broken = True
    assert not await kubelet.look()
    assert not await kubelet.look(0.5)


def test_a_read_only_directory_is_reported_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.statvfs("/sys").f_flag & os.ST_RDONLY:

        class Flags:
            f_flag = os.ST_RDONLY

        monkeypatch.setattr(os, "statvfs", lambda _: Flags)
        monkeypatch.setattr(os, "access", lambda _, mode: mode == os.R_OK)
    with pytest.raises(EnvironmentFailure, match=r"^cannot write to .*/sys: Read-only file system \(run dev"):
        check_directory(Path("/sys"))
