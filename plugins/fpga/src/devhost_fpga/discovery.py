"""How FPGAs are found: one family of code for each kind of driver, imported when its driver may be here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from devhost.backend import MissingDriver
from devhost.backend.sysfs import PciFilter, Sysfs

from . import attributes, pci_ids
from .model import Family, Unit
from .pci_ids import AMA, ZOCL, ZOCL_NODE

if TYPE_CHECKING:
    from .managers import Managers
    from .options import FpgaOptions

_IDS = {
    "8086": frozenset({"bcbd", "bcbf", "bcc0", "bcc1", "bcce", "09c4", "09c5", "0b30", "0b2b"}),
    "1c2c": frozenset({"1000", "1001"}),
}
"""``cci_pcie_id_tbl`` in drivers/fpga/dfl-pci.c, by the vendor's id."""


class DflCards:
    """Looks for them among the PCI functions below the root of ``sysfs``. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._cards = PciFilter(sysfs, lambda ids: ids.device in _IDS.get(ids.vendor, ()))

    def missing_drivers(self) -> Iterator[MissingDriver]:
        """The cards without a driver.

        Raises:
            OSError: the PCI bus cannot be listed.
        """
        for ids in self._cards.scan():
            if self._sysfs.lacks_driver(ids.path):
                known = {"vendor": attributes.INTEL, "vendorID": ids.vendor, "deviceID": ids.device}
                yield MissingDriver(
                    f"{ids.address} ({ids.vendor}:{ids.device})",
                    "no driver is bound to it (run modprobe dfl-pci)",
                    {**known, "pciBusID": ids.address},
                )


class Remaining:
    """The kernel's own classes: what no other family speaks for."""

    def __init__(self, managers: Managers) -> None:
        self._managers = managers
        self._taken: Collection[str] = ()

    def leave_out(self, taken: Collection[str]) -> None:
        """Takes note of the directories in sysfs that the others speak for."""
        self._taken = taken

    def scan(self) -> Iterable[Unit]:
        """What is left."""
        return self._managers.scan(self._taken)


def _dfl(sysfs: Sysfs, _options: FpgaOptions) -> Family:
    from .dfl import Dfl

    return Dfl(sysfs)


def _opae(sysfs: Sysfs, _options: FpgaOptions) -> Family:
    from .dfl import Opae

    return Opae(sysfs)


def _xrt(sysfs: Sysfs, options: FpgaOptions) -> Family:
    from .xrt import Xrt

    return Xrt(sysfs, whole_u30=options.u30_unit == "card")


def _embedded(sysfs: Sysfs, _options: FpgaOptions) -> Family:
    from .embedded import Embedded

    return Embedded(sysfs)


def _ama(sysfs: Sysfs, _options: FpgaOptions) -> Family:
    from .xrt import Ama

    return Ama(sysfs)


def _managers(sysfs: Sysfs, _options: FpgaOptions) -> Family:
    from .managers import Managers

    return Remaining(Managers(sysfs))


def _has(*classes: str) -> Callable[[Sysfs], bool]:
    return lambda sysfs: any(sysfs.exists(f"/sys/class/{one}") for one in classes)


def _has_xrt_vendor(sysfs: Sysfs) -> bool:
    bus = "/sys/bus/pci/devices"
    return any(sysfs.hexadecimal(f"{bus}/{one}/vendor") in pci_ids.VENDORS for one in sysfs.names(bus))


def _has_zocl(sysfs: Sysfs) -> bool:
    bus = "/sys/bus/platform"
    devices, drivers = sysfs.names(f"{bus}/devices"), sysfs.names(f"{bus}/drivers")
    return any(ZOCL_NODE in one for one in devices) or any(one.startswith(ZOCL) for one in drivers)


def _has_transcoder(sysfs: Sysfs) -> bool:
    return _has_xrt_vendor(sysfs) or any(one.startswith(AMA) for one in sysfs.names("/sys/class/misc"))


FAMILIES: Mapping[str, tuple[Callable[[Sysfs], bool], Callable[[Sysfs, FpgaOptions], Family]]] = {
    "dfl": (_has("fpga_region"), _dfl),
    "opae": (_has("fpga"), _opae),
    "xrt": (_has_xrt_vendor, _xrt),
    "embedded": (_has_zocl, _embedded),
    "ama": (_has_transcoder, _ama),
    "managers": (_has("fpga_manager", "fpga_region"), _managers),
}
"""Each family: whether its hardware or driver may be here, and how its code is made; specific ones first."""
