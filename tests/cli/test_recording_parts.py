"""The parts of a recording: tracing, writing links, and plain files as device nodes."""

# backends look in every way there is, and so do these tests:
# ruff: noqa: PTH116

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from devhost.backend.sysfs import node_number
from devhost.cli.recording.capture import contained
from devhost.cli.recording.trace import Access, tracing


@pytest.mark.parametrize(
    ("directory", "target", "written"),
    [
        ("/sys/class/net", "../../devices/x/net/eth0", "../../devices/x/net/eth0"),
        ("/dev", "/proc/self/fd", "../proc/self/fd"),
        ("/a/b", "/", "../.."),
        ("/a", "../../../x", "../x"),
        ("", "usr/bin", "usr/bin"),
        ("", "/", "."),
    ],
)
def test_a_link_has_the_same_target_as_seen_from_the_root(directory: str, target: str, written: str) -> None:
    assert contained(directory, target) == written


def test_accesses_are_traced_only_in_other_threads_and_only_meanwhile(tmp_path: Path) -> None:
    def look() -> None:
        os.stat(tmp_path)
        os.listdir(tmp_path)

    def elsewhere() -> None:
        thread = threading.Thread(target=look, name="elsewhere")
        thread.start()
        thread.join()

    before = (os.stat, os.lstat, os.readlink, os.access, os.open)
    with tracing() as trace:
        look()
        elsewhere()
    elsewhere()
    path = str(tmp_path)
    assert trace.accesses == {(Access.ASKED, path): "elsewhere", (Access.LISTED, path): "elsewhere"}
    assert (os.stat, os.lstat, os.readlink, os.access, os.open) == before


@pytest.mark.parametrize("path", [None, 3.5, "", b"", "\0", 1 << 20])
def test_tracing_does_not_change_the_error_for_an_invalid_path(path: object) -> None:
    caught: list[BaseException] = []

    def look() -> None:
        try:
            os.lstat(path)  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 - which one is what the test asks
            caught.append(error)

    with tracing():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    with pytest.raises(type(caught[0])):
        os.lstat(path)  # type: ignore[arg-type]


def test_a_plain_file_is_a_node_only_if_it_contains_a_number(tmp_path: Path) -> None:
    texts = {
        "": "",
        "c10:229\n": "c10:229",
        "b8:0": "b8:0",
        "c10:229\nx\n": "",
        "d1:1": "",
        "c:1": "",
        "\0": "",
    }
    for text, number in texts.items():
        (tmp_path / "node").write_text(text)
        assert node_number(str(tmp_path / "node")) == number
    assert node_number("/dev/null") == "c1:3"
    assert node_number(str(tmp_path)) == node_number(str(tmp_path / "nothing")) == node_number("\0") == ""
