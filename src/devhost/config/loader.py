"""From the file to settings, and to the backends that they were checked against."""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from devhost.backend import Backend
from devhost.backend.errors import ConfigError, Diagnostic, counted
from devhost.backend.files import Fingerprint, digest, fingerprint
from devhost.backend.frozen import frozen
from devhost.discovery.catalog import Catalog
from devhost.discovery.catalog import load as load_catalog
from devhost.planning.settings import Settings

from .diagnostics import Diagnostics, KeyPath
from .document import PIPE_DEADLINE, Fields, Node, parse, read_file, refuse_other_file
from .language import Cdi, DeviceInfo, File, Labels
from .last_good import HEADER_LINES, Accepted, Copy, LastGood, Unusable
from .reader import WRONG, read_fields
from .resources import (
    Placed,
    backend_of,
    named_backends,
    read_options,
    read_resources,
    refuse_by_options,
)

DEFAULT = Path("/etc/devhost/devhost.yaml")
"""The configuration file if no other is named."""

CatalogFor = Callable[[Sequence[Path], Collection[str]], Catalog]
"""Makes the catalog for the directories of ``backendPaths`` and the backends that a file names;
``devhost.discovery.catalog.load`` is one."""


@frozen
class Copied:
    """The copy that is used because the file was refused for these ``complaints``.

    ``file`` is the copy, ``at`` when it was accepted (RFC 3339, UTC).
    """

    file: Path
    at: str
    complaints: tuple[str, ...]


@frozen
class Loaded:
    """Settings, the catalog they refer to, and the fingerprint of the file just before it was read.

    ``accepted`` is the file's content, for :meth:`~devhost.config.last_good.LastGood.keep`; ``None`` if it is
    not a regular file. ``copied`` is ``None`` if the file itself was read.
    """

    settings: Settings
    catalog: Catalog
    seen: Fingerprint = None
    accepted: Accepted | None = None
    copied: Copied | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of the file; empty if it was not read from a regular file."""
        return digest(self.seen)


def load(path: Path) -> Loaded:
    """Reads a configuration and finds its backends. A ``ConfigError`` has all that is wrong with it."""
    seen = fingerprint(path)  # before reading, so that an edit in between is noticed later
    data = read(path)
    return replace(_parsed(data, path, path), seen=seen, accepted=_accepted(path, data))


def load_or_copy(path: Path, last_good: LastGood) -> Loaded:
    """Reads a configuration or, where that is refused, the copy of the one that was accepted last.

    Raises ``ConfigError`` if the file is refused and there is no copy that can be used. The last diagnostic
    is about the copy, if there is one.
    """
    seen = fingerprint(path)
    try:
        return load(path)
    except ConfigError as error:
        refused = error.diagnostics
    try:
        copy = last_good.read()
    except Unusable as error:
        text = f"this copy of the last accepted configuration cannot be used: {error.message}"
        raise ConfigError((*refused, Diagnostic(str(last_good.file), 0, 0, "", text, error.hint))) from error
    if copy is None:
        raise ConfigError(refused)
    try:
        loaded = _parsed(copy.data, copy.file, path)
    except ConfigError as error:
        raise ConfigError((*refused, _neither(copy, error.diagnostics))) from error
    return replace(loaded, seen=seen, copied=Copied(copy.file, copy.at, tuple(map(str, refused))))


def _parsed(data: bytes, file: Path, path: Path) -> Loaded:
    """The settings in ``data``, for the configuration at ``path``; diagnostics name ``file``."""
    found: list[Catalog] = []

    def catalog_for(paths: Sequence[Path], wanted: Collection[str]) -> Catalog:
        found.append(load_catalog(paths, wanted))
        return found[-1]

    settings = loads(data, str(file), catalog_for, path.parent)
    return Loaded(settings, found[-1] if found else Catalog())


def _accepted(path: Path, data: bytes) -> Accepted | None:
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return Accepted(data, stat.S_IMODE(mode)) if stat.S_ISREG(mode) else None


def _neither(copy: Copy, diagnostics: Sequence[Diagnostic]) -> Diagnostic:
    """Why the copy cannot be used either, in one line."""
    first, more = diagnostics[0], len(diagnostics) - 1
    rest = f"; and {counted(more, 'more error')}" if more else ""
    text = (
        f"this copy of the configuration accepted at {copy.at} cannot be used either: {first.message}{rest}"
    )
    return replace(first, line=first.line and first.line + HEADER_LINES, message=text)


def load_or_everything(path: Path | None) -> Loaded:
    """The configuration at ``path``, or the default one, or an empty one.

    If it has no resources, it names every installed backend that has options in it or needs none. Raises
    ``ConfigError`` if a file was found and is wrong, or ``path`` does not exist.
    """
    file = path or (DEFAULT if DEFAULT.exists() else None)
    loaded = load(file) if file else Loaded(Settings(), Catalog())
    return loaded if loaded.settings.resources else _with_every_backend(loaded.settings)


def _with_every_backend(settings: Settings) -> Loaded:
    found = load_catalog(settings.backend_paths)
    options = dict(settings.backends)
    for name, entry in found.installed.items():
        if name in options:
            continue
        try:
            options[name] = entry.backend.Options()
        except (TypeError, ValueError):
            continue  # it has an option without a default
    usable = {name: entry for name, entry in found.installed.items() if name in options}
    return Loaded(replace(settings, backends=options), Catalog(usable, found.refused))


def load_settings(path: Path, catalog_for: CatalogFor, *, pipe_deadline: float = PIPE_DEADLINE) -> Settings:
    """Reads a configuration file.

    Relative ``backendPaths`` in the file are relative to its directory. ``catalog_for`` is called once, with
    the file's ``backendPaths`` and the names of its backends. For ``pipe_deadline`` see :func:`read`. Raises
    ``ConfigError`` with everything that is wrong with the file, in file order.
    """
    return loads(read(path, pipe_deadline=pipe_deadline), str(path), catalog_for)


def read(path: Path, *, pipe_deadline: float = PIPE_DEADLINE) -> bytes:
    """The bytes of a configuration file, for :func:`loads`.

    It waits ``pipe_deadline`` seconds for data if the file is a pipe. Raises ``ConfigError`` if it cannot be
    read.
    """
    least = "create it with at least `version: 1` and `resources: []`"
    hint = f"{least}, or name yours with --config FILE" if path == DEFAULT else f"check the path, or {least}"
    return read_file(path, Diagnostics(str(path)), if_missing=hint, pipe_deadline=pipe_deadline)


def loads(
    text: str | bytes, file_name: str, catalog_for: CatalogFor, directory: Path | None = None
) -> Settings:
    """Reads a configuration from memory. See :func:`load_settings`.

    ``file_name`` is what diagnostics call it. Relative ``backendPaths`` begin in ``directory``, by default
    that of ``file_name``.
    """
    diagnostics = Diagnostics(file_name)
    data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    directory = directory or Path(file_name).parent
    root = _root(data, diagnostics)
    place = KeyPath(diagnostics)
    values = read_fields(root, File, place)
    paths = tuple(directory / path for path in values.get("backend_paths", ()))
    given = values.get("backends", {})
    catalog = catalog_for(paths, named_backends(values.get("resources", ())) | given.keys())
    dra = values.get("dra")
    has_dra = isinstance(root, Fields) and "dra" in root.entries  # a faulty one has been reported
    nodes = values.get("resources", ())
    driver = dra.driver if dra else ""
    entries, skipped = read_resources(nodes, catalog, place.key("resources"), has_dra, driver)
    unread = {entry.backend for entry in skipped}
    known = {name: node for name, node in given.items() if name not in unread}
    options = _given_options(known, catalog, place.key("backends"))
    for entry in entries:
        name = entry.settings.backend
        backend = catalog.get(name)
        if name not in options and name not in given and backend is not None:
            options[name] = _default_options(entry, backend)
        refuse_by_options(entry, options, catalog)
    if diagnostics.found:
        raise diagnostics.error()
    cdi = values.get("cdi", Cdi())
    info = values.get("device_info", DeviceInfo())
    labels = values.get("labels", Labels())
    return Settings(
        tuple(entry.settings for entry in entries),
        options,
        paths,
        cdi.directory,
        info.directory if info.write else None,
        labels.directory,
        labels.write,
        skipped,
        driver,
        dra is not None and dra.metadata,
        dra is not None and dra.status,
    )


def backend_paths(path: Path) -> tuple[Path, ...]:
    """Only the ``backendPaths`` of a file; ``ConfigError`` only if these, or its YAML, are wrong."""
    diagnostics = Diagnostics(str(path))
    root = _root(read(path), diagnostics)
    scratch = Diagnostics(str(path))
    found = read_fields(root, File, KeyPath(scratch)).get("backend_paths")
    at_fault = [one for one in scratch.found if one[1].startswith("backendPaths")]
    if at_fault:
        diagnostics.found = at_fault
        raise diagnostics.error()
    return tuple(path.parent / directory for directory in found or ())


def _root(data: bytes, diagnostics: Diagnostics) -> Node:
    root = parse(data, diagnostics)
    refuse_other_file(root, diagnostics)
    return root


def _given_options(given: dict[str, Node], catalog: Catalog, place: KeyPath) -> dict[str, Any]:
    options = {}
    for name, node in given.items():
        here = place.key(name)
        backend = backend_of(name, node, catalog, here)
        if backend is not None:
            value = read_options(node, backend, here)
            if value is not WRONG:
                options[name] = value
    return options


def _default_options(entry: Placed, backend: type[Backend]) -> Any:
    """The options of a backend that an entry needs and the file does not configure."""
    here = KeyPath(entry.place.diagnostics, f"backends.{backend.name}")
    return read_options(Fields(entry.mark), backend, here)
