"""Damage to a tree in the contract, and its reversal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from contract_backends import cards
from devhost_testing import faults


def test_in_a_large_tree_only_some_files_are_damaged(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:04}").touch()
    assert 100 <= len(faults.victims(tmp_path)) <= faults.MOST_VICTIMS
    assert faults.victims(tmp_path / "nowhere") == []


@pytest.mark.parametrize("count", [1, 20, 21, 40, 60, 135, 150, 1000])
def test_the_sample_has_every_kind_of_damage_and_the_rest_has_the_others(tmp_path: Path, count: int) -> None:
    for number in range(count):
        (tmp_path / f"{number:04}").touch()
    sample, others = faults.cases(tmp_path)
    assert len(sample) <= faults.SAMPLE
    assert {what for _, what in sample} == set(faults.DAMAGES)
    assert not set(sample) & set(others)
    every = {(path, what) for path in faults.victims(tmp_path) for what in faults.DAMAGES}
    assert {*sample, *others} == every
    assert others or count <= faults.SAMPLE // len(faults.DAMAGES)


def test_directories_are_listed_in_the_given_order_only_meanwhile(tmp_path: Path) -> None:
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
    """The text of every file, and the target of every link."""
    return {
        path: str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("what", faults.DAMAGES)
def test_a_damaged_tree_is_restored(tmp_path: Path, what: str) -> None:
    root = tmp_path / "root"
    cards(root)
    before = texts(root)
    for path in faults.victims(root):
        with faults.damaged(path, what, tmp_path / "kept"):
            assert path.name != "serial" or texts(root) != before
    assert texts(root) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["root"]
