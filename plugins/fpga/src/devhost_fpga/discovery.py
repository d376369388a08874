"""Finds FPGAs through one family of code for each kind of driver, imported when that driver may be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from devhost.backend import MissingDriver
from devhost.backend.sysfs import PCI_BUS, PciFilter

from . import attributes, pci_ids
from .model import Family, FpgaSysfs
from .pci_ids import AMA, ZOCL, ZOCL_NODE

if TYPE_CHECKING:
    from .options import FpgaOptions

_IDS = {
    "8086": frozenset({"bcbd", "bcbf", "bcc0", "bcc1", "bcce", "09c4", "09c5", "0b30", "0b2b"}),
    "1c2c": frozenset({"1000", "1001"}),
}
"""``cci_pcie_id_tbl`` in drivers/fpga/dfl-pci.c, by vendor id."""


class DflCards:
    """Finds DFL cards among the PCI functions below the root of ``sysfs``. Used by one thread."""

    def __init__(self, sysfs: FpgaSysfs) -> None:
        self._sysfs = sysfs
        self._cards = PciFilter(sysfs, lambda ids: ids.device in _IDS.get(ids.vendor, ()))

    def missing_drivers(self) -> Iterator[MissingDriver]:
        for ids in self._cards.scan():
            if self._sysfs.lacks_driver(ids.path):
                known = {"vendor": attributes.INTEL, "vendorID": ids.vendor, "deviceID": ids.device}
                yield MissingDriver(
                    f"{ids.address} ({ids.vendor}:{ids.device})",
                    "no driver is bound to it (run modprobe dfl-pci)",
                    {**known, "pciBusID": ids.address},
                )


def make(name: str, sysfs: FpgaSysfs, options: FpgaOptions) -> Family:
    """Imports and creates the code of a family."""
    match name:
        case "dfl":
            from .dfl import Dfl

            return Dfl(sysfs)
        case "opae":
            from .dfl import Opae

            return Opae(sysfs)
        case "xrt":
            from .xrt import Xrt

            return Xrt(sysfs, whole_u30=options.u30_unit == "card")
        case "embedded":
            from .embedded import Embedded

            return Embedded(sysfs)
        case "ama":
            from .xrt import Ama

            return Ama(sysfs)
    from .managers import Managers

    return Managers(sysfs)


def _has(*classes: str) -> Callable[[FpgaSysfs], bool]:
    return lambda sysfs: any(sysfs.exists(f"/sys/class/{one}") for one in classes)


def _has_xrt_vendor(sysfs: FpgaSysfs) -> bool:
    found = sysfs.names(PCI_BUS)
    return any(sysfs.hexadecimal(f"{PCI_BUS}/{one}/vendor") in pci_ids.VENDORS for one in found)


def _has_zocl(sysfs: FpgaSysfs) -> bool:
    bus = "/sys/bus/platform"
    devices, drivers = sysfs.names(f"{bus}/devices"), sysfs.names(f"{bus}/drivers")
    return any(ZOCL_NODE in one for one in devices) or any(one.startswith(ZOCL) for one in drivers)


def _has_transcoder(sysfs: FpgaSysfs) -> bool:
    return _has_xrt_vendor(sysfs) or any(one.startswith(AMA) for one in sysfs.names("/sys/class/misc"))


FAMILIES: Mapping[str, Callable[[FpgaSysfs], bool]] = {
    "dfl": _has("fpga_region"),
    "opae": _has("fpga"),
    "xrt": _has_xrt_vendor,
    "embedded": _has_zocl,
    "ama": _has_transcoder,
    "managers": _has("fpga_manager", "fpga_region"),
}
"""Each family, specific ones first, and whether its hardware or driver may be present."""
