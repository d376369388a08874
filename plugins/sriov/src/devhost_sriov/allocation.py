"""What a container gets with a function: device nodes, variables, and the device-info document.

Numbers of groups, uio and verbs devices change when a driver is bound again, so nothing here is cached. A
container gets everything that the kernel lists for a function, never a part of it.

Layout: Documentation/driver-api/vfio.rst and uio-howto.rst of the Linux kernel; ``vfio-dev`` below a function
    since
Linux 6.1 (drivers/vfio/vfio_main.c), ``/dev/vfio/devices`` and ``/dev/iommu`` since 6.6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from devhost.backend import AllocateRequest, AllocationError, DeviceNode, Edits
from devhost.backend.frozen import frozen
from devhost.backend.infiniband import Node, Role, nodes_below, rdma_cm_node
from devhost.backend.sysfs import Sysfs, natural

from .model import VGPU_TYPE, Function, FunctionKind
from .options import KUBEVIRT, RDMA, VHOST_NET, SriovUse

CONTAINER, IOMMU = "/dev/vfio/vfio", "/dev/iommu"
VHOST_NET_NODE, TUN = "/dev/vhost-net", "/dev/net/tun"
_COMMON = frozenset({CONTAINER, IOMMU, VHOST_NET_NODE, TUN})
"""Nodes that all functions have in common."""

_HARMLESS = frozenset({"", "pci-stub", "pcieport", "shpchp"})
"""Drivers that keep a group viable: they set ``driver_managed_dma``, like the vfio drivers."""

_GROUPS = "/sys/kernel/iommu_groups"
_NO_IOMMU = "vfio-noiommu"
_NUMBER = re.compile(r"[0-9]+")


@frozen
class Part:
    """One part of a function: its nodes, and its entry in ``PCIDEVICE_…_INFO``.

    ``provider`` and the keys of ``info`` are those of sriov-network-device-plugin, which pods read.
    """

    provider: str
    nodes: tuple[DeviceNode, ...]
    info: Mapping[str, str]


class InPod(AllocationError):
    """A device of the function is in the network namespace of a pod: it is in use, and healthy."""


def parts_of(sysfs: Sysfs, function: Function, uses: Collection[str]) -> Iterator[Part]:
    """Everything that a container needs to use a function with its current drivers.

    ``uses`` is what the resource needs besides the function: :data:`RDMA`, :data:`VHOST_NET`,
    :data:`KUBEVIRT`. Raises ``AllocationError`` if it cannot be used, and ``InPod``, which is checked last,
    if its RDMA devices are in the network namespace of a pod.
    """
    yield from own_parts(sysfs, function)
    if KUBEVIRT in uses and (why := no_vfio(function)):
        raise AllocationError(f"{function.id}: {why}")
    if VHOST_NET in uses and function.is_network:
        yield vhost_net()
    if RDMA in uses:
        yield rdma(sysfs, function)


def own_nodes(sysfs: Sysfs, function: Function) -> frozenset[str]:
    """The paths of nodes that a container gets with this function, whether it can be used now or not.

    The node of its IOMMU group and what all functions have in common are not among them.
    """
    found = {_own_device(sysfs, function.path)} if function.uses_vfio else set()
    with suppress(AllocationError):
        if function.is_passed_on and not function.uses_vfio:
            found.update(node.path for node in uio(sysfs, function).nodes)
    with suppress(AllocationError):
        if part := vhost_vdpa(sysfs, function):
            found.update(node.path for node in part.nodes)
    found.update(node.path for node in nodes_below(sysfs, function.path))
    return frozenset(found - {""})


def own_parts(sysfs: Sysfs, function: Function) -> Iterator[Part]:
    """What the driver of a function provides, without the additions of a resource."""
    if function.uses_vfio:
        yield vfio(sysfs, function)
    elif function.is_passed_on:
        yield uio(sysfs, function)
    if part := vhost_vdpa(sysfs, function):
        yield part


def vfio(sysfs: Sysfs, function: Function) -> Part:
    """The IOMMU group of a function that uses vfio, and its own character device if it has one.

    Without an IOMMU, the node of the group is ``noiommu-<n>``. The container gets it under this documented
    name, and as ``<n>``, which pods of sriov-network-device-plugin expect. Raises ``AllocationError`` if it
    has no group, or the host uses another member of the group.
    """
    group = sysfs.target(f"{function.path}/iommu_group")
    if not _NUMBER.fullmatch(group):
        raise AllocationError(f"{function.id} has no IOMMU group (is the IOMMU enabled?)")
    plain = f"/dev/vfio/{group}"
    host = group_node(sysfs, group)
    if host != plain:
        both = (DeviceNode(host), DeviceNode(host, plain))
        return Part("vfio", (DeviceNode(CONTAINER), *both), {"mount": CONTAINER, "dev-mount": plain})
    _check_viable(sysfs, function, group)
    cdev = _own_device(sysfs, function.path)
    info = {"cdev-mount": cdev} if cdev else {}
    if cdev and not sysfs.exists(plain):  # a kernel without CONFIG_VFIO_GROUP
        return Part("vfio", (DeviceNode(cdev), DeviceNode(IOMMU)), info)
    nodes = [DeviceNode(CONTAINER), DeviceNode(plain)]
    if cdev:
        nodes += [DeviceNode(cdev, required=False), DeviceNode(IOMMU, required=False)]
    return Part("vfio", tuple(nodes), {"mount": CONTAINER, "dev-mount": plain, **info})


def group_node(sysfs: Sysfs, group: str) -> str:
    """The node of an IOMMU group on this machine; without an IOMMU, containers use another name."""
    without = sysfs.text(f"{_GROUPS}/{group}/name") == _NO_IOMMU
    return f"/dev/vfio/noiommu-{group}" if without else f"/dev/vfio/{group}"


def _own_device(sysfs: Sysfs, path: str) -> str:
    """The node of a function's own vfio device; empty if the kernel does not support it."""
    for name in sysfs.names(f"{path}/vfio-dev"):
        node = sysfs.node(f"{path}/vfio-dev/{name}", f"/dev/vfio/devices/{name}")
        if sysfs.exists(node):
            return node
    return ""


def _check_viable(sysfs: Sysfs, function: Function, group: str) -> None:
    """Refuses a group that the kernel would not give to a program (Documentation/driver-api/vfio.rst)."""
    for member in sysfs.names(f"{_GROUPS}/{group}/devices"):
        if member == function.address:
            continue  # its own driver is checked elsewhere
        place = f"{_GROUPS}/{group}/devices/{member}"
        driver = sysfs.target(f"{place}/driver")
        if driver not in _HARMLESS and "vfio" not in driver and not sysfs.exists(f"{place}/vfio-dev"):
            raise AllocationError(
                f"{function.id} cannot be used: {member} in the same IOMMU group {group} is bound to {driver}"
                " (bind it to vfio-pci, or to no driver)"
            )


def uio(sysfs: Sysfs, function: Function) -> Part:
    name = next((name for name in sysfs.names(f"{function.path}/uio") if name.startswith("uio")), "")
    if not name:
        raise AllocationError(f"{function.id}: its driver {function.driver} created no uio device")
    node = sysfs.node(f"{function.path}/uio/{name}", f"/dev/{name}")
    return Part("uio", (DeviceNode(node),), {"mount": node})


def no_vfio(function: Function) -> str:
    """Why a virtual machine of KubeVirt cannot use a function; empty if it can."""
    if function.uses_vfio:
        return ""
    bound = f"it is bound to {function.driver}" if function.driver else "it is bound to no driver"
    return f"kubevirt: true needs vfio, and {bound} (bind it to vfio-pci)"


def no_node(sysfs: Sysfs, function: Function) -> str:
    """Why ``permissions`` has no effect for a function that can be used; empty if it has."""
    if any(part.nodes for part in own_parts(sysfs, function)):
        return ""
    bound = f"driver {function.driver}" if function.driver else "no driver"
    return f"permissions is set, and a function with {bound} gives containers no device node (remove it)"


def rdma(sysfs: Sysfs, function: Function) -> Part:
    """The nodes of all RDMA devices of a function, and of the connection manager.

    ``rdma_dev`` is only the first of :func:`rdma_devices`, since programs take one (``ib_write_bw -d``). The
    other entries name nodes of this device if it has a node of the kind. Raises ``InPod`` if its RDMA devices
    are in another network namespace, and ``AllocationError`` if it has none, or they have no uverbs node.
    """
    found = list(nodes_below(sysfs, function.path))
    names = _in_order(sysfs, function, found)
    if not names and not found:
        raise AllocationError(f"{function.id} has no RDMA device, which rdma: true needs")
    opened = _opened(found)
    if not names or (opened and opened.isdisjoint(names)):  # a companion may have stayed
        raise InPod(f"the RDMA device of {function.id} is in the network namespace of a pod")
    if not any(node.role is Role.UVERBS for node in found):
        raise AllocationError(f"{function.id} has no uverbs node (is module ib_uverbs loaded?)")
    if path := rdma_cm_node(sysfs):
        found.append(Node(Role.RDMA_CM, path, "", ""))
    info = {"rdma_dev": names[0]}
    for node in sorted(found, key=lambda node: node.ib_device != names[0]):
        info.setdefault(node.role.word, node.path)
    return Part("rdma", tuple(DeviceNode(node.path) for node in found), info)


def rdma_devices(sysfs: Sysfs, function: Function) -> list[str]:
    """The RDMA devices of a function in this network namespace, those that programs open first.

    The others are companions without verbs, such as the ``smi`` device of an XDR adapter, which only
    transports management datagrams (kernel, drivers/infiniband/core/uverbs_main.c, ``ib_uverbs_add_one``).
    """
    return _in_order(sysfs, function, nodes_below(sysfs, function.path))


def _in_order(sysfs: Sysfs, function: Function, found: Iterable[Node]) -> list[str]:
    opened = _opened(found)
    names = sysfs.names(f"{function.path}/infiniband")
    return sorted(names, key=lambda name: name not in opened)


def _opened(found: Iterable[Node]) -> set[str]:
    """The RDMA devices with verbs, also those in another network namespace."""
    return {node.ib_device for node in found if node.role is Role.UVERBS and node.ib_device}


def vhost_net() -> Part:
    """The nodes for passing packets to the kernel (DPDK, "Virtio_user as Exceptional Path")."""
    nodes = (DeviceNode(VHOST_NET_NODE), DeviceNode(TUN))
    return Part("vhost", nodes, {"net-mount": VHOST_NET_NODE, "tun-mount": TUN})


def vhost_vdpa(sysfs: Sysfs, function: Function) -> Part | None:
    """The node of a function's vDPA device; ``None`` if it has none for programs."""
    if function.vdpa is None or sysfs.target(f"{function.vdpa.path}/driver") != "vhost_vdpa":
        return None
    node = vdpa_path(sysfs, function)
    if not node:
        raise AllocationError(f"{function.id}: vhost_vdpa created no device for {function.vdpa.name}")
    return Part("vdpa", (DeviceNode(node),), {"mount": node})


def vdpa_path(sysfs: Sysfs, function: Function) -> str:
    """The path of a vDPA device: the node of ``vhost-vdpa-<n>``, or the virtio device in sysfs."""
    if function.vdpa is None:
        return ""
    for name in sorted(sysfs.names(function.vdpa.path), key=natural):
        if name.startswith("vhost-vdpa-"):
            return sysfs.node(f"{function.vdpa.path}/{name}", f"/dev/{name}")
        if re.fullmatch(r"virtio[0-9]+", name):
            return f"/sys/bus/virtio/devices/{name}"
    return ""


VARIABLE, INFO = "PCIDEVICE", "INFO"
"""Prefix of the variable with the ids of the functions, and suffix of the one that describes them in JSON.

sriov-network-device-plugin uses the same names, with hyphens, and pods and programs read them.
"""

VIRT_LAUNCHER = "PCI_RESOURCE"
"""Prefix of the variable in which KubeVirt's virt-launcher looks for the addresses of host devices.

Its ``ResourceNameToEnvVar`` keeps hyphens.
"""


def edits(sysfs: Sysfs, functions: Sequence[Function], request: AllocateRequest) -> Edits:
    """Everything that one container needs to use these functions."""
    use: SriovUse = request.options
    ordered = sorted(functions, key=lambda function: natural(function.id))
    for function in ordered:
        _check_unchanged(sysfs, function)
    parts = {function.id: list(parts_of(sysfs, function, use.uses)) for function in ordered}
    rdma_cm = rdma_cm_node(sysfs)
    given = [
        replace(node, shared=node.path in _COMMON or node.path == rdma_cm)
        for own in parts.values()
        for part in own
        for node in _nodes(part, use)
    ]
    ids = ",".join(parts)
    info = json.dumps({name: _info(name, own, use) for name, own in parts.items()}, sort_keys=True)
    env = {}
    for keep_hyphens in (False, True):  # shells can expand the first, pods may expect the second
        env[request.variable(VARIABLE, keep_hyphens=keep_hyphens)] = ids
        env[request.variable(VARIABLE, INFO, keep_hyphens=keep_hyphens)] = info
    addresses = [function.address for function in ordered if function.uses_vfio]
    if use.kubevirt:
        env[request.variable(VIRT_LAUNCHER, keep_hyphens=True)] = ",".join(addresses)
    return Edits(tuple(given), env=env)


def _check_unchanged(sysfs: Sysfs, function: Function) -> None:
    """Refuses a function whose driver changed since it was selected."""
    if not sysfs.exists(function.path):
        raise AllocationError(f"{function.id} is gone")
    driver = sysfs.target(f"{function.path}/driver")
    if driver != function.driver:
        before = f"; it was bound to {function.driver}" if function.driver else ""
        raise AllocationError(f"{function.id} is now bound to {driver or 'no driver'}{before}")
    if function.vgpu_type is not None and sysfs.integer(f"{function.path}/{VGPU_TYPE}") == 0:
        raise AllocationError(f"{function.id} has no vGPU any longer: its {VGPU_TYPE} is 0")


def _nodes(part: Part, use: SriovUse) -> Sequence[DeviceNode]:
    """The nodes of a part; for KubeVirt, vfio nodes have the permissions ``mrw`` as from its own plugin.

    See its ``formatVFIODeviceSpecs``, pkg/virt-handler/device-manager/pci_device.go.
    """
    if not use.kubevirt or part.provider != "vfio":
        return part.nodes
    return [replace(node, permissions="mrw") for node in part.nodes]


def _info(name: str, parts: Sequence[Part], use: SriovUse) -> Mapping[str, Mapping[str, str]]:
    """The entry of one function in the variable, by provider, as in sriov-network-device-plugin."""
    info = {"generic": {"deviceID": name}} | {part.provider: dict(part.info) for part in parts}
    extra = use.info.get("*", {}) | use.info.get(name, {})
    return info | {"extra": extra} if extra else info


VERSION = "1.1.0"
"""The version of the device-info specification."""


def document(
    sysfs: Sysfs, function: Function, representor: str, use: SriovUse
) -> Mapping[str, object] | None:
    """The document of a function for network plugins; ``None`` if it needs none.

    Functions that are not network adapters have none. Neither have scalable functions without a vDPA device,
    because the specification identifies functions by PCI address.
    """
    if not function.is_network:
        return None
    place = {
        "pci-address": "" if function.kind is FunctionKind.SCALABLE else function.address,
        "pf-pci-address": function.parent,
        "representor-device": representor,
    }
    vdpa = function.vdpa
    if vdpa is not None and vdpa.type and (path := vdpa_path(sysfs, function)):
        return _document("vdpa", place | {"parent-device": vdpa.name, "driver": vdpa.type, "path": path})
    if function.kind is FunctionKind.SCALABLE:
        return None
    rdma = ",".join(rdma_devices(sysfs, function)) if use.rdma else ""
    vhost = VHOST_NET_NODE if use.vhost_net else ""
    return _document("pci", place | {"rdma-device": rdma, "vhost-net": vhost})


def _document(kind: str, facts: Mapping[str, str]) -> Mapping[str, object]:
    return {"type": kind, "version": VERSION, kind: {key: text for key, text in facts.items() if text}}
