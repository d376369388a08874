"""A configuration together with the backends it was checked against."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import catalog, config
from .catalog import Catalog
from .files import Fingerprint, digest, fingerprint
from .settings import Settings

DEFAULT = config.DEFAULT
"""Where the configuration is when nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, the catalog they refer to, and what the file was like just before it was read."""

    settings: Settings
    catalog: Catalog
    seen: Fingerprint = None

    @property
    def digest(self) -> str:
        """The SHA-256 of the file; empty if it was not read from a regular file."""
        return digest(self.seen)


def load(path: Path) -> Loaded:
    """Reads a configuration and finds the backends it needs.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    found: list[Catalog] = []

    def catalog_for(paths: Sequence[Path], wanted: Collection[str]) -> Catalog:
        found.append(catalog.load(paths, wanted))
        return found[-1]

    seen = fingerprint(path)  # before: an edit while it is read is one of a file that nobody has read
    settings = config.load(path, catalog_for)
    return Loaded(settings, found[-1] if found else Catalog(), seen)


def load_or_everything(path: Path | None) -> Loaded:
    """The configuration at ``path``, or the default one, or none at all.

    Where it has no resources, every installed backend stands in it that does well with the options
    given or with its own defaults.

    Raises:
        ConfigError: a file was found and is wrong, or ``path`` does not exist.
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
            continue  # it has an option without a default: nothing to be guessed
    usable = {name: entry for name, entry in found.installed.items() if name in options}
    return Loaded(replace(settings, backends=options), Catalog(usable, found.refused))
