"""Converts the selectors of sriov-network-device-plugin to ``where`` blocks of the sriov backend.

The plugin joins the keys of one object by "and", the members of one key by "or". Its
``pkg/resources/deviceSelectors.go`` defines what it compares, its device providers which functions it
considers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from devhost.backend import OptionError
from devhost.config.diagnostics import Mark, shown

from .gojson import Remark, check_ids, check_texts, literal, odd_ids, pci_id

_ADDRESS = re.compile(r"([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class DeviceType(StrEnum):
    """The plugin's ``deviceType``."""

    NET = "netDevice"
    AUXILIARY = "auxNetDevice"
    ACCELERATOR = "accelerator"


_COMMON = ("vendors", "devices", "drivers")
_NETWORK = ("pfNames", "rootDevices", "linkTypes", "isRdma", "needVhostNet")

READ: Mapping[DeviceType, Sequence[str]] = {
    DeviceType.NET: (
        *_COMMON, "pciAddresses", "acpiIndexes", *_NETWORK, "ddpProfiles", "pKeys", "vdpaType",
    ),
    DeviceType.AUXILIARY: (*_COMMON, "auxTypes", *_NETWORK),
    DeviceType.ACCELERATOR: (*_COMMON, "pciAddresses"),
}  # fmt: skip
"""The selectors that the plugin reads for a type of device; it ignores others."""

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Selectors:
    """One object of ``selectors``."""

    vendors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    acpi_indexes: tuple[str, ...] = ()
    pf_names: tuple[str, ...] = ()
    root_devices: tuple[str, ...] = ()
    link_types: tuple[str, ...] = ()
    ddp_profiles: tuple[str, ...] = ()
    p_keys: tuple[str, ...] = ()
    is_rdma: bool = False
    need_vhost_net: bool = False
    vdpa_type: Literal["", "virtio", "vhost"] = ""
    aux_types: tuple[Literal["sf"], ...] = ()

    def __post_init__(self) -> None:
        check_ids("vendors", self.vendors)
        check_ids("devices", self.devices)
        for key, texts in (
            ("drivers", self.drivers),
            ("linkTypes", self.link_types),
            ("ddpProfiles", self.ddp_profiles),
            ("pKeys", self.p_keys),
        ):
            check_texts(key, texts)
        for n, index in enumerate(self.acpi_indexes):
            if not (index.isascii() and index.isdigit() and len(index) < 10):
                raise OptionError(f"{shown(index)} is not a number", key=f"acpiIndexes[{n}]")
        for n, address in enumerate(self.pci_addresses):
            _check_address(address, f"pciAddresses[{n}]")
        for n, text in enumerate(self.pf_names):
            if not _part(text, f"pfNames[{n}]").name:
                raise OptionError(f"{shown(text)} does not name an interface", key=f"pfNames[{n}]")
        for n, text in enumerate(self.root_devices):
            _check_address(_part(text, f"rootDevices[{n}]").name, f"rootDevices[{n}]")
        if self.is_rdma and self.vdpa_type:
            raise OptionError("isRdma excludes it, for the plugin as well", key="vdpaType")

    def where(self, kind: DeviceType) -> list[dict[str, tuple[str, ...]]]:
        """The blocks that select the same; empty if the object can never select anything.

        The values are as in ``where``, but not quoted for YAML.
        """
        common = {
            "pciClass": ("12*",) if kind is DeviceType.ACCELERATOR else ("02*",),
            "vendor": tuple(map(pci_id, self.vendors)),
            "device": tuple(map(pci_id, self.devices)),
            "driver": tuple(map(literal, self.drivers)),
            "acpiIndex": tuple(str(int(index)) for index in self.acpi_indexes),
            "linkType": tuple(map(literal, self.link_types)),
            "ddpProfile": tuple(map(literal, self.ddp_profiles)),
            "pKey": tuple(map(literal, self.p_keys)),
            "isRdma": ("true",) if self.is_rdma else (),
            "vdpaType": (self.vdpa_type,) if self.vdpa_type else (),
        }
        blocks = [
            _block({**part, **common}) for joined in self._joined() for part in self._parts(joined, kind)
        ]
        return [block for block in blocks if block]

    def _parts(self, joined: _Joined, kind: DeviceType) -> Iterator[dict[str, tuple[str, ...] | None]]:
        """The selection among parts of physical functions, and among physical functions themselves.

        The plugin treats a function that is part of none as its own physical function, without a number.
        """
        own = tuple(map(_address, self.pci_addresses))
        names = tuple(spelling for name in joined.names for spelling in _spellings(name))
        addresses = tuple(map(_address, joined.addresses))
        numbers = () if joined.intervals is None else (",".join(map(_span, joined.intervals)),)
        scalable = kind is DeviceType.AUXILIARY
        by_whole = bool(names or addresses)
        kinds = ("sf",) if scalable else ("vf",) if by_whole else ("pf", "vf")
        yield {
            "kind": kinds,
            "pciBusID": own,
            "pfName": names,
            "pfPciBusID": addresses,
            "sfNum" if scalable else "vfIndex": numbers,
        }
        if by_whole and not numbers and not scalable:
            both = tuple(address for address in addresses if address in own) or None
            yield {
                "kind": ("pf",),
                "pciBusID": both if own and addresses else own or addresses,
                "netDevs": names,
            }

    def _joined(self) -> Iterator[_Joined]:
        """Names, addresses and numbers that belong together."""
        everything = [_Group((), None)]
        for by_name in _grouped(self.pf_names) if self.pf_names else everything:
            for by_address in _grouped(self.root_devices) if self.root_devices else everything:
                intervals = _both(by_name.intervals, by_address.intervals)
                if intervals != ():
                    yield _Joined(by_name.names, by_address.names, intervals)

    def remarks(self, mark: Mark, path: str) -> list[Remark]:
        """Remarks on selectors that do not select what they seem to select."""
        found = odd_ids((*self.vendors, *self.devices), mark, path)
        odd = [text for text in self.pci_addresses if text != _address(text)]
        for text in dict.fromkeys(odd):
            message = f'{shown(text)} never matches for the plugin; devhost takes it as "{_address(text)}"'
            found.append(Remark(mark, path, message))
        for key, texts in (("pfNames", self.pf_names), ("rootDevices", self.root_devices)):
            seen: dict[str, str] = {}
            for text in dict.fromkeys(texts):
                part = _part(text, key)
                name = part.name.lower()
                if name in seen:
                    message = f"{shown(text)} has no effect: {shown(seen[name])} takes precedence"
                    found.append(Remark(mark, path, message, "put both ranges into one, with a comma"))
                elif part.intervals == ():
                    found.append(Remark(mark, path, f"{shown(text)} selects nothing: its range is empty"))
                seen.setdefault(name, text)
        return found


@dataclass(frozen=True, slots=True)
class _Part:
    """``name#0-3,7``. Without ``#`` it has no intervals and means everything of that name."""

    name: str
    intervals: tuple[Interval, ...] | None


@dataclass(frozen=True, slots=True)
class _Group:
    """Names with the same numbers."""

    names: tuple[str, ...]
    intervals: tuple[Interval, ...] | None


@dataclass(frozen=True, slots=True)
class _Joined:
    """A condition on the physical function and on the number. Without names and addresses: any function."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    intervals: tuple[Interval, ...] | None


def _part(text: str, key: str) -> _Part:
    name, sign, numbers = text.partition("#")
    if not sign:
        return _Part(name, None)
    intervals = []
    for piece in numbers.split(","):
        found = _RANGE.fullmatch(piece)
        if found is None:
            hint = 'as in "ens1f0#0-3,7"'
            raise OptionError(f"{shown(piece)} in {shown(text)} is not a range", key=key, hint=hint)
        low = int(found[1])
        intervals.append((low, int(found[2] or low)))
    return _Part(name, tuple((low, high) for low, high in intervals if low <= high))


def _grouped(texts: Iterable[str]) -> list[_Group]:
    """The parts by their numbers. Of two with one name the plugin uses the first."""
    parts: dict[str, _Part] = {}
    for text in texts:
        part = _part(text, "")
        parts.setdefault(part.name.lower(), part)
    groups: dict[tuple[Interval, ...] | None, list[str]] = {}
    for part in parts.values():
        groups.setdefault(part.intervals, []).append(part.name)
    return [_Group(tuple(names), intervals) for intervals, names in groups.items() if intervals != ()]


def _both(
    one: tuple[Interval, ...] | None, other: tuple[Interval, ...] | None
) -> tuple[Interval, ...] | None:
    """The numbers that are in both."""
    if one is None or other is None:
        return other if one is None else one
    found = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple((low, high) for low, high in found if low <= high)


def _span(interval: Interval) -> str:
    low, high = interval
    return str(low) if low == high else f"{low}-{high}"


def _block(values: Mapping[str, tuple[str, ...] | None]) -> dict[str, tuple[str, ...]]:
    """The terms without empty ones; empty if one of them can never match."""
    if None in values.values():
        return {}
    return {key: tuple(dict.fromkeys(several)) for key, several in values.items() if several}


def _spellings(name: str) -> tuple[str, ...]:
    """The plugin compares names without regard to case; those of the kernel are mostly lower-case."""
    return tuple(map(literal, dict.fromkeys((name, name.lower()))))


def _check_address(text: str, key: str) -> None:
    if not _ADDRESS.fullmatch(text):
        raise OptionError(f"{shown(text)} is not a PCI address", key=key, hint='as in "0000:3b:00.0"')


def _address(text: str) -> str:
    """A PCI address in the kernel's notation."""
    text = text.lower()
    return text if text.count(":") == 2 else f"0000:{text}"
