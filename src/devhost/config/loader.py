"""A configuration together with the backends it was checked against."""

from __future__ import annotations

import stat
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from devhost import config
from devhost.backend.errors import ConfigError, Diagnostic
from devhost.backend.files import Fingerprint, digest, fingerprint
from devhost.backend.frozen import frozen
from devhost.discovery import catalog
from devhost.discovery.catalog import Catalog
from devhost.planning.settings import Settings

from .last_good import HEADER_LINES, Accepted, Copy, LastGood, Unusable

DEFAULT = config.DEFAULT
"""The configuration file if no other is named."""


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
    data = config.read(path)
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
        found.append(catalog.load(paths, wanted))
        return found[-1]

    settings = config.loads(data, str(file), catalog_for, path.parent)
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
    rest = f"; and {more} more {'error' if more == 1 else 'errors'}" if more else ""
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
    found = catalog.load(settings.backend_paths)
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
