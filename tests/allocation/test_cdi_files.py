"""The files of CDI specifications: written whole, owned by their name, and nobody else's ever touched."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from devhost.allocation.cdi.files import SpecFiles
from devhost.backend.errors import EnvironmentFailure


@pytest.fixture
def directory(tmp_path):
    found = SpecFiles(tmp_path / "run" / "cdi")
    yield found
    found.close()


@pytest.mark.conformance(52)
async def test_a_file_is_written_whole_and_readable_for_all_and_its_directory_made(directory):
    path = directory.path("example.com/card")
    before = os.umask(0o077)
    try:
        await directory.write(path, '{"a": 1}')
    finally:
        os.umask(before)
    assert path.name == "devhost_example.com_card.json"
    assert path.read_text() == '{"a": 1}'
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert os.listdir(path.parent) == [path.name]


async def test_a_file_that_is_right_is_not_written_again(directory):
    path = directory.path("example.com/card")
    await directory.write(path, "one")
    inode = path.stat().st_ino
    await directory.write(path, "one")
    again = SpecFiles(directory.directory)
    await again.write(path, "one")
    again.close()
    assert path.stat().st_ino == inode
    await directory.write(path, "two")
    assert path.stat().st_ino != inode


async def test_a_file_that_was_changed_or_removed_is_written_again(directory):
    path = directory.path("example.com/card")
    await directory.write(path, "one")
    path.write_text("mine!")
    await directory.write(path, "one")
    assert path.read_text() == "one"
    path.unlink()
    await directory.write(path, "one")
    assert path.read_text() == "one"


async def test_a_write_that_fails_leaves_the_old_file_and_no_rest(directory, monkeypatch):
    path = directory.path("example.com/card")
    await directory.write(path, "one")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        EnvironmentFailure, match=r"cannot write .*_card\.json: No space left on device \(cdi"
    ):
        await directory.write(path, "two")
    assert path.read_text() == "one"
    assert os.listdir(path.parent) == [path.name]


async def test_a_directory_that_cannot_be_one_is_one_clear_line(tmp_path):
    (tmp_path / "file").touch()
    directory = SpecFiles(tmp_path / "file")
    with pytest.raises(
        EnvironmentFailure, match=r"cannot write .*: (Not a directory|File exists) \(cdi\.dir"
    ):
        await directory.write(directory.path("example.com/card"), "one")
    directory.close()


async def test_a_directory_that_hangs_is_given_up_after_the_deadline(tmp_path, monkeypatch):
    over = threading.Event()
    directory = SpecFiles(tmp_path, deadline=0.1)
    monkeypatch.setattr(os, "fsync", lambda descriptor: over.wait())
    with pytest.raises(EnvironmentFailure, match=r"cannot write .*: it did not answer within 0\.1 s"):
        await directory.write(directory.path("example.com/card"), "one")
    over.set()
    directory.close()


async def test_garbage_collection_removes_only_the_own_stale_files(directory):
    stay = [
        "devhost_example.com_card.json",  # configured
        "devhost_example.com_mig-1g.5gb.json",  # could come from a template
        "devhost_example.com_kept.json",  # still in use
        "devhost-0123abcd_example.com_old.json",  # another host's
        "nvidia.com_gpu.json",
        "vendor_devhost_example.com_old.json",
        "devhost_example.com_old.yaml",
        ".devhost_fresh.part",
    ]
    go = ["devhost_example.com_old.json", "devhost_other.com_card.json", ".devhost_stale.part"]
    directory.directory.mkdir(parents=True)
    for name in stay + go:
        (directory.directory / name).touch()
    os.utime(directory.directory / ".devhost_stale.part", (0, 0))
    templates = ["example.com/card", "example.com/mig-{profile}"]
    removed, left = await directory.sweep(templates, ["example.com/kept", "example.com/card", "a.b/absent"])
    assert left == {directory.path("example.com/kept")}  # the others are not kept for a container alone
    assert sorted(path.name for path in removed) == sorted(go)
    assert sorted(os.listdir(directory.directory)) == sorted(stay)


async def test_a_sweep_of_a_directory_that_is_not_there_does_nothing(directory):
    assert await directory.sweep([], []) == ([], set())
    assert not directory.directory.exists()


async def test_hosts_of_different_kubelets_do_not_sweep_each_other(tmp_path):
    own, trial = SpecFiles(tmp_path), SpecFiles(tmp_path, "/tmp/kubelet")
    await own.write(own.path("a.b/c"), "own")
    await trial.write(trial.path("a.b/c"), "trial")
    assert await own.sweep([], []) == ([own.path("a.b/c")], set())
    assert await trial.sweep([], []) == ([trial.path("a.b/c")], set())
    own.close()
    trial.close()


async def test_every_resource_name_makes_a_unique_file_name_within_the_limit(directory):
    names = [f"{'a' * 244}/{'b' * 63}", f"{'a' * 243}c/{'b' * 63}", "a.b/c_d", "a.b/c.d", "a/b"]
    paths = {directory.path(name) for name in names}
    assert len(paths) == len(names)
    for path in paths:
        await directory.write(path, "{}")


@pytest.mark.parametrize(
    "content", ["", "null", "[]", "{}", '{"devices": [1]}', '{"devices": [{"name": "a"}]}', "\0"]
)
async def test_an_earlier_file_that_is_not_sound_counts_as_none(directory, content):
    path = directory.path("a.b/c")
    await directory.write(path, content)
    assert await directory.take_over(path, "a.b/c") == {}
    assert await directory.take_over(Path("/nonexistent/file.json"), "a.b/c") == {}


# what lies where a file of ours should be


async def test_a_link_in_the_place_of_a_file_is_replaced_and_what_it_leads_to_untouched(directory, tmp_path):
    """Even where that holds just what the file should: whoever may write to it could change it."""
    path = directory.path("example.com/card")
    other = tmp_path / "other.json"
    for content in ("mine", "ours"):
        other.write_text(content)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(other)
        await directory.write(path, "ours")
        assert not path.is_symlink()
        assert path.read_text() == "ours"
        assert other.read_text() == content


async def test_a_link_that_came_later_is_noticed(directory, tmp_path):
    path = directory.path("example.com/card")
    await directory.write(path, "ours")
    copy = tmp_path / "copy.json"
    path.rename(copy)
    path.symlink_to(copy)
    await directory.write(path, "ours")
    assert not path.is_symlink()


async def test_a_link_is_swept_and_what_it_leads_to_stays(directory, tmp_path):
    other = tmp_path / "other.json"
    other.write_text("mine")
    path = directory.path("example.com/old")
    path.parent.mkdir(parents=True)
    path.symlink_to(other)
    assert await directory.sweep([], []) == ([path], set())
    assert not path.is_symlink()
    assert other.read_text() == "mine"


async def test_a_file_of_another_program_under_devhosts_name_is_replaced(directory):
    path = directory.path("example.com/card")
    path.parent.mkdir(parents=True)
    path.write_text("by hand")
    await directory.write(path, "ours")
    assert path.read_text() == "ours"


async def test_a_directory_under_our_name_is_named_and_never_cleared_away(directory):
    path = directory.path("example.com/card")
    path.mkdir(parents=True)
    (path / "kept").touch()
    with pytest.raises(EnvironmentFailure, match=r"cannot write .*_card\.json: Is a directory"):
        await directory.write(path, "ours")
    stale = directory.path("example.com/old")
    await directory.write(stale, "old")
    assert await directory.sweep([], []) == ([stale], set())
    assert os.listdir(path.parent) == [path.name]
