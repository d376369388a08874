"""What changed between two settings: what a reload has to touch, and the line that the log shows.

An entry is recognised by its backend and name, not by its position. Moving an entry does not change it, but
the order decides which resource gets a device, so ``reordered`` reports that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

from devhost.backend.frozen import frozen
from devhost.planning.settings import ResourceSettings, Settings

from .reader import camel


@frozen
class Change:
    """An entry that is in both files but differs; ``keys`` are the YAML keys that differ."""

    old: ResourceSettings
    new: ResourceSettings
    keys: tuple[str, ...]


@frozen
class Difference:
    """What must happen to turn one :class:`Settings` into another.

    ``added`` and ``unchanged`` are entries of the new settings, ``removed`` of the old ones. ``backends`` are
    the names of backends in both whose options changed, ``backends_added`` and ``backends_removed`` of those
    that only one of the two uses. The flags are set if these changed: ``backend_paths`` for the drop-in
    directories, ``reordered`` for the order of entries in both, ``cdi`` and ``device_info`` for the
    directories of these files, ``labels`` for the directory of labels or whether they are written,
    ``skipped`` for the entries without an installed backend, ``dra`` for the DRA driver.
    """

    added: tuple[ResourceSettings, ...] = ()
    removed: tuple[ResourceSettings, ...] = ()
    changed: tuple[Change, ...] = ()
    unchanged: tuple[ResourceSettings, ...] = ()
    backends: tuple[str, ...] = ()
    backends_added: tuple[str, ...] = ()
    backends_removed: tuple[str, ...] = ()
    backend_paths: bool = False
    reordered: bool = False
    cdi: bool = False
    device_info: bool = False
    labels: bool = False
    skipped: bool = False
    dra: bool = False

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self) if field.name != "unchanged")

    def __str__(self) -> str:
        if not self:
            return "nothing changed"
        parts = [
            _part("added", (entry.name for entry in self.added)),
            _part("removed", (entry.name for entry in self.removed)),
            _part("changed", (f"{c.new.name} ({', '.join(c.keys)})" for c in self.changed)),
            "order changed" if self.reordered else "",
            _part("backend added:", self.backends_added),
            _part("backend removed:", self.backends_removed),
            _part("options changed of", self.backends),
            "backendPaths changed" if self.backend_paths else "",
            "cdi changed" if self.cdi else "",
            "deviceInfo changed" if self.device_info else "",
            "labels changed" if self.labels else "",
            "entries without an installed backend changed" if self.skipped else "",
            "dra changed" if self.dra else "",
            f"{len(self.unchanged)} unchanged",
        ]
        return "; ".join(part for part in parts if part)


def difference(old: Settings, new: Settings) -> Difference:
    """Compares two settings entry by entry."""
    before, after = dict(old.identified()), dict(new.identified())
    known = old.backends.keys() & new.backends.keys()
    kept = [key for key in after if key in before]
    changes = [Change(before[key], after[key], _keys(before[key], after[key])) for key in kept]
    return Difference(
        added=tuple(entry for key, entry in after.items() if key not in before),
        removed=tuple(entry for key, entry in before.items() if key not in after),
        changed=tuple(change for change in changes if change.keys),
        unchanged=tuple(change.new for change in changes if not change.keys),
        backends=tuple(n for n in sorted(known) if not _alike(old.backends[n], new.backends[n])),
        backends_added=tuple(sorted(new.backends.keys() - known)),
        backends_removed=tuple(sorted(old.backends.keys() - known)),
        backend_paths=old.backend_paths != new.backend_paths,
        reordered=kept != [key for key in before if key in after],
        cdi=old.cdi_directory != new.cdi_directory,
        device_info=old.device_info_directory != new.device_info_directory,
        labels=(old.label_directory, old.write_labels) != (new.label_directory, new.write_labels),
        skipped=old.skipped != new.skipped,
        dra=_dra(old) != _dra(new),
    )


def _dra(settings: Settings) -> tuple[object, ...]:
    return settings.dra_driver, settings.dra_metadata, settings.dra_status


def _keys(old: ResourceSettings, new: ResourceSettings) -> tuple[str, ...]:
    names = [field.name for field in fields(new) if field.name not in ("index", "options", "driver")]
    found = [camel(name) for name in names if getattr(old, name) != getattr(new, name)]
    before, after = _options(old.options), _options(new.options)
    both = before.keys() & after.keys()
    return (*found, *(k for k in before | after if k not in both or not _alike(before[k], after[k])))


def _options(value: object) -> dict[str, object]:
    """The backend's own keys of an entry."""
    if not is_dataclass(value):
        return {}
    return {camel(field.name): getattr(value, field.name) for field in fields(value) if field.init}


def _alike(old: object, new: object) -> bool:
    """Whether two values are equal, even if a drop-in's class has been imported again in between."""
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_alike, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_alike(old[key], new[key]) for key in old)
    if is_dataclass(old) and is_dataclass(new) and type(old).__qualname__ == type(new).__qualname__:
        names = [field.name for field in fields(old)]
        same = names == [field.name for field in fields(new)]
        return same and all(_alike(getattr(old, name), getattr(new, name)) for name in names)
    return old == new


def _part(label: str, names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return f"{label} {', '.join(listed[:5])}{more}" if listed else ""
