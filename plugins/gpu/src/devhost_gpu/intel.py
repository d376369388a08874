"""Intel GPUs with the drivers i915 and xe: integrated, Arc, Flex and Max, and their virtual functions.

The health checks are those for every DRM card (:mod:`.drm`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from devhost.backend import AttributeValue, DeviceNode, Edits, Mount
from devhost.backend.frozen import frozen

from .discovery import INTEL, Adapter
from .drm import DrmFacts, DrmVendor, drm_nodes
from .vendor import CardOf, ContainerRequest, named

DRIVERS = frozenset({"i915", "xe"})
"""The drivers with which an Intel function is a GPU. With any other driver (``vfio-pci``) it is withheld."""

BY_PATH = "/dev/dri/by-path"
"""The directory with udev's links to DRM nodes by PCI address (its rule ``60-drm.rules``)."""

_MEI = re.compile(r"[\w-]+\.mei-[\w-]+(\.\d+)?")
_MEI_NODE = re.compile(r"mei\d{1,5}")
_TILE = re.compile(r"tile\d{1,2}")
_GT = re.compile(r"gt\d{1,2}")


@frozen
class IntelFacts(DrmFacts):
    """The facts about a card that allocation needs.

    ``mei`` are the nodes of the management engine interface of a discrete card, which only firmware tools
    need (Documentation/driver-api/mei).
    """

    mei: tuple[str, ...] = ()

    @property
    def extra_nodes(self) -> tuple[str, ...]:
        """Paths of the other nodes that only this card has."""
        return self.mei


class Intel(DrmVendor):
    """Intel cards."""

    vendor = INTEL
    drivers = DRIVERS

    def facts(self, adapter: Adapter) -> IntelFacts:
        return IntelFacts(adapter, self._mei(adapter))

    def extra_attributes(self, adapter: Adapter) -> Mapping[str, AttributeValue | None]:
        """Its memory, if a driver reports it, and its number of virtual functions."""
        return {"memory": self._memory(adapter), **named(self.context, {"totalVfs": self._virtual(adapter)})}

    def edits(self, cards: Sequence[CardOf[IntelFacts]], request: ContainerRequest) -> Edits:
        """The DRM nodes with both of their names, and the nodes of the firmware interface if the entry
        requests them.

        With the latter, a container can load firmware and read the telemetry of everything on the card, so
        Intel's plugin only provides them with its monitoring resource.
        """
        facts = [card.facts for card in cards]
        firmware = [DeviceNode(node, required=False) for own in facts for node in own.mei]
        names: list[str] = []
        if request.options.bypath == "all":
            names = [BY_PATH]
        elif request.options.bypath == "single":
            names = [
                f"{BY_PATH}/pci-{own.adapter.address}-{kind}"
                for own in facts
                for kind, node in (("card", own.adapter.card), ("render", own.adapter.render))
                if node and own.adapter.address
            ]
        mounts = tuple(Mount(name, name, required=False) for name in names)
        nodes = drm_nodes((own.adapter.id, own.nodes) for own in facts)
        return Edits.merge(
            [nodes, Edits(tuple(firmware) if request.resource_options.firmware else (), mounts)]
        )

    def _memory(self, adapter: Adapter) -> int | None:
        """The memory in MiB, the sum of all tiles, if a driver reports it.

        Intel's i915 for data centers and early versions of xe have the size of each tile in sysfs. The
        drivers of the mainline kernel report it only through ioctls.
        """
        card = f"{adapter.path}/drm/{adapter.card}"
        each = self.sysfs.integer(f"{card}/lmem_total_bytes") if adapter.card else None
        if each is not None:
            total = each * max(1, sum(1 for name in self.sysfs.names(f"{card}/gt") if _GT.fullmatch(name)))
        else:
            sizes = (
                self.sysfs.integer(f"{adapter.path}/{name}/physical_vram_size_bytes")
                for name in self.sysfs.names(adapter.path)
                if _TILE.fullmatch(name)
            )
            total = sum(size for size in sizes if size is not None)
        return total >> 20 if 0 < total < 1 << 60 else None

    def _virtual(self, adapter: Adapter) -> int | None:
        """The largest number of its virtual functions that the kernel binds to a driver."""
        total = self.sysfs.integer(f"{adapter.path}/sriov_totalvfs")
        return total if self.sysfs.integer(f"{adapter.path}/sriov_drivers_autoprobe") else None

    def _mei(self, adapter: Adapter) -> tuple[str, ...]:
        return tuple(
            f"/dev/{node}"
            for part in self.sysfs.names(adapter.path)
            if _MEI.fullmatch(part)
            for node in self.sysfs.names(f"{adapter.path}/{part}/mei")
            if _MEI_NODE.fullmatch(node)
        )
