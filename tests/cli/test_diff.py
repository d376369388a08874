"""``devhost diff``: what an edit changes on one or several machines, and the exit code for a pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TOY, BIG = "example.com/toy", "example.com/big"


@pytest.fixture
def edit(toys: Any) -> Any:
    """Writes the file before and the file after an edit; compares them on some machines."""

    def compare(
        old: list[str], new: list[str], *options: str, roots: tuple[Path, ...] = ()
    ) -> tuple[int, str, str]:
        files = []
        for name, resources in (("old", old), ("new", new)):
            toys.write(*resources)
            files.append(toys.config.with_name(f"{name}.yaml"))
            files[-1].write_text(toys.config.read_text())
        given = [word for root in roots or (toys.root,) for word in ("--root", str(root))]
        done = toys.call("diff", *map(str, files), *given, *options)
        return done.returncode, done.stdout, done.stderr

    return compare


def test_an_edit_that_takes_all_devices_of_a_resource_fails(edit: Any) -> None:
    old = [f"name: {BIG}, backend: toy, where: {{model: x200}}", f"name: {TOY}, backend: toy"]
    new = [old[0].replace("x200", "x300"), old[1]]
    code, text, errors = edit(old, new)
    assert (code, errors) == (1, "")
    assert [line.split() for line in text.splitlines()] == [
        ["RESOURCE", "BEFORE", "AFTER", "CHANGE"],
        [BIG, "1", "0", "loses", "all", "devices:", "toy/two"],
        [TOY, "1", "2", "with", "toy/two"],
        ["0", "resources", "do", "not", "change"],
    ]
    code, text, _ = edit(new, old)
    assert code == 0, "a resource with fewer devices is no loss of all"
    assert "without toy/two" in text


def test_a_removed_entry_loses_all_devices_and_a_new_one_does_not(edit: Any) -> None:
    old, new = [f"name: {TOY}, backend: toy"], [f"name: {BIG}, backend: toy"]
    code, text, _ = edit(old, new, "--output=json")
    assert code == 1
    assert json.loads(text) == [
        {**one, "root": json.loads(text)[0]["root"]}
        for one in (
            {"resource": BIG, "before": [], "after": ["toy/one", "toy/two"], "losesAll": False},
            {"resource": TOY, "before": ["toy/one", "toy/two"], "after": [], "losesAll": True},
        )
    ]


def test_an_edit_without_effect_succeeds(edit: Any) -> None:
    same = [f"name: {TOY}, backend: toy"]
    assert edit(same, [f"{same[0]}, share: {{replicas: 4}}"]) == (0, "1 resource does not change\n", "")
    nothing = [f"name: {BIG}, backend: toy, where: {{model: x300}}, optional: true"]
    assert edit(nothing, nothing)[0] == 0, "it had no devices before"


def test_several_machines_are_compared_one_by_one(edit: Any, toys: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "toys").write_text("three=x100")
    old, new = [f"name: {TOY}, backend: toy"], [f"name: {TOY}, backend: toy, where: {{model: x200}}"]
    code, text, _ = edit(old, new, roots=(toys.root, other))
    assert code == 1
    _, first, second, _ = text.splitlines()
    assert first.split()[:4] == [str(toys.root), TOY, "2", "1"]
    assert second.split()[:4] == [str(other), TOY, "1", "0"]


def test_what_cannot_be_compared_has_exit_code_2(edit: Any, toys: Any, tmp_path: Path) -> None:
    good = [f"name: {TOY}, backend: toy"]
    code, _, errors = edit(good, [f"name: {TOY}, backend: toy, where: {{sysName: x}}"])
    assert code == 2
    assert "new.yaml:" in errors
    assert edit(good, good, roots=(tmp_path / "none",))[0] == 2
    done = toys.call("diff", str(toys.config), str(tmp_path / "missing.yaml"), "--root", str(toys.root))
    assert done.returncode == 2
    (toys.root / "toys").write_text("")
    assert edit(good, good) == (2, "", f"devhost: {toys.root} has neither sys nor dev\n")
    (toys.root / "toys").unlink()
    code, _, errors = edit(good, good)
    assert code == 2, "a machine whose devices are unknown may lose them all"
    assert errors.startswith(f"devhost: {toys.root}: backend toy failed")
    assert errors.count("\n") == 1
