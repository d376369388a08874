"""AMD's compute topology, ``/sys/class/kfd/kfd/topology``: GPUs and partitions, and how they are connected.

The layout is that of drivers/gpu/drm/amd/amdkfd/kfd_topology.c, the numbers are those of kfd_crat.h. Every
processor is a node; GPUs are those with SIMD units. A partition is also a node, with the location of its GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field

from devhost.backend.frozen import frozen
from devhost.backend.sysfs import Sysfs

TOPOLOGY = "/sys/class/kfd/kfd/topology"

XGMI = 11
"""``CRAT_IOLINK_TYPE_XGMI``."""

HOP = 15
"""Weight of one hop over XGMI (``KFD_CRAT_XGMI_WEIGHT``)."""

ACROSS = 41
"""Weight between partitions of two GPUs: one hop, and the paths inside both GPUs (kfd_crat.c,
``kfd_fill_gpu_xgmi_link_to_gpu``). The driver reports neither hops nor bandwidth of partitions."""

_FRAME_BUFFER = (1, 2)
"""Types of memory banks that belong to a GPU (``HSA_MEM_HEAP_TYPE_FB_PUBLIC``, ``…_FB_PRIVATE``)."""

_NUMBER = re.compile(r"\d{1,20}")


@frozen
class KfdNode:
    """One GPU, or one partition of a GPU.

    ``addresses`` are the possible PCI addresses of the GPU, the most likely one first: early drivers have the
    number of a partition in place of that of the PCI function. ``render`` is the name of the DRM node,
    ``architecture`` the compiler target (``gfx90a``), ``memory`` the memory in MiB, ``simds`` and
    ``compute_units`` the number of these units; 0 if unknown.
    """

    number: int
    addresses: tuple[str, ...]
    render: str
    architecture: str
    memory: int
    simds: int = 0
    compute_units: int = 0


@frozen
class XgmiLink:
    """The XGMI connection of two nodes: the number of hops, and that of parallel links."""

    hops: int
    links: int = 1


@frozen
class Topology:
    """The nodes, by the name of their DRM node.

    ``is_hidden``: the kernel does not show all nodes to this process. A container only sees the GPUs whose
    DRM nodes it may open (``kfd_devcgroup_check_permission``).
    """

    nodes: Mapping[str, KfdNode] = field(default_factory=dict)
    is_hidden: bool = False


def read(sysfs: Sysfs) -> Topology:
    """All GPUs and partitions; none on a kernel without KFD."""
    nodes: dict[str, KfdNode] = {}
    is_hidden = False
    for name in sysfs.names(f"{TOPOLOGY}/nodes"):
        facts = _properties(sysfs, f"{TOPOLOGY}/nodes/{name}/properties")
        is_hidden |= not facts
        if facts.get("simd_count") and facts.get("drm_render_minor") and _NUMBER.fullmatch(name):
            node = _node(sysfs, name, facts)
            nodes[node.render] = node
    return Topology(nodes, is_hidden)


def generation(sysfs: Sysfs) -> str:
    """A number that changes with the topology; empty without KFD."""
    return sysfs.text(f"{TOPOLOGY}/generation_id")


PROCESSES = "/sys/class/kfd/kfd/proc"
"""A directory for each process with ``/dev/kfd`` open (drivers/gpu/drm/amd/amdkfd/kfd_process.c).

In it, later kernels have a directory ``context_<n>`` with the same files for each further context.
"""

MOST_PROCESSES = 1024
"""Processes that are read at most."""

MOST_CONTEXTS = 64
"""Further contexts of a process that are read at most."""


def processes(sysfs: Sysfs) -> dict[int, set[int]]:
    """The processes that use each node: those with a queue or memory on it. By the node's number."""
    numbers = {
        sysfs.text(f"{TOPOLOGY}/nodes/{name}/gpu_id"): int(name)
        for name in sysfs.names(f"{TOPOLOGY}/nodes")
        if _NUMBER.fullmatch(name)
    }
    found: dict[int, set[int]] = {}
    for pid in [name for name in sysfs.names(PROCESSES) if _NUMBER.fullmatch(name)][:MOST_PROCESSES]:
        own = f"{PROCESSES}/{pid}"
        contexts = [name for name in sysfs.names(own) if name.startswith("context_")][:MOST_CONTEXTS]
        for place in (own, *(f"{own}/{name}" for name in contexts)):
            queues = {sysfs.text(f"{place}/queues/{queue}/gpuid") for queue in sysfs.names(f"{place}/queues")}
            for gpu, number in numbers.items():
                if gpu in queues or sysfs.integer(f"{place}/vram_{gpu}"):
                    found.setdefault(number, set()).add(int(pid))
    return found


def xgmi_links(sysfs: Sysfs, number: int) -> dict[int, XgmiLink]:
    """The XGMI links of a node to others, by the numbers of those."""
    found: dict[int, XgmiLink] = {}
    for kind in ("io_links", "p2p_links"):
        for name in sysfs.names(f"{TOPOLOGY}/nodes/{number}/{kind}"):
            link = _properties(sysfs, f"{TOPOLOGY}/nodes/{number}/{kind}/{name}/properties")
            if link.get("type") == XGMI and "node_to" in link:
                found.setdefault(link["node_to"], _xgmi_link(link))
    return found


def _xgmi_link(link: Mapping[str, int]) -> XgmiLink:
    weight = link.get("weight", HOP)
    # the least bandwidth is that of one link, the most that of all (amdgpu_xgmi.c, amdgpu_xgmi_get_bandwidth)
    least, most = link.get("min_bandwidth", 0), link.get("max_bandwidth", 0)
    return XgmiLink(
        hops=1 if weight == ACROSS else max(1, weight // HOP),
        links=max(1, most // least) if least else 1,
    )


def _node(sysfs: Sysfs, name: str, facts: Mapping[str, int]) -> KfdNode:
    per_unit = facts.get("simd_per_cu", 0)
    return KfdNode(
        number=int(name),
        addresses=_addresses(facts.get("domain", 0), facts.get("location_id", 0)),
        render=f"renderD{facts['drm_render_minor']}",
        architecture=_architecture(facts.get("gfx_target_version", 0)),
        memory=sum(_banks(sysfs, f"{TOPOLOGY}/nodes/{name}")) >> 20,
        simds=facts["simd_count"],
        compute_units=facts["simd_count"] // per_unit if per_unit else 0,
    )


def _banks(sysfs: Sysfs, place: str) -> Iterator[int]:
    for name in sysfs.names(f"{place}/mem_banks"):
        bank = _properties(sysfs, f"{place}/mem_banks/{name}/properties")
        if bank.get("heap_type") in _FRAME_BUFFER:
            yield bank.get("size_in_bytes", 0)


def _addresses(domain: int, location: int) -> tuple[str, ...]:
    """The PCI address of a location (``pci_dev_id``), and that of the first function of the device.

    Later drivers have the number of a partition in the upper four bits.
    """
    device = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
    return tuple(dict.fromkeys((f"{device}.{location & 7}", f"{device}.0")))


def _architecture(version: int) -> str:
    """The compiler's name for a version: 90010 is ``gfx90a``, with two decimal digits for minor and step."""
    if not 0 < version < 1_000_000:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _properties(sysfs: Sysfs, path: str) -> dict[str, int]:
    """The numbers of a ``properties`` file: a name and a number in each line."""
    found = {}
    for line in sysfs.text(path).splitlines():
        name, _, number = line.partition(" ")
        if _NUMBER.fullmatch(number):
            found[name] = int(number)
    return found
