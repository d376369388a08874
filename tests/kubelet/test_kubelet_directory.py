"""What devhost makes of the kubelet's directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from devhost.kubelet.registration import ABSENT, NO_DIRECTORY, REMOVED, KubeletSocket


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
    assert (kubelet.trouble, kubelet.usable()) == (ABSENT, (True, ""))


def test_a_directory_that_is_not_there_is_waited_for(directory: Path) -> None:
    directory.rmdir()
    kubelet = KubeletSocket(directory)
    kubelet.look()
    assert (kubelet.trouble, kubelet.usable()) == (NO_DIRECTORY, (True, ""))


def test_a_directory_that_was_removed_where_it_is_mounted_is_not_waited_for(
    directory: Path, mount: Path
) -> None:
    kubelet = KubeletSocket(mount)
    kubelet.look()
    assert kubelet.usable() == (True, "")
    directory.rmdir()
    directory.mkdir()
    kubelet.look()
    assert (kubelet.trouble, kubelet.usable()) == (REMOVED, (False, REMOVED))
