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
        for named, suffix in _information(directory or "."):
            # the directory is called NAME-VERSION, both escaped: there is one hyphen, or none
            name = re.sub(r"[-_.]+", "_", named.partition("-")[0]).lower()
            if name not in seen:
                seen.add(name)
                found += _of(f"{directory or '.'}/{named}{suffix}", named, suffix, group)
    return found


def _information(directory: str) -> list[tuple[str, str]]:
    """The names of the directories of package metadata, each in front of its suffix and the suffix."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:  # a zip archive, or nothing
        return []
    return [(name.removesuffix(end), end) for name in names for end in _INFORMATION if name.endswith(end)]


def _of(directory: str, named: str, suffix: str, group: str) -> list[EntryPoint]:
    text = _read(f"{directory}/entry_points.txt")
    points = list(_lines(text, group)) if group in text else []
    if not points:
        return []
    header = _read(f"{directory}/{_INFORMATION[suffix]}").partition("\n\n")[0]
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


def _read(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:  # noqa: PTH123 - a Path takes twice as long
            return opened.read()
    except OSError:
        return ""
