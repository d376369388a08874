"""The contents of an image, with sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .archive import Archive

STATUS = "var/lib/dpkg/status"
LISTS = "var/lib/dpkg/info/"
PACKAGES = "opt/devhost/lib/"
MEGABYTE = 1_000_000


def table(archive: Archive, rows: int = 12) -> list[str]:
    """Lines for people: the layers, and the largest Debian and Python packages."""
    sizes = layers(archive)
    travel = sum(layer.size for layer in archive.layers)
    lines = [
        f"{_mb(sum(sizes))} unpacked, {_mb(travel)} compressed, {len(archive.files)} files and directories"
    ]
    names = ("base", "Debian's Python and libraries", "devhost")
    for number, (layer, size) in enumerate(zip(archive.layers, sizes, strict=True)):
        name = names[number] if len(names) == len(sizes) else "layer"
        lines.append(f"  {_mb(size):>9} {_mb(layer.size):>9} compressed  {name}  {layer.digest[:19]}")
    for title, parts in (("Debian's packages", debian(archive)), ("devhost's environment", python(archive))):
        lines.append(f"  {title}: {_mb(sum(parts.values()))}; the largest:")
        lines += [f"  {_mb(size):>9} {name}" for name, size in parts.most_common(rows)]
    return lines


def layers(archive: Archive) -> list[int]:
    """The size of the files that a container sees in bytes, by layer."""
    sizes = [0] * len(archive.layers)
    for entry in archive.files.values():
        sizes[entry.layer] += entry.info.size
    return sizes


def debian(archive: Archive) -> Counter[str]:
    """The size of the files of each Debian package in the image, in bytes."""
    sizes: Counter[str] = Counter()
    counted: set[str] = set()
    lists = archive.contents(lambda name: name.startswith(LISTS) and name.endswith(".list"))
    for name, text in lists:
        package = name.removeprefix(LISTS).removesuffix(".list").partition(":")[0]
        sizes[package] = 0
        for line in text.decode().splitlines():
            # a package lists /lib/x, which is usr/lib/x in the image
            path = _merged(line.lstrip("/"))
            entry = archive.files.get(path)
            if entry is not None and entry.info.isreg() and path not in counted:
                counted.add(path)
                sizes[package] += entry.info.size
    return sizes


def python(archive: Archive) -> Counter[str]:
    """The size of each directory and module in devhost's environment in bytes, including bytecode."""
    sizes: Counter[str] = Counter()
    for name, entry in archive.files.items():
        _, site, inside = name.partition("/site-packages/")
        if name.startswith(PACKAGES) and site and entry.info.isreg():
            sizes[_distribution(inside)] += entry.info.size
    return sizes


def _distribution(path: str) -> str:
    top, _, rest = path.partition("/")
    if top == "__pycache__":
        top = rest
    return top.partition(".")[0].partition("-")[0]


def _merged(path: str) -> str:
    first = path.partition("/")[0]
    return f"usr/{path}" if first in ("bin", "sbin", "lib", "lib64") else path


def _mb(size: int) -> str:
    return f"{size / MEGABYTE:.1f} MB"


def packages(archive: Archive) -> Iterator[tuple[str, str]]:
    """Names and versions of the Debian packages in the image."""
    for _, text in archive.contents(lambda name: name == STATUS):
        for paragraph in text.decode().split("\n\n"):
            fields = dict(
                line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "
            )
            if "Package" in fields:
                yield fields["Package"], fields["Version"]
