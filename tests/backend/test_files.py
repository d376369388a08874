"""Files that are read while they are written: whole or not at all, and errors that name the right one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from devhost.backend.files import fingerprint, make_directory, replace_file


def test_an_error_names_the_file_and_never_the_unfinished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "wanted"
    file.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    texts = set()
    for _ in range(2):
        with pytest.raises(OSError, match="No space left") as caught:
            replace_file(file, b"new", ".part-of-")
        texts.add(str(caught.value))
    assert texts == {f"[Errno {errno.ENOSPC}] No space left on device: '{file}'"}
    assert (file.read_text(), os.listdir(tmp_path)) == ("old", ["wanted"])


def test_the_content_is_replaced_and_only_the_file_is_left(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "wanted", b"old")
        replace_file(tmp_path / "wanted", b"new", mode=0o640)
    finally:
        os.umask(before)
    assert (tmp_path / "wanted").read_bytes() == b"new"
    assert (tmp_path / "wanted").stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["wanted"]


def test_the_error_for_a_missing_directory_names_the_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, kind in (("none", FileNotFoundError), ("file", NotADirectoryError)):
        with pytest.raises(kind) as caught:
            replace_file(tmp_path / place / "wanted", b"new", ".part-of-")
        assert caught.value.filename == str(tmp_path / place / "wanted")


def test_new_directories_are_readable_by_all_users_with_any_umask(
    tmp_path: Path,
) -> None:
    before = os.umask(0o077)
    try:
        make_directory(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    for name in ("a", "a/b", "a/b/c"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o755


def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o700)
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_fingerprints_are_equal_exactly_if_reading_gives_the_same(tmp_path: Path) -> None:
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    found = [fingerprint(file)]
    for text in ("a", "b", ""):
        file.write_text(text)
        found.append(fingerprint(file))
        file.unlink()
        file.write_text(text)
        assert fingerprint(file) == found[-1]
    os.mkfifo(pipe)
    found += [fingerprint(tmp_path), fingerprint(pipe)]
    assert len(set(found)) == len(found)


def test_a_fingerprint_does_not_read_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert fingerprint(pipe)
    with pytest.raises(OSError, match="No such device or address"):
        os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY)
    os.write(writer, b"text")
    fingerprint(pipe)
    assert os.read(reader, 10) == b"text"
    os.close(writer)
    os.close(reader)
