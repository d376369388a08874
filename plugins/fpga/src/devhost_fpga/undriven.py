"""Cards for ``dfl-pci`` that no driver is bound to: the kernel then shows nothing that could be a device."""

from __future__ import annotations

from collections.abc import Iterator

from devhost.backend import MissingDriver
from devhost.backend.sysfs import BDF, Sysfs

from . import attributes

BUS = "/sys/bus/pci/devices"

_IDS = {
    "8086": frozenset({"bcbd", "bcbf", "bcc0", "bcc1", "bcce", "09c4", "09c5", "0b30", "0b2b"}),
    "1c2c": frozenset({"1000", "1001"}),
}
"""``cci_pcie_id_tbl`` in drivers/fpga/dfl-pci.c, by the vendor's id."""


class DflCards:
    """Looks at the PCI functions below the root of ``sysfs``. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._dull: dict[str, int] = {}

    def undriven(self) -> Iterator[MissingDriver]:
        """The cards without a driver.

        Raises:
            OSError: the PCI bus cannot be listed.
        """
        listed = self._sysfs.identities(BUS)
        self._dull = {name: inode for name, inode in self._dull.items() if listed.get(name) == inode}
        for address in sorted(listed):
            if address in self._dull or not BDF.fullmatch(address):
                continue
            path = f"{BUS}/{address}"
            vendor = self._sysfs.hexadecimal(f"{path}/vendor")
            device = self._sysfs.hexadecimal(f"{path}/device") if vendor in _IDS else ""
            if device not in _IDS.get(vendor, ()) or self._sysfs.exists(f"{path}/physfn"):
                self._dull[address] = listed[address]
            elif not self._sysfs.target(f"{path}/driver") and not self._sysfs.driver_override(path):
                known = {"vendor": attributes.INTEL, "vendorID": vendor, "deviceID": device}
                yield MissingDriver(
                    f"{address} ({vendor}:{device})",
                    "no driver is bound to it (run modprobe dfl-pci)",
                    {**known, "pciBusID": address},
                )
