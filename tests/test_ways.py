"""The ways through the code that docs/architecture.md lists exist, and are as short as promised."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "devhost"

CDI = "With `inject: cdi`"

WAYS = {"From a uevent to a list": 15, "Allocate": 9, CDI: 4, "From an edit of the YAML to the services": 10}
"""The headings of the lists, and the most modules that a list may name."""

PLACE = r"`(?P<file{n}>[\w/]+\.py)` `(?P<name{n}>[\w.]+)`"
STEP = re.compile(
    r"^\d+\. " + PLACE.format(n="") + r"(?:, through (?:" + PLACE.format(n="2") + r"|`(?P<attribute>\w+)`))?"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Step:
    """One function of a way; ``through`` is another function, or an attribute, that connects it."""

    file: str
    name: str
    through: tuple[str, str] | str | None

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


def way(heading: str) -> list[Step]:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, after = text.partition(f"\n### {heading}\n")
    section = re.split(r"^#{2,3} ", after, maxsplit=1, flags=re.MULTILINE)[0]
    # a step may be wrapped
    section = re.sub(r"\n {3,}", " ", section)
    steps = []
    for line in section.splitlines():
        if re.match(r"\d+\. ", line):
            found = STEP.match(line)
            assert found, f"no file and function: {line}"
            through = (found["file2"], found["name2"]) if found["file2"] else found["attribute"]
            steps.append(Step(found["file"], found["name"], through))
    return steps


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


@pytest.mark.parametrize("heading", WAYS)
def test_every_step_of_a_way_is_called_by_an_earlier_one_or_connected_as_it_says(heading: str) -> None:
    steps = way(heading)
    wrong = []
    for number, step in enumerate(steps[1:], 1):
        earlier = [mentions(one.file, one.name) for one in steps[:number]]
        if isinstance(step.through, tuple):
            good = step.last in mentions(*step.through)
        elif step.through:
            own = mentions(step.file, step.name)
            good = step.through in own and any(step.through in names for names in earlier)
        else:
            good = any(step.last in names for names in earlier)
        if not good:
            wrong.append(f"{step.file} {step.name}")
    assert wrong == []


@pytest.mark.parametrize(("heading", "most"), WAYS.items())
def test_a_way_passes_through_no_more_modules_than_promised(heading: str, most: int) -> None:
    modules = {step.file for step in way(heading)}
    assert len(modules) <= most, sorted(modules)


def test_allocate_passes_through_at_most_twelve_modules_with_cdi() -> None:
    assert len({step.file for step in way("Allocate") + way(CDI)}) <= 12
