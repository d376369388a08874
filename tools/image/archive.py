"""The content of an OCI archive: its configuration, and the files that a container sees."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

REF_NAME = "org.opencontainers.image.ref.name"
_GONE = ".wh."
_OPAQUE = ".wh..wh..opq"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory or link of the image; ``layer`` counts from 0, the base."""

    name: str
    layer: int
    info: tarfile.TarInfo


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer; ``size`` is its compressed size in bytes."""

    digest: str
    size: int


class Archive:
    """An image in the format ``oci-archive``.

    The layout is described in https://github.com/opencontainers/image-spec/blob/main/image-layout.md, and how
    layers hide files of others in ``layer.md`` of the same specification.

    Raises:
        OSError, tarfile.TarError, KeyError, ValueError: it is not such an image.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        index = self._document("index.json")
        self.names = [one.get("annotations", {}).get(REF_NAME, "") for one in index["manifests"]]
        manifest = self._document(_blob(index["manifests"][0]["digest"]))
        self.layers = [Layer(layer["digest"], layer["size"]) for layer in manifest["layers"]]
        self.image = self._document(_blob(manifest["config"]["digest"]))
        """The complete configuration of the image, with history and platform."""
        self.config: dict[str, Any] = self.image["config"]
        """The part of the configuration for containers."""

    @cached_property
    def files(self) -> dict[str, Entry]:
        """Everything that a container sees, by path without a leading slash."""
        found: dict[str, Entry] = {}
        for number in range(len(self.layers)):
            for info in self._members(number):
                name = _plain(info.name)
                directory, _, last = name.rpartition("/")
                if last == _OPAQUE:
                    _remove(found, directory, number, itself=False)
                elif last.startswith(_GONE):
                    _remove(found, f"{directory}/{last.removeprefix(_GONE)}".lstrip("/"), number, itself=True)
                elif name:
                    found[name] = Entry(name, number, info)
        return found

    def contents(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
        """Paths and contents of the requested regular files."""
        seen = self.files
        for number in range(len(self.layers)):
            with self._layer(number) as layer:
                for info in layer:
                    name = _plain(info.name)
                    here = name in seen and seen[name].layer == number and info.isreg()
                    if here and wanted(name) and (file := layer.extractfile(info)):
                        yield name, file.read()

    def resolve(self, name: str) -> str:
        """The path with links resolved, as far as their targets exist."""
        parts, done = name.strip("/").split("/"), ""
        for _ in range(1000):
            if not parts:
                return done
            part = parts.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            step = f"{done}/{part}".lstrip("/")
            entry = self.files.get(step)
            if entry is None or not entry.info.issym():
                done = step
                continue
            parts = [*entry.info.linkname.split("/"), *parts]
            done = "" if entry.info.linkname.startswith("/") else done
        raise ValueError(f"{name}: links in a circle")

    def _members(self, number: int) -> Iterator[tarfile.TarInfo]:
        with self._layer(number) as layer:
            yield from layer

    @contextmanager
    def _layer(self, number: int) -> Iterator[tarfile.TarFile]:
        name = _blob(self.layers[number].digest)
        with (
            tarfile.open(self._path) as outer,
            _file(outer, name) as blob,
            tarfile.open(fileobj=blob, mode="r|*") as layer,
        ):
            yield layer

    def _document(self, name: str) -> dict[str, Any]:
        with tarfile.open(self._path) as outer, _file(outer, name) as file:
            return dict(json.loads(file.read()))


def _file(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{archive.name!s}: {name} is not a file")
    return file


def _blob(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"


def _plain(name: str) -> str:
    return name.removeprefix("./").strip("/") if name not in (".", "./") else ""


def _remove(found: dict[str, Entry], name: str, layer: int, *, itself: bool) -> None:
    """Removes what lower layers have at and below a path."""
    below = f"{name}/" if name else ""
    for each in [each for each, entry in found.items() if each.startswith(below) and entry.layer < layer]:
        del found[each]
    if itself:
        found.pop(name, None)
