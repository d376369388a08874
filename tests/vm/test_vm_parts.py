"""How the machine's parts are kept, and what they are made of. Runs on the host, and makes no machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.kernel import serious
from machine import hardware
from machine.image import Image
from machine.packages import requirements
from machine.store import ROOM, CannotMake, Part, Store, Unavailable

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def said():
    return []


@pytest.fixture
def store(tmp_path, said):
    return Store(tmp_path, said.append)


def fill(directory, log):
    (directory / "versions").write_text("tool\t1.2\n")


def test_a_part_is_made_once_and_its_versions_are_said(store, said):
    first = store.part("one", fill, "recipe")
    assert store.part("one", fill, "recipe") == first
    assert first.versions == {"tool": "1.2"}
    assert [line for line in said if line.startswith("making")] == ["making one"]
    assert said[-1] == "downloaded for it: tool 1.2"


def test_another_recipe_makes_a_part_again_and_those_made_of_it_too(store, said):
    def both(recipe):
        below = store.part("below", fill, recipe)
        return store.part("above", fill, "always the same", below)

    assert both("a").fingerprint != both("b").fingerprint
    both("b")
    assert [line for line in said if line.startswith("making")] == ["making below", "making above"] * 2


def test_a_recipe_in_a_file_counts_by_what_it_says(store, tmp_path):
    recipe = tmp_path / "recipe"
    recipe.write_text("one")
    before = store.part("part", fill, recipe).fingerprint
    recipe.touch()
    assert store.part("part", fill, recipe).fingerprint == before
    recipe.write_text("two")
    assert store.part("part", fill, recipe).fingerprint != before


def test_an_interrupted_part_is_made_again_and_the_old_one_not_used(store, tmp_path):
    def interrupted(directory, log):
        (directory / "half").touch()
        raise CannotMake("no network")

    with pytest.raises(CannotMake, match="no network"):
        store.part("part", interrupted, "recipe")
    made = store.part("part", fill, "recipe")
    assert not (made.path / "half").exists()


def test_too_small_a_disk_is_told_before_anything_is_made(store, said, monkeypatch):
    monkeypatch.setattr("machine.store.ROOM", 1 << 60)
    with pytest.raises(Unavailable, match="XDG_CACHE_HOME"):
        store.part("part", fill, "recipe")
    assert said == []
    assert ROOM >= 1 << 30


def test_the_guest_gets_what_the_project_asks_for_and_not_the_project():
    wanted = list(requirements(PROJECT))
    assert any(one.startswith("grpcio>=") for one in wanted)
    assert any(one.startswith("pytest-asyncio>=") for one in wanted)
    assert not [one for one in wanted if one.startswith(("devhost", "hypothesis", "pytest-xdist"))]


def test_a_broken_project_file_is_one_clear_line(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project\n")
    with pytest.raises(CannotMake, match=r"pyproject\.toml"):
        list(requirements(tmp_path))


def test_the_machine_never_uses_kvm(tmp_path):
    arguments = list(hardware.arguments(Image(Part(tmp_path, "")), PROJECT, tmp_path))
    assert arguments[arguments.index("-accel") + 1] == "tcg,thread=multi"
    assert "-enable-kvm" not in arguments


def test_the_guest_cannot_write_to_the_working_tree(tmp_path):
    arguments = list(hardware.arguments(Image(Part(tmp_path, "")), PROJECT, tmp_path))
    (share,) = [one for one in arguments if f"path={PROJECT}," in one]
    assert share.endswith("readonly=on")


def test_a_report_of_the_kernel_fails_a_test_unless_its_cause_is_known():
    known = ["[ cut here ]", "WARNING: CPU: 0 at drm_mm_takedown+0x31", "Call Trace:", "[ end trace 0 ]"]
    other = ["[ cut here ]", "WARNING: CPU: 1 at pci_remove+0x1", "Call Trace:", "[ end trace 0 ]"]
    assert serious([*known, "usb 1-1: new device", "BUG: bad page", *other, *known]) == [
        "BUG: bad page",
        "WARNING: CPU: 1 at pci_remove+0x1",
        "Call Trace:",
    ]
