"""How devhost treats the states of the kubelet's directory."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.waiting import background

from devhost.backend.errors import EnvironmentFailure
from devhost.kubelet.kubelet_socket import ABSENT, NO_DIRECTORY, NOT_A_DIRECTORY, REMOVED, KubeletSocket
from devhost.kubelet.preflight import check_directory
from devhost.kubelet.server import socket_name


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


def test_a_directory_without_a_socket_is_waited_for(directory: Path) -> None:
    kubelet = KubeletSocket(directory)
    kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (ABSENT, (True, ""))


def test_a_missing_directory_is_waited_for(directory: Path) -> None:
    directory.rmdir()
    kubelet = KubeletSocket(directory)
    kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (NO_DIRECTORY, (True, ""))


def test_a_removed_directory_that_is_still_mounted_is_not_waited_for(directory: Path, mount: Path) -> None:
    kubelet = KubeletSocket(mount)
    kubelet.look()
    assert kubelet.usable() == (True, "")
    directory.rmdir()
    directory.mkdir()
    kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (REMOVED, (False, REMOVED))


def test_a_file_in_place_of_the_directory_is_reported(directory: Path) -> None:
    kubelet = KubeletSocket(directory)
    kubelet.look()
    directory.rmdir()
    directory.touch()
    kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (NOT_A_DIRECTORY, (True, ""))
    with pytest.raises(EnvironmentFailure, match="is not a directory"):
        check_directory(directory)
    directory.unlink()
    directory.mkdir()
    kubelet.look()
    assert kubelet.failure == ABSENT


def test_an_unreadable_directory_is_reported(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if directory in Path(path).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    kubelet = KubeletSocket(directory)
    kubelet.look()
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


def test_a_second_change_within_one_clock_tick_is_noticed(directory: Path) -> None:
    kubelet = KubeletSocket(directory, identify=lambda path: (1, 2, 3))
    kubelet.look()
    seen = []
    kubelet.subscribe(lambda: seen.append(dict(kubelet.servers)))
    socket = directory / socket_name("example.com/toy")
    socket.touch()
    kubelet.look()
    kubelet.look()
    socket.unlink()
    kubelet.look()
    assert [bool(servers) for servers in seen] == [True, False]


async def test_a_directory_that_hangs_does_not_stop_the_event_loop(
    directory: Path, monkeypatch: pytest.MonkeyPatch, hang: threading.Event
) -> None:
    loop, reached = asyncio.get_running_loop(), asyncio.Event()
    looked: set[int] = set()

    def hanging(call: Callable[..., Any]) -> Callable[..., Any]:
        def wait(path: Path | str, *args: Any, **options: Any) -> Any:
            if directory in (Path(path), *Path(path).parents):
                looked.add(threading.get_ident())
                if threading.get_ident() != threading.main_thread().ident:
                    loop.call_soon_threadsafe(reached.set)
                    hang.wait(60)
            return call(path, *args, **options)

        return wait

    seen = asyncio.Event()
    kubelet = KubeletSocket(directory, poll=0.01)
    kubelet.subscribe(seen.set)
    for name in ("stat", "listdir"):
        monkeypatch.setattr(os, name, hanging(getattr(os, name)))
    async with background(kubelet.run()):
        async with asyncio.timeout(60):
            await reached.wait()
            assert not seen.is_set()
            hang.set()
            await seen.wait()
    assert threading.main_thread().ident not in looked


async def test_an_earlier_look_that_ends_late_shows_no_former_kubelet(
    directory: Path, hang: threading.Event
) -> None:
    loop, reached = asyncio.get_running_loop(), asyncio.Event()
    former, present = (1, 1, 1), (2, 2, 2)

    def identify(path: Path) -> tuple[int, int, int] | None:
        if path == directory:
            return None
        if threading.current_thread() is threading.main_thread() or hang.is_set():
            return present
        loop.call_soon_threadsafe(reached.set)
        hang.wait(60)
        return former

    kubelet = KubeletSocket(directory, poll=0.01, identify=identify)
    looks: list[object] = []
    kubelet.subscribe(lambda: looks.append(kubelet.identity))
    async with background(kubelet.run()):
        async with asyncio.timeout(60):
            await reached.wait()
            kubelet.look()
            hang.set()
            (directory / socket_name("example.com/toy")).touch()
            while not kubelet.servers:
                await asyncio.sleep(0.01)
    assert set(looks) == {present}


def test_a_read_only_directory_is_reported_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.statvfs("/sys").f_flag & os.ST_RDONLY:

        class Flags:
            f_flag = os.ST_RDONLY

        monkeypatch.setattr(os, "statvfs", lambda _: Flags)
        monkeypatch.setattr(os, "access", lambda _, mode: mode == os.R_OK)
    with pytest.raises(EnvironmentFailure, match=r"^cannot write to .*/sys: Read-only file system \(run dev"):
        check_directory(Path("/sys"))
