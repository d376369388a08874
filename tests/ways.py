"""The ways through the code that docs/architecture.md shows, read from the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "devhost"

PLACE = r"`(?P<file{n}>[\w/]+\.py)` `(?P<name{n}>[\w.]+)`"
STEP = re.compile(
    r"^\d+\. "
    + PLACE.format(n="")
    + r"(?:, from step (?P<caller>\d+))?(?:, through (?:"
    + PLACE.format(n="2")
    + r"|`(?P<attribute>\w+)`))?[:.]"
)


@dataclass(frozen=True)
class Step:
    """One function of a way.

    ``caller`` is the index of the step that calls it. ``through`` is another function, or an attribute, that
    connects the two.
    """

    file: str
    name: str
    caller: int
    through: tuple[str, str] | str | None

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def owner(self) -> str:
        return self.name.rpartition(".")[0]


def section(heading: str) -> str:
    """The text below a heading of the page."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, after = text.partition(f"\n### {heading}\n")
    return re.split(r"^#{2,3} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def way(heading: str) -> list[Step]:
    """The steps of a way."""
    # a step may be wrapped
    lines = re.sub(r"\n {3,}", " ", section(heading)).splitlines()
    steps: list[Step] = []
    for line in lines:
        if re.match(r"\d+\. ", line):
            found = STEP.match(line)
            assert found, f"no file and function: {line}"
            through = (found["file2"], found["name2"]) if found["file2"] else found["attribute"]
            caller = int(found["caller"] or len(steps)) - 1
            assert caller < len(steps), line
            steps.append(Step(found["file"], found["name"], caller, through))
    return steps


def also_entered(heading: str) -> set[str]:
    """The modules that the page lists below a way as entered, too: a line for each package."""
    _, mark, after = section(heading).partition("\nAlso entered:\n\n")
    assert mark, heading
    lines = re.findall(r"^- `(\w+)/`: ((?:.|\n  )*)$", after.partition("\n\n")[0], re.MULTILINE)
    return {f"{package}/{file}" for package, files in lines for file in re.findall(r"`([\w/]+\.py)`", files)}
