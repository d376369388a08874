"""What changed between two settings: the line that the log shows of a reload.

An entry is recognised by its backend and name, not by its position. Moving an entry does not change it, but
the order decides which resource gets a device, so it is reported, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter

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


def difference(old: Settings, new: Settings) -> str:
    """What changed, entry by entry; empty if nothing did."""
    before, after = dict(old.identified()), dict(new.identified())
    known = old.backends.keys() & new.backends.keys()
    kept = [key for key in after if key in before]
    changed = {key: keys for key in kept if (keys := _keys(before[key], after[key]))}
    parts = [
        _part("added", [entry.name for key, entry in after.items() if key not in before]),
        _part("removed", [entry.name for key, entry in before.items() if key not in after]),
        _part("changed", [f"{after[key].name} ({', '.join(keys)})" for key, keys in changed.items()]),
        "order changed" if kept != [key for key in before if key in after] else "",
        _part("backend added:", sorted(new.backends.keys() - known)),
        _part("backend removed:", sorted(old.backends.keys() - known)),
        _part("options changed of", sorted(n for n in known if not _alike(old.backends[n], new.backends[n]))),
        *(f"{name} changed" for name, of in OTHERS.items() if of(old) != of(new)),
    ]
    found = [part for part in parts if part]
    return "; ".join((*found, f"{len(kept) - len(changed)} unchanged")) if found else ""


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


def _part(label: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{label} {', '.join(names[:5])}{more}" if names else ""
