"""The ways through the code that docs/architecture.md lists exist, and are as short as promised."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from ways import SOURCE, Step, also_entered, way

CDI = "With `inject: cdi`"

WAYS = {
    "From a uevent to a list": 15,
    "Allocate": 9,
    CDI: 4,
    "From a claim to its container": 8,
    "From an edit of the YAML to the services": 9,
}
"""The headings of the lists, and the most modules that a list may name."""

ENTERED = {
    "From a uevent to a list": 30,
    "Allocate": 14,
    "From a claim to its container": 20,
    "From an edit of the YAML to the services": 40,
}
"""The most modules that real work may enter on a way, without those of the public API."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def functions(file: str) -> dict[str, Function]:
    """The functions of a file, methods with their class."""
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    found: dict[str, Function] = {}
    for node in tree.body:
        if isinstance(node, Function):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}": part for part in node.body if isinstance(part, Function)}
    return found


def mentions(file: str, name: str) -> set[str]:
    """Every name and attribute that the body of a function uses."""
    body = ast.walk(functions(file)[name])
    return {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in body
        if isinstance(node, ast.Attribute | ast.Name)
    }


@pytest.mark.parametrize("heading", WAYS)
def test_every_step_of_a_way_is_a_function_of_its_file(heading: str) -> None:
    steps = way(heading)
    assert len(steps) > 3
    missing = [f"{step.file} {step.name}" for step in steps if step.name not in functions(step.file)]
    assert missing == []


def connected(step: Step, steps: list[Step]) -> bool:
    """Whether a step is reached from its caller as the page says."""
    caller = steps[step.caller]
    used = mentions(caller.file, caller.name)
    if step.through is None:
        return step.last in used
    if isinstance(step.through, str):
        return step.through in used and step.through in mentions(step.file, step.name)
    file, name = step.through
    between = mentions(file, name)
    owner, _, last = name.rpartition(".")
    called = last in used or owner in used
    passed_on = (file, name) in {(one.file, one.name) for one in steps[: steps.index(step)]}
    wired = {one.owner.lower() for one in steps if one.owner} & {word.lower() for word in between}
    return step.last in between and (called or passed_on or bool(wired))


@pytest.mark.parametrize("heading", WAYS)
def test_every_step_of_a_way_is_called_by_the_one_before_or_connected_as_stated(heading: str) -> None:
    steps = way(heading)
    assert [f"{step.file} {step.name}" for step in steps[1:] if not connected(step, steps)] == []


@pytest.mark.parametrize(("heading", "most"), WAYS.items())
def test_a_way_passes_through_at_most_the_promised_modules(heading: str, most: int) -> None:
    modules = {step.file for step in way(heading)}
    assert len(modules) <= most, sorted(modules)


def test_allocate_passes_through_at_most_twelve_modules_with_cdi() -> None:
    replaced = "allocation/injection.py"
    modules = {step.file for step in way("Allocate") if step.file != replaced} | {
        step.file for step in way(CDI)
    }
    assert len(modules) <= 12, sorted(modules)


@pytest.mark.parametrize(("heading", "most"), ENTERED.items())
def test_real_work_enters_at_most_the_promised_modules(heading: str, most: int) -> None:
    entered = {step.file for step in way(heading)} | also_entered(heading)
    core = {file for file in entered if not file.startswith("backend/")}
    assert len(core) <= most, sorted(core)
