"""Mediated devices: parts of a device that its driver makes for virtual machines, such as NVIDIA vGPUs.

Layout: drivers/vfio/mdev and Documentation/driver-api/vfio-mediated-device.rst of the Linux kernel. The
directory of a device is below that of its parent and named by its UUID. While a driver is bound to it, it has
an IOMMU group that no other device is in. The link ``mdev_type`` comes last, without an event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from devhost.backend import (
    HEALTHY,
    AllocateRequest,
    AllocationError,
    AttributeValue,
    Device,
    DeviceNode,
    Edits,
    Event,
    claim,
    unhealthy,
)
from devhost.backend.model import present
from devhost.backend.sysfs import BDF, Sysfs, pci_path, pcie_path

from .allocation import CONTAINER
from .health import missing_node
from .model import FunctionKind
from .options import RDMA, VHOST_NET
from .scan import MDEV_BUS

VIRT_LAUNCHER = "MDEV_PCI_RESOURCE"
"""Prefix of the variable in which KubeVirt's virt-launcher looks for UUIDs (``v1.MDevResourcePrefix``).

Its ``ResourceNameToEnvVar`` keeps hyphens.
"""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What the kernel writes as the name: ``%pUl``."""

_UNUSABLE = {use: f"{use}: true is for functions, not for mediated devices" for use in (RDMA, VHOST_NET)}


class MediatedDevices:
    """Scans mediated devices, reading them again only after relevant events. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._is_stale = True
        self._known: Mapping[str, tuple[int, Device]] = {}

    def notice(self, event: Event) -> None:
        """Notes what the next scan must read again."""
        self._is_stale |= event.subsystem in ("mdev", "vfio") or not event.sys_path

    def scan(self, *, everything: bool) -> Iterator[Device]:
        """The devices that exist now; ``everything`` is whether each is read again."""
        listed = self._sysfs.identities(MDEV_BUS)
        everything |= self._is_stale
        self._is_stale = False
        known = {}
        for uuid, inode in sorted(listed.items()):
            before = self._known.get(uuid)
            if before and before[0] == inode and not everything:
                known[uuid] = before
            elif found := read(self._sysfs, uuid):
                # an unchanged device stays the same object, which the core compares by identity
                known[uuid] = inode, before[1] if before and before[1] == found else found
        self._known = known
        return (device for _, device in known.values())


def edits(sysfs: Sysfs, devices: Sequence[Device], request: AllocateRequest) -> Edits:
    """What KubeVirt's own plugin gives: the group of each device, and a variable with all UUIDs.

    See its ``pkg/virt-handler/device-manager/mediated_device.go``.
    """
    nodes = [DeviceNode(CONTAINER, permissions="mrw", shared=True)]
    uuids = sorted(device.id for device in devices)
    for uuid in uuids:
        if (found := read(sysfs, uuid)) is None:
            raise AllocationError(f"{uuid} is gone")
        if not found.health:
            raise AllocationError(f"{uuid}: {found.health.reason}")
        nodes.append(DeviceNode(_node(found.attributes["iommuGroup"]), permissions="mrw"))
    return Edits(tuple(nodes), env={request.variable(VIRT_LAUNCHER, keep_hyphens=True): ",".join(uuids)})


def read(sysfs: Sysfs, uuid: str) -> Device | None:
    """The device with this UUID; ``None`` if there is none."""
    path = sysfs.device(f"{MDEV_BUS}/{uuid}") if _UUID.fullmatch(uuid) else ""
    if not path:
        return None
    driver, group = sysfs.target(f"{path}/driver"), sysfs.target(f"{path}/iommu_group")
    group = group if group.isascii() and group.isdecimal() else ""
    # drivers without names have the directory of the type only, as in KubeVirt's getMdevTypeName
    type_name = sysfs.text(f"{path}/mdev_type/name") or sysfs.target(f"{path}/mdev_type")
    addresses = (*pcie_path(path)[-1:], sysfs.target(f"{pci_path(path)}/physfn"))
    whole = tuple(one for one in addresses if BDF.fullmatch(one))
    numa_node = sysfs.numa_node(path)
    attributes = {
        "kind": FunctionKind.MEDIATED.value,
        "uuid": uuid,
        "mdevUUID": uuid,
        "mdevType": type_name.replace(" ", "_"),
        "pfPciBusID": whole[0] if whole else "",
        "numaNode": numa_node,
        "iommuGroup": int(group) if group else None,
    }
    lack = _lack(sysfs, driver, group)
    return Device(
        id=uuid,
        attributes=present(attributes),
        claims=frozenset((claim.iommu_group(group), claim.node(_node(group))) if group else ()),
        part_of=frozenset(map(claim.pci, whole)),
        numa_nodes=() if numa_node is None else (numa_node,),
        pcie_path=pcie_path(path),
        health=unhealthy(lack) if lack else HEALTHY,
        unusable_for=_UNUSABLE,
    )


def _lack(sysfs: Sysfs, driver: str, group: str) -> str:
    if not driver:
        return "no driver is bound to it"
    if not group:
        return "it has no IOMMU group (the kernel needs CONFIG_VFIO_GROUP)"
    return missing_node(sysfs, [CONTAINER, _node(group)])


def _node(group: AttributeValue) -> str:
    """The node of a group. The kernel names such a group ``vfio-noiommu``, but its node has only the number.

    See ``vfio_noiommu_group_alloc`` and ``vfio_create_group`` of drivers/vfio/group.c, with the type
    ``VFIO_EMULATED_IOMMU``.
    """
    return f"/dev/vfio/{group}"
