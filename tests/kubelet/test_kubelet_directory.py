"""What devhost makes of the kubelet's directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    """The directory as a container sees it that has it mounted: it stays, whatever becomes of its name."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


def test_a_directory_without_a_socket_is_waited_for(directory: Path) -> None:
    kubelet = KubeletSocket(directory)
    kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (ABSENT, (True, ""))


def test_a_directory_that_is_not_there_is_waited_for(directory: Path) -> None:
    directory.rmdir()
    kubelet = KubeletSocket(directory)
    kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (NO_DIRECTORY, (True, ""))


def test_a_directory_that_was_removed_where_it_is_mounted_is_not_waited_for(
    directory: Path, mount: Path
) -> None:
    kubelet = KubeletSocket(mount)
    kubelet.look()
    assert kubelet.usable() == (True, "")
    directory.rmdir()
    directory.mkdir()
    kubelet.look()
    assert (kubelet.failure, kubelet.usable()) == (REMOVED, (False, REMOVED))


def test_a_file_in_its_place_is_said_to_be_one(directory: Path) -> None:
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


def test_a_directory_that_may_not_be_looked_into_is_said_to_be_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_directory_without_permission_is_one_line_with_the_mend(
    directory: Path, above: bool, mode: int, words: str
) -> None:
    closed = directory.parent if above else directory
    closed.chmod(mode)
    try:
        with pytest.raises(EnvironmentFailure, match=f"^{words} .*{directory.name}.*run devhost as root"):
            check_directory(directory)
    finally:
        closed.chmod(0o700)


def test_a_directory_above_that_may_not_be_searched_is_one_line_with_the_mend(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **_: Any) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(
        EnvironmentFailure, match=r"^cannot reach the kubelet's directory .*: Permission denied \(run devhost"
    ):
        check_directory(directory)


def test_a_second_change_within_one_tick_of_the_clock_is_seen(directory: Path) -> None:
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


def test_a_directory_that_is_read_only_is_told_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.statvfs("/sys").f_flag & os.ST_RDONLY:

        class Flags:
            f_flag = os.ST_RDONLY

        monkeypatch.setattr(os, "statvfs", lambda _: Flags)
        monkeypatch.setattr(os, "access", lambda _, mode: mode == os.R_OK)
    with pytest.raises(EnvironmentFailure, match=r"^cannot write to .*/sys: Read-only file system \(run dev"):
        check_directory(Path("/sys"))
