"""RDMA adapters without an RDMA device, because a driver or its RDMA module is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from devhost.backend import AttributeValue, MissingDriver
from devhost.backend.sysfs import BDF, Sysfs

BUS = "/sys/bus/pci/devices"

_NETWORK, _INFINIBAND = "02", "0207"
"""PCI base class of network controllers, and class of InfiniBand controllers (``pci_ids.h``)."""

_MELLANOX, _AMAZON = "15b3", "1d0f"

_CONNECTX_3 = frozenset({"1003", "1004", "1007"})
"""Devices that mlx4_core drives (``mlx4_pci_table`` in drivers/net/ethernet/mellanox/mlx4/main.c)."""

_EFA = frozenset({"efa0", "efa1", "efa2", "efa3"})
"""``efa_pci_tbl`` in drivers/infiniband/hw/efa/efa_main.c."""

_RDMA = {"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib"}
"""Modules that make RDMA devices of what a driver for the network drives."""


class Undriven:
    """Looks at the PCI functions below the root of ``sysfs``. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._dull: dict[str, int] = {}

    def look(self, served: Collection[str], drivers: Collection[str]) -> Iterator[MissingDriver]:
        """The adapters that lack a driver. Virtual functions do without one until they are given away.

        Args:
            served: addresses of functions with RDMA devices, here or in a pod.
            drivers: of these; the RDMA module of such a driver is surely loaded.

        Raises:
            OSError: the PCI bus cannot be listed.
        """
        listed = self._sysfs.identities(BUS)
        self._dull = {name: inode for name, inode in self._dull.items() if listed.get(name) == inode}
        for address in sorted(listed):
            if address in self._dull or address in served or not BDF.fullmatch(address):
                continue
            path = f"{BUS}/{address}"
            number = self._sysfs.hexadecimal(f"{path}/class").rjust(6, "0")
            vendor = self._sysfs.hexadecimal(f"{path}/vendor")
            device = self._sysfs.hexadecimal(f"{path}/device")
            module = _module(number, vendor, device)
            if module is None or self._sysfs.exists(f"{path}/physfn"):
                self._dull[address] = listed[address]
            elif reason := self._reason(path, module, drivers):
                known: dict[str, AttributeValue] = {
                    "vendor": vendor,
                    "device": device,
                    "pciBusID": address,
                    "isVf": False,
                }
                if number.startswith(_INFINIBAND):
                    known["linkLayer"] = "infiniband"
                yield MissingDriver(f"{address} ({vendor}:{device})", reason, known)

    def _reason(self, path: str, module: str, drivers: Collection[str]) -> str:
        driver = self._sysfs.target(f"{path}/driver")
        if driver:
            rdma = _RDMA.get(driver, "")
            if not rdma or driver in drivers or self._sysfs.exists(f"/sys/module/{rdma}"):
                return ""
            return f"{driver} is bound to it, and its RDMA module is not loaded (run modprobe {rdma})"
        if self._sysfs.driver_override(path):  # a name there is the user's choice
            return ""
        fix = f"run modprobe {module}" if module else "load the module of its vendor"
        return f"no driver is bound to it ({fix})"


def _module(number: str, vendor: str, device: str) -> str | None:
    """The module that makes RDMA devices of a function: empty if unknown, ``None`` if it is no adapter."""
    if vendor == _MELLANOX and number.startswith(_NETWORK):
        return "mlx4_ib" if device in _CONNECTX_3 else "mlx5_ib"
    if vendor == _AMAZON and device in _EFA:
        return "efa"
    return "" if number.startswith(_INFINIBAND) else None
