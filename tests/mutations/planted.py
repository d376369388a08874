"""Planted faults: small wrong changes, each with the test that has to notice it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(__file__).resolve().parent
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, ten times faster
DEEPEST = 40
"""Columns that a block may be indented in its file beyond the way it is written here."""


class DoesNotApply(Exception):
    """The text to change is not exactly once in its file."""


@dataclass(frozen=True)
class Fault:
    """One entry of a file: where ``old`` becomes ``new``, the test ``test`` has to fail."""

    area: str
    file: str
    old: str
    new: str
    test: str

    def __str__(self) -> str:
        return f"{self.area}: {self.file}: {self.old.strip().splitlines()[0].strip()}"

    def applied(self, text: str) -> str:
        """The text of the file with the fault in it.

        Raises:
            DoesNotApply: ``old`` is not exactly once in it.
        """
        for old, new in self._spellings():
            count = text.count(old)
            if count == 1:
                return text.replace(old, new)
            if count:
                raise DoesNotApply(f"does not apply: the text is there {count} times")
        raise DoesNotApply("does not apply: the text is not there")

    def _spellings(self) -> Iterator[tuple[str, str]]:
        """As it is written; without a last line end; then indented, which a block of YAML does not keep."""
        yield self.old, self.new
        if self.old.endswith("\n"):
            yield self.old.rstrip("\n"), self.new.rstrip("\n")
        for width in range(1, DEEPEST):
            prefix = " " * width
            yield (
                textwrap.indent(f"{self.old.rstrip()}\n", prefix),
                textwrap.indent(f"{self.new.rstrip()}\n", prefix),
            )


def faults() -> list[Fault]:
    """Every planted fault, in the order of the files."""
    return [
        Fault(file.stem, **{key: str(entry[key]) for key in ("file", "old", "new", "test")})
        for file in sorted(PLACE.glob("*.yaml"))
        for entry in yaml.load(file.read_text(encoding="utf-8"), LOADER) or ()
    ]
