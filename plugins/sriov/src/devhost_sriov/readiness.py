"""Whether a container could get a function now: the nodes of its driver, and the rest of its IOMMU group.

Looked at again only for functions that were read anew and for those in one IOMMU group with them, for
hundreds of functions have thousands of files. What is asked is what Allocate asks, so the two never disagree.
"""

from __future__ import annotations

from devhost.backend import AllocationError, Event
from devhost.sysfs import Sysfs

from . import nodes
from .function import Function
from .look import Look
from .options import SriovOptions
from .scan import MOST_PLACES

_MODULES = {nodes.CONTAINER: "vfio", nodes.VHOST_NET: "vhost_net", nodes.TUN: "tun"}
"""What makes the nodes that belong to no function."""


class Readiness:
    """What functions lack. Used by one thread."""

    def __init__(self, sysfs: Sysfs, options: SriovOptions) -> None:
        self._sysfs = sysfs
        self._options = options
        self._known: dict[str, tuple[Function, str]] = {}
        self._touched: set[str] = set()

    def notice(self, event: Event) -> None:
        """Notes what may be in a group with others, whether or not it is a device of this backend."""
        if event.subsystem == "pci" and len(self._touched) < MOST_PLACES:
            self._touched.add(event.sys_path)

    def lacks(self, look: Look) -> dict[str, str]:
        """Why a container could not get each function, by id; empty where it could."""
        fresh = {name for name, one in look.functions.items() if look.everything or self._is_new(one)}
        groups = {look.functions[name].iommu_group for name in fresh}
        groups.update(self._sysfs.target(f"{path}/iommu_group") for path in self._touched)
        groups.discard("")
        self._touched.clear()
        known = {}
        for name, function in look.functions.items():
            before = self._known.get(name)
            if before is None or name in fresh or function.iommu_group in groups:
                known[name] = function, self._lack(function)
            else:
                known[name] = before
        self._known = known
        return {name: lack for name, (_, lack) in known.items()}

    def _is_new(self, function: Function) -> bool:
        before = self._known.get(function.id)
        return before is None or before[0] is not function

    def _lack(self, function: Function) -> str:
        try:
            for part in nodes.parts(self._sysfs, function, self._options):
                for node in part.nodes:
                    if node.required and not self._sysfs.exists(node.path):
                        module = _MODULES.get(node.path)
                        hint = f": is module {module} loaded?" if module else ""
                        return f"{node.path} does not exist{hint}"
        except nodes.InPod:
            return ""
        except AllocationError as error:
            return error.message
        return ""
