"""Converts the selectors of sriov-network-device-plugin to ``where`` blocks of the sriov backend.

The plugin joins the keys of one object by "and", the members of one key by "or". Its
``pkg/resources/deviceSelectors.go`` defines what it compares, its device providers which functions it
considers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from devhost.backend import OptionError
from devhost.config.diagnostics import Mark, shown

from .gojson import Remark, check, check_ids, check_texts, literal, odd_ids, pci_id

_ADDRESS = r"([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_SPAN = r"[0-9]{1,9}(-[0-9]{1,9})?"


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

_Numbers = tuple[tuple[int, int], ...] | None
"""Ranges of numbers; ``None`` means any number, and functions without one."""


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
        check("acpiIndexes", self.acpi_indexes, "[0-9]{1,9}", "is not a number")
        check("pfNames", self.pf_names, "[^#].*", "does not name an interface")
        for key, texts, end in (
            ("pciAddresses", self.pci_addresses, ""),
            ("rootDevices", self.root_devices, "(#.*)?"),
        ):
            check(key, texts, _ADDRESS + end, "is not a PCI address", 'as in "0000:3b:00.0"')
        for key, texts in (("pfNames", self.pf_names), ("rootDevices", self.root_devices)):
            check(key, texts, f"[^#]*(#{_SPAN}(,{_SPAN})*)?", "is not a range", 'as in "ens1f0#0-3,7"')
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
        names, addresses = _grouped(self.pf_names), _grouped(self.root_devices)
        return [
            {key: tuple(dict.fromkeys(values)) for key, values in {**part, **common}.items() if values}
            for numbers, some in names.items()
            for others, roots in addresses.items()
            for part in self._parts(some, roots, _both(numbers, others), kind)
        ]

    def _parts(
        self, names: Sequence[str], roots: Sequence[str], numbers: _Numbers, kind: DeviceType
    ) -> Iterator[dict[str, tuple[str, ...]]]:
        """The selection among parts of physical functions, and among physical functions themselves.

        The plugin treats a function that is part of none as its own physical function, without a number.
        """
        if numbers == ():
            return
        own = tuple(map(_address, self.pci_addresses))
        spellings = tuple(literal(one) for name in names for one in (name, name.lower()))
        addresses = tuple(map(_address, roots))
        scalable = kind is DeviceType.AUXILIARY
        by_whole = bool(names or addresses)
        kinds = ("sf",) if scalable else ("vf",) if by_whole else ("pf", "vf")
        yield {
            "kind": kinds,
            "pciBusID": own,
            "pfName": spellings,
            "pfPciBusID": addresses,
            "sfNum" if scalable else "vfIndex": (",".join(map(_span, numbers)),) if numbers else (),
        }
        if by_whole and not numbers and not scalable:
            both = tuple(address for address in addresses if address in own)
            if both or not (own and addresses):
                yield {"kind": ("pf",), "pciBusID": both or own or addresses, "netDevs": spellings}

    def remarks(self, mark: Mark, path: str) -> list[Remark]:
        """Remarks on selectors that do not select what they seem to select."""
        found = odd_ids((*self.vendors, *self.devices), mark, path)
        found += odd_ids(self.pci_addresses, mark, path, _address)
        for texts in (self.pf_names, self.root_devices):
            seen: dict[str, str] = {}
            for text in dict.fromkeys(texts):
                first = seen.setdefault(_name(text).lower(), text)
                if first != text:
                    message = f"{shown(text)} has no effect: {shown(first)} takes precedence"
                    found.append(Remark(mark, path, message, "put both ranges into one, with a comma"))
                elif _numbers(text) == ():
                    found.append(Remark(mark, path, f"{shown(text)} selects nothing: its range is empty"))
        return found


def _name(text: str) -> str:
    return text.partition("#")[0]


def _numbers(text: str) -> _Numbers:
    """The numbers of ``name#0-3,7``; without ``#`` it means everything of that name."""
    _, sign, numbers = text.partition("#")
    spans = (one.partition("-") for one in numbers.split(",")) if sign else ()
    found = ((int(low), int(high or low)) for low, _, high in spans)
    return tuple((low, high) for low, high in found if low <= high) if sign else None


def _grouped(texts: Sequence[str]) -> Mapping[_Numbers, Sequence[str]]:
    """The names by their numbers. Of two with one name the plugin uses the first."""
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(_name(text).lower(), text)
    groups: dict[_Numbers, list[str]] = {} if texts else {None: []}
    for text in first.values():
        groups.setdefault(_numbers(text), []).append(_name(text))
    return groups


def _both(one: _Numbers, other: _Numbers) -> _Numbers:
    """The numbers that are in both."""
    if one is None or other is None:
        return other if one is None else one
    found = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple((low, high) for low, high in found if low <= high)


def _span(interval: tuple[int, int]) -> str:
    low, high = interval
    return str(low) if low == high else f"{low}-{high}"


def _address(text: str) -> str:
    """A PCI address in the kernel's notation."""
    text = text.lower()
    return text if text.count(":") == 2 else f"0000:{text}"
