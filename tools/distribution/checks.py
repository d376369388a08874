"""Checks the files of a release: content, licence, description, types, and pins to each other."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

from . import build


class Wheel:
    """The content of a wheel."""

    def __init__(self, file: Path) -> None:
        with zipfile.ZipFile(file) as archive:
            self.names = frozenset(archive.namelist())
            self.information = next(name for name in self.names if name.endswith(".dist-info/METADATA"))[:-9]
            self.metadata: Message = message_from_bytes(archive.read(f"{self.information}/METADATA"))
            entry_points = f"{self.information}/entry_points.txt"
            self.entry_points = archive.read(entry_points).decode() if entry_points in self.names else ""

    @property
    def name(self) -> str:
        """The name of the distribution."""
        return str(self.metadata["Name"])

    @property
    def requirements(self) -> list[str]:
        """Every requirement; those of extras have their marker."""
        return [str(value) for value in self.metadata.get_all("Requires-Dist", [])]


def complaints(directory: Path, packages: dict[str, Path], version: str) -> Iterator[str]:
    """The errors in the files of a release, one line each.

    Args:
        directory: the directory of the files.
        packages: source packages by distribution, including the host: ``{"devhost-gpu": …/src/devhost_gpu}``.
        version: the expected version of all of them.
    """
    stems = {name: f"{name.replace('-', '_')}-{version}" for name in packages}
    wanted = {f"{stem}{end}" for stem in stems.values() for end in ("-py3-none-any.whl", ".tar.gz")}
    there = {file.name for file in build.distributions(directory)}
    yield from (f"{name} is missing" for name in sorted(wanted - there))
    yield from (f"{name} is not part of the release" for name in sorted(there - wanted))
    for name, source in packages.items():
        file = directory / f"{stems[name]}-py3-none-any.whl"
        if file.name in there:
            wheel = Wheel(file)
            found = [*_described(wheel, version), *_whole(wheel, source), *_pinned(wheel, packages, version)]
            yield from (f"{file.name}: {complaint}" for complaint in found)


def _described(wheel: Wheel, version: str) -> Iterator[str]:
    metadata = wheel.metadata
    if metadata["Version"] != version:
        yield f"has version {metadata['Version']}"
    if metadata["License-Expression"] != "Apache-2.0":
        yield "does not name its licence"
    if f"{wheel.information}/licenses/LICENSE" not in wheel.names:
        yield "has no licence file"
    if metadata["Description-Content-Type"] != "text/markdown" or not str(metadata.get_payload()).strip():
        yield "has no description"
    for key in ("Summary", "Requires-Python"):
        if not metadata[key]:
            yield f"has no {key}"


def _whole(wheel: Wheel, source: Path) -> Iterator[str]:
    """Checks that every source file of the package is in the wheel, and py.typed."""
    if not (source / "py.typed").exists():
        yield "is not typed: py.typed is missing"
    files = (file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    missing = sorted({str(file.relative_to(source.parent)) for file in files} - wheel.names)
    if missing:
        yield f"lacks {', '.join(missing)}"
    others = sorted(
        name for name in wheel.names if name.partition("/")[0] not in (source.name, wheel.information)
    )
    if others:
        yield f"contains files of other packages: {', '.join(others)}"


def _pinned(wheel: Wheel, packages: dict[str, Path], version: str) -> Iterator[str]:
    """A package must require exactly this host, and the host's extras exactly these packages."""
    others = sorted(set(packages) - {"devhost"})
    if wheel.name != "devhost":
        if f"devhost=={version}" not in wheel.requirements:
            yield f"does not require devhost=={version}"
        if f" = {wheel.name.replace('-', '_')}" not in wheel.entry_points:
            yield "has no entry point"
        return
    for other in others:
        for extra in (other.removeprefix("devhost-"), "all"):
            if not any(_wants(line, other, version, extra) for line in wheel.requirements):
                yield f"its extra {extra!r} does not require {other}=={version}"


def _wants(requirement: str, name: str, version: str, extra: str) -> bool:
    wanted, _, marker = requirement.partition(";")
    pinned, _, number = wanted.strip().partition("==")
    return (
        pinned.partition("[")[0] == name
        and number == version
        and marker.replace('"', "'").strip() == f"extra == '{extra}'"
    )
