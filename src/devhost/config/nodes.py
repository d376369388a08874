"""The tree a document is read into: scalars, lists and mappings that know where they stand.

What YAML 1.1 would take a plain scalar for (``no`` is a boolean, ``0403`` an octal number) is kept beside
its text, so that the reader of a value can refuse it with a hint instead of guessing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .diagnostics import Mark, shown

MERGE: Final = "merge"
"""The kind of a plain ``<<``."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value: its text, and the ``kind`` YAML 1.1 takes it for.

    ``kind`` is ``str``, ``int``, ``float``, ``bool``, ``null``, ``timestamp`` or ``merge`` (``<<``).
    """

    mark: Mark
    text: str
    kind: str

    def __str__(self) -> str:
        if self.kind == "str":
            return f"the text {shown(self.text)}"
        if self.kind == "null":
            return "an empty value"
        if self.kind == "bool" and self.text.lower() not in ("true", "false"):
            return f"{self.text}, which YAML reads as true or false"
        what = {"bool": "the value", "timestamp": "the date", MERGE: "the merge key"}.get(
            self.kind, "the number"
        )
        return f"{what} {shown(self.text)[1:-1]}"


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    mark: Mark
    items: tuple[Node, ...]

    def __str__(self) -> str:
        return "a list" if self.items else "an empty list"


class Entry(NamedTuple):
    """A key of a mapping, where it stands, and its value."""

    mark: Mark
    value: Node


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping; keys are text, each one once."""

    mark: Mark
    entries: dict[str, Entry] = field(default_factory=dict)

    def __str__(self) -> str:
        return "a mapping" if self.entries else "an empty mapping"


Node = Scalar | Items | Fields
