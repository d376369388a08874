"""What the contract kit does to a tree, and undoes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from contract_backends import cards

from devhost.testing import faults


def test_of_a_huge_tree_only_some_files_are_damaged(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:04}").touch()
    assert 100 <= len(faults.victims(tmp_path)) <= faults.MOST_VICTIMS
    assert faults.victims(tmp_path / "nowhere") == []


def test_directories_are_listed_in_the_order_of_the_test_and_as_before_afterwards(tmp_path: Path) -> None:
    for name in "bca":
        (tmp_path / name).touch()
    for backwards, order in ((False, list("abc")), (True, list("cba"))):
        with faults.listing(backwards=backwards):
            assert [path.name for path in tmp_path.iterdir()] == order
            assert [path.name for path in tmp_path.glob("*")] == order
            assert next(os.walk(tmp_path))[2] == order
            with os.scandir(tmp_path) as entries:
                assert next(entries).name == order[0]
    assert sorted(os.listdir(tmp_path)) == list("abc")


def texts(root: Path) -> dict[Path, str]:
    """Every file's text, and where every link leads."""
    return {
        path: str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("what", faults.DAMAGES)
def test_a_damaged_tree_is_mended_again(tmp_path: Path, what: str) -> None:
    root = tmp_path / "root"
    cards(root)
    before = texts(root)
    for path in faults.victims(root):
        with faults.damaged(path, what, tmp_path / "kept"):
            assert path.name != "serial" or texts(root) != before
    assert texts(root) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["root"]
