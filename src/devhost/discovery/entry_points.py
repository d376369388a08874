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
            stem = os.path.splitext(information)[0]
            name = re.sub(r"[-_.]+", "_", stem.partition("-")[0]).lower()
            if name not in seen:
                seen.add(name)
                found += _of(os.path.join(directory, information), group)
    return found


def _information(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(tuple(_INFORMATION)))
    except OSError:  # a zip archive, or nothing
        return []


def _of(information: str, group: str) -> list[EntryPoint]:
    text = _read(information, "entry_points.txt")
    points = list(_lines(text, group)) if group in text else []
    if not points:
        return []
    named, suffix = os.path.splitext(os.path.basename(information))
    header = _read(information, _INFORMATION[suffix])
    header = header.partition("\n\n")[0]
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in header.splitlines())}
    stem, _, version = named.partition("-")
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


def _read(directory: str, file: str) -> str:
    try:
        with open(os.path.join(directory, file), encoding="utf-8", errors="replace") as opened:
            return opened.read()
    except OSError:
        return ""
