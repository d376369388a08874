"""The place of a recorded tree: it is complete or missing, and never overwrites anything."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from devhost_testing.trees import Tree
from kit.backend import Plain

from devhost.backend import Device
from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.cli.recording.recorder import record
from devhost.config.loader import Loaded
from devhost.discovery.catalog import Catalog, Installed
from devhost.planning.settings import Settings

CARD = "sys/class/mycard/card0"


def loaded(find: Callable[[Path], object] = lambda root: None) -> Loaded:
    """No resources, and one backend without devices that calls ``find`` in a scan."""

    class Looker(Plain):
        name = "looker"

        def discover(self) -> list[Device]:
            find(self.context.root)
            return []

    return Loaded(
        Settings(backends={"looker": None}), Catalog({"looker": Installed(Looker, "a test", "1.0", ())})
    )


def cards(root: Path) -> list[str]:
    return [entry.name for entry in (root / "sys/class/mycard").iterdir()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with one card."""
    tree = Tree(tmp_path / "machine")
    tree.device("virtual/mycard/card0", "mycard", files={"serial": "A1"})
    return tree.root


@pytest.fixture
def end(tmp_path: Path) -> Path:
    return tmp_path / "recorded"


def test_a_tree_may_be_written_to_an_empty_directory_only(root: Path, end: Path, tmp_path: Path) -> None:
    end.mkdir()
    configuration = loaded(cards)
    record(configuration, end, root)
    assert (end / CARD).is_symlink()
    with pytest.raises(UsageError, match="is not empty"):
        record(configuration, end, root)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a directory"):
        record(configuration, tmp_path / "file", root)
    with pytest.raises(UsageError, match="create it first"):
        record(configuration, tmp_path / "no/such", root)


def test_an_empty_directory_is_kept_with_its_owner_and_mode(root: Path, end: Path) -> None:
    """A private one stays private; a volume cannot be replaced; the parent may belong to another user."""
    end.mkdir(mode=0o700)
    before = end.stat()
    record(loaded(cards), end, root)
    assert (end.stat().st_ino, end.stat().st_mode) == (before.st_ino, before.st_mode)
    assert not [name for name in os.listdir(end) if name.startswith(".")]


def test_a_new_directory_gets_the_mode_of_the_umask(root: Path, end: Path) -> None:
    before = os.umask(0o027)
    try:
        record(loaded(), end, root)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE(end.stat().st_mode) == 0o750


def test_files_that_appear_in_the_directory_are_kept_and_the_tree_is_discarded(root: Path, end: Path) -> None:
    end.mkdir()
    with pytest.raises(EnvironmentFailure, match=r"not empty \(something else wrote there meanwhile\)"):
        record(loaded(lambda root: (end / "note").write_text("mine")), end, root)
    assert os.listdir(end) == ["note"]


def test_a_recording_is_complete_or_leaves_the_directory_empty(
    root: Path, end: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end.mkdir()
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if target == end / "sys":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(EnvironmentFailure, match="Input/output error"):
        record(loaded(cards), end, root)
    assert os.listdir(end) == []


def test_a_directory_that_cannot_be_created_is_reported_in_one_line(root: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"cannot write /proc/recorded: .*file system") as caught:
        record(loaded(), Path("/proc/recorded"), root)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_reported_in_one_line_and_leaves_nothing_behind(
    root: Path, end: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(EnvironmentFailure, match="No space left on device"):
        record(loaded(lambda root: (root / CARD / "serial").read_text()), end, root)
    assert sorted(os.listdir(end.parent)) == ["machine"]
