"""What changed between two settings: what a reload has to touch, and the line that the log shows.

An entry is recognised by its backend and name, not by its position. Moving an entry does not change it, but
the order decides which resource gets a device, so ``reordered`` reports that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter

from devhost.backend.frozen import frozen
from devhost.planning.settings import ResourceSettings, Settings

from .reader import camel

OTHERS: Mapping[str, Callable[[Settings], object]] = {
    "backendPaths": attrgetter("backend_paths"),
    "cdi": attrgetter("cdi_directory"),
    "deviceInfo": attrgetter("device_info_directory"),
    "labels": attrgetter("label_directory", "write_labels"),
    "entries without an installed backend": attrgetter("skipped"),
    "dra": attrgetter("dra_driver", "dra_metadata", "dra_status"),
}
"""What settings have besides entries and options, by what the log calls it."""


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
    that only one of the two uses. ``reordered`` is whether the order of entries in both changed, ``others``
    are those of :data:`OTHERS` that changed.
    """

    added: tuple[ResourceSettings, ...] = ()
    removed: tuple[ResourceSettings, ...] = ()
    changed: tuple[Change, ...] = ()
    unchanged: tuple[ResourceSettings, ...] = ()
    backends: tuple[str, ...] = ()
    backends_added: tuple[str, ...] = ()
    backends_removed: tuple[str, ...] = ()
    reordered: bool = False
    others: tuple[str, ...] = ()

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
            *(f"{name} changed" for name in self.others),
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
        reordered=kept != [key for key in before if key in after],
        others=tuple(name for name, of in OTHERS.items() if of(old) != of(new)),
    )


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
