"""Entry points of the packages that are installed in directories on ``sys.path``.

``importlib.metadata`` finds them as well, and packages in zip archives besides. But it imports parsers for
mail, CSV and zip files: 2 MB of a budget of 46 MB for the whole process (``docs/performance.md``).
The format is that of https://packaging.python.org/en/latest/specifications/entry-points/.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from devhost.backend.frozen import frozen

_INFORMATION = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}
"""Suffixes of directories of package metadata, each with the file that has name and version."""

_OBJECT = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attribute>[\w.]+)\s*)?(\[.*\]\s*)?")
"""``module:attribute``; text in brackets after it is obsolete and ignored."""


@frozen
class Distribution:
    """An installed package; ``name`` as its metadata spells it."""

    name: str
    version: str


@frozen
class EntryPoint:
    """One line ``name = value`` of a package's ``entry_points.txt``."""

    name: str
    value: str
    dist: Distribution

    def load(self) -> Any:
        """Imports the module and returns the object.

        Raises ``ImportError`` if ``value`` names no object, and any exception that the module raises.
        """
        named = _OBJECT.fullmatch(self.value)
        if named is None:
            raise ImportError(f"{self.value!r} is not module:attribute")
        attributes = (named["attribute"] or "").split(".")
        return reduce(getattr, filter(None, attributes), import_module(named["module"]))


def entry_points(group: str, path: Sequence[str] | None = None) -> list[EntryPoint]:
    """The entry points of a group, of the first package of each name on ``path``, else on ``sys.path``."""
    seen: set[str] = set()
    found = []
    for directory in sys.path if path is None else path:
        for information in _information(directory or "."):
            # the directory is called NAME-VERSION, both escaped: there is one hyphen, or none
            name = re.sub(r"[-_.]+", "_", information.stem.partition("-")[0]).lower()
            if name not in seen:
                seen.add(name)
                found += _of(information, group)
    return found


def _information(directory: str) -> list[Path]:
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(tuple(_INFORMATION)))
    except OSError:  # a zip archive, or nothing
        return []
    return [Path(directory, name) for name in names]


def _of(information: Path, group: str) -> list[EntryPoint]:
    points = list(_lines(_read(information / "entry_points.txt"), group))
    if not points:
        return []
    metadata = _read(information / _INFORMATION[information.suffix])
    header = metadata.partition("\n\n")[0]
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in header.splitlines())}
    stem, _, version = information.stem.partition("-")
    package = Distribution(fields.get("Name", stem), fields.get("Version", version))
    return [EntryPoint(name, value, package) for name, value in points]


def _lines(text: str, group: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]").strip()
        elif section == group and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
