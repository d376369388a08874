"""Adapters that are not for the programs of containers: for NVSwitches, or for the node's own network.

A software device has no purpose, because it has no interfaces as a function: a person created it, for RDMA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from devhost.backend import Context
from devhost.backend.purpose import FABRIC_MANAGEMENT, MANAGES_FABRIC, NODE_NETWORK, FabricManagers
from devhost.backend.sysfs import Sysfs, is_live
from devhost.backend.traffic import NetFiles, carriers, kubelet_addresses

from .model import Kind
from .scan import Function


class Purposes:
    """The special purposes of functions. Used by one thread."""

    def __init__(self, sysfs: Sysfs, context: Context) -> None:
        self._fabric_managers = FabricManagers(sysfs, context.log)
        self._files = NetFiles(sysfs)
        self._addresses = kubelet_addresses() if is_live(context.root) else frozenset()
        self._busy: Mapping[str, str] = {}

    def update(self, functions: Iterable[Function]) -> None:
        """Reads which interfaces carry the node's traffic, if any of these functions has one."""
        has_interface = any(one.interfaces for one in functions)
        traffic = self._files.traffic(self._addresses) if has_interface else None
        self._busy = (
            carriers(traffic, self._addresses, self._files.lower, self._files.on_switch) if traffic else {}
        )

    def of(self, function: Function) -> tuple[str, str]:
        """The special purpose of a function, and why it has it; both are empty for most."""
        place = function.place
        pci = place.path.rpartition("/")[0] if place.kind is Kind.SUBFUNCTION else place.path
        if place.address and self._fabric_managers.include(pci, function.vendor):
            return FABRIC_MANAGEMENT, MANAGES_FABRIC
        for name in function.interfaces:
            if name in self._busy:
                return NODE_NETWORK, self._busy[name]
        return "", ""
