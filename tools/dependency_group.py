"""Prints the requirements of a dependency group of ``pyproject.toml``, one per line.

    python tools/dependency_group.py dev

Standard library only: it runs before anything is installed. (PEP 735; ``pip install --group`` does the
same, from pip 25.1 on.)
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"

Groups = Mapping[str, Sequence[str | Mapping[str, str]]]


def requirements(groups: Groups, name: str, within: tuple[str, ...] = ()) -> Iterator[str]:
    """The requirements of a group and of the groups that it includes, in the order of the file.

    Raises:
        KeyError: there is no such group.
        ValueError: groups include each other in a circle.
    """
    key = _normal(name)
    if key in within:
        raise ValueError(f"dependency groups include each other: {' → '.join([*within, key])}")
    for entry in groups[key]:
        if isinstance(entry, str):
            yield entry
        else:
            yield from requirements(groups, entry["include-group"], (*within, key))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(name: str) -> None:
    """Prints the group ``name`` of this project."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    groups = {_normal(key): entries for key, entries in project["dependency-groups"].items()}
    if _normal(name) not in groups:
        sys.exit(f"{PROJECT}: no dependency group {name!r} (known groups: {', '.join(groups)})")
    print("\n".join(dict.fromkeys(requirements(groups, name))))


if __name__ == "__main__":
    main(sys.argv[1])
