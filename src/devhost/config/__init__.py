"""From YAML to settings, with a position for every diagnostic.

``document`` turns bytes into nodes, ``language`` defines what the file may contain, ``reader`` reads it,
``resources`` reads what depends on a backend. One :class:`~devhost.backend.errors.ConfigError` carries all
diagnostics. ``schema`` prints the language, ``difference`` compares settings.

Import from here: ``load``, ``loads``, ``loader``, ``schema``, ``difference``, ``last_good``, ``watcher``.
May import: ``discovery`` and every package below it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from devhost.backend import Backend
from devhost.discovery.catalog import Catalog
from devhost.planning.settings import Settings

from .diagnostics import Diagnostics, KeyPath
from .document import PIPE_DEADLINE, Fields, Node, parse, read_file, refuse_other_file
from .language import Cdi, DeviceInfo, File, Labels
from .reader import WRONG, read_fields
from .resources import (
    Placed,
    backend_of,
    named_backends,
    read_options,
    read_resources,
    refuse_set_variables,
    refuse_uncounted,
)

__all__ = ["DEFAULT", "CatalogFor", "backend_paths", "load", "loads", "read"]

DEFAULT = Path("/etc/devhost/devhost.yaml")
"""The configuration file if no other is named."""

CatalogFor = Callable[[Sequence[Path], Collection[str]], Catalog]
"""Makes the catalog for the directories of ``backendPaths`` and the backends that a file names;
``devhost.discovery.catalog.load`` is one."""


def load(path: Path, catalog_for: CatalogFor, *, pipe_deadline: float = PIPE_DEADLINE) -> Settings:
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
    """Reads a configuration from memory. See :func:`load`.

    ``file_name`` is what diagnostics call it. Relative ``backendPaths`` begin in ``directory``, by default
    that of ``file_name``.
    """
    diagnostics = Diagnostics(file_name)
    data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    directory = directory or Path(file_name).parent
    root = _parsed(data, diagnostics)
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
    refuse_set_variables(entries, options, catalog)
    refuse_uncounted(entries, options)
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
    root = _parsed(read(path), diagnostics)
    scratch = Diagnostics(str(path))
    found = read_fields(root, File, KeyPath(scratch)).get("backend_paths")
    at_fault = [one for one in scratch.found if one[1].startswith("backendPaths")]
    if at_fault:
        diagnostics.found = at_fault
        raise diagnostics.error()
    return tuple(path.parent / directory for directory in found or ())


def _parsed(data: bytes, diagnostics: Diagnostics) -> Node:
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
