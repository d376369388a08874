"""RDMA adapters without an RDMA device, because a driver or its RDMA module is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from devhost.backend import AttributeValue, MissingDriver
from devhost.backend.sysfs import PciFilter, PciIds, Sysfs

_NETWORK, _INFINIBAND = "02", "0207"
"""PCI base class of network controllers, and class of InfiniBand controllers (``pci_ids.h``)."""

_MELLANOX, _AMAZON = "15b3", "1d0f"

_CONNECTX_3 = frozenset({"1003", "1004", "1007"})
"""Devices that mlx4_core drives (``mlx4_pci_table`` in drivers/net/ethernet/mellanox/mlx4/main.c)."""

_EFA = frozenset({"efa0", "efa1", "efa2", "efa3"})
"""``efa_pci_tbl`` in drivers/infiniband/hw/efa/efa_main.c."""

_RDMA = {"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib"}
"""The RDMA modules of network drivers."""


class MissingDrivers:
    """Finds such adapters among the PCI functions below the root of ``sysfs``. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._adapters = PciFilter(sysfs, lambda ids: _module(ids) is not None)

    def scan(self, served: Collection[str], drivers: Collection[str]) -> Iterator[MissingDriver]:
        """The adapters that lack a driver.

        ``served`` are the addresses of functions with RDMA devices, on the node or in a pod. The RDMA modules
        of their ``drivers`` are loaded.
        """
        for ids in self._adapters.scan(served):
            if reason := self._reason(ids, drivers):
                known: dict[str, AttributeValue] = {
                    "vendor": ids.vendor,
                    "device": ids.device,
                    "pciBusID": ids.address,
                    "isVf": False,
                }
                if ids.pci_class.startswith(_INFINIBAND):
                    known["linkLayer"] = "infiniband"
                yield MissingDriver(f"{ids.address} ({ids.vendor}:{ids.device})", reason, known)

    def _reason(self, ids: PciIds, drivers: Collection[str]) -> str | None:
        driver = self._sysfs.target(f"{ids.path}/driver")
        if driver:
            rdma = _RDMA.get(driver, "")
            if not rdma or driver in drivers or self._sysfs.exists(f"/sys/module/{rdma}"):
                return None
            return f"{driver} is bound to it, but its RDMA module is not loaded (run modprobe {rdma})"
        if not self._sysfs.lacks_driver(ids.path):
            return None
        module = _module(ids)
        fix = f"run modprobe {module}" if module else "load the module of the vendor"
        return f"no driver is bound to it ({fix})"


def _module(ids: PciIds) -> str | None:
    """The RDMA module for a function: empty if unknown, ``None`` if it is not an adapter."""
    if ids.vendor == _MELLANOX and ids.pci_class.startswith(_NETWORK):
        return "mlx4_ib" if ids.device in _CONNECTX_3 else "mlx5_ib"
    if ids.vendor == _AMAZON and ids.device in _EFA:
        return "efa"
    return "" if ids.pci_class.startswith(_INFINIBAND) else None
