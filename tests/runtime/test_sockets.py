"""What a unix socket is found to be, and that only a dead one is replaced."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from devhost.runtime import sockets


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:  # tmp_path is too long for a socket
        yield Path(directory)


@pytest.fixture
def live(place: Path) -> Iterator[Path]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "live"))
        listener.listen(8)
        yield place / "live"


@pytest.fixture
def left(place: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(place / "left"))
    return place / "left"


def test_a_process_that_listens_is_named(live: Path, left: Path) -> None:
    assert sockets.peer(live) == os.getpid()
    assert sockets.described(live).endswith(f", pid {os.getpid()})")
    assert sockets.described(left) == "left"


def test_live_dead_and_absent_sockets_differ(place: Path, live: Path, left: Path) -> None:
    found = {
        path.name: (sockets.live(path), sockets.refuses(path), sockets.gone(path), sockets.dead(path))
        for path in (live, left, place / "absent", place / "absent" / "below")
    }
    assert found == {
        "live": (True, False, False, False),
        "left": (False, True, False, True),
        "absent": (False, False, True, True),
        "below": (False, False, True, True),
    }


def test_a_process_that_is_too_busy_to_accept_still_listens(live: Path) -> None:
    with ExitStack() as stack:
        with suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(str(live))
        assert sockets.live(live) and not sockets.dead(live)
        with pytest.raises(FileExistsError):
            sockets.clear(live)
        assert live.is_socket()


def test_only_a_dead_socket_is_removed(place: Path, live: Path, left: Path) -> None:
    (place / "file").write_text("precious")
    (place / "link").symlink_to("left")
    for path in (left, place / "absent"):
        sockets.clear(path)
        assert not path.exists()
    for path in (live, place / "file", place / "link"):
        with pytest.raises(FileExistsError):
            sockets.clear(path)
    assert live.is_socket() and (place / "file").read_text() == "precious" and (place / "link").is_symlink()


def test_the_longest_path_can_be_bound_and_a_longer_one_is_refused(place: Path) -> None:
    longest = place / ("x" * (sockets.MAX_PATH - len(str(place)) - 1))
    assert sockets.too_long(longest) == ""
    with sockets.bind(longest):
        assert stat.S_IMODE(longest.stat().st_mode) == 0o600
    assert "a path of 108 bytes, and Linux allows 107" in sockets.too_long(Path(f"{longest}y"))


def test_temporary_directories_for_sockets_have_short_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/var/folders/of/a/user/with/a/very/long/login")
    assert sockets.short_place() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert sockets.short_place() is None
