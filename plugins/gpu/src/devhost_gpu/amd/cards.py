"""AMD GPUs and their partitions, from sysfs and the compute topology, and what a container gets.

A GPU of the MI300 family can be partitioned. Its DRM node is then that of its first partition, and each
further partition is a device ``/sys/devices/platform/amdgpu_xcp_<n>``. The driver creates those for the
highest possible number of partitions: only the compute topology shows which of them are in use, and of which
GPU.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from devhost.backend import HEALTHY, AttributeValue, Context, Edits, Event, Health, Usage, claim, unhealthy
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import Sysfs
from devhost_gpu.attributes import GPU, PARTITION, VF
from devhost_gpu.discovery import AMD, Adapter
from devhost_gpu.drm import DriverState, driver_state, drm_nodes
from devhost_gpu.environment import STANDARD, Environment
from devhost_gpu.options import GpuOptions, Layout
from devhost_gpu.vendor import CardOf, Change, ContainerRequest, Vendor, device, named, of_adapter, parents

from . import kfd
from .health import AmdHealth

if TYPE_CHECKING:
    from .modes import Modes

DRIVERS = frozenset({"amdgpu", "radeon"})
"""The drivers with which an AMD function is a GPU. With any other driver (``vfio-pci``) it is withheld."""

SAME_CHIP, NEIGHBOUR = 10_000, 100
"""The result of :meth:`Amd.links` for two partitions of one GPU, and for each XGMI link between two GPUs."""

_WHOLE = "SPX"
"""The compute partition mode in which a GPU is one (Documentation/gpu/amdgpu, "Compute Partitioning")."""

_MODE = re.compile(r"(?!UNKNOWN)[A-Z]{2,8}\d{0,2}")
_LABEL = re.compile(r"[\x20-\x7e]{1,80}")
_NOTHING = frozenset({"", "N/A", "unknown"})
_HEADLESS = ("0302", "0380", "1200")
"""PCI classes of compute cards: without a node in the topology they cannot be used."""


_CANNOT_COMPUTE = "it is not in the compute topology (/sys/class/kfd): see the kernel's log"
_HIDDEN = (
    "it has partitions, which the kernel hides (/sys/class/kfd): the container of devhost needs access to "
    "the device nodes of the GPU, as a privileged one has"
)


@frozen
class AmdFacts:
    """The facts about a card that allocation and preference need.

    ``adapter`` has its DRM nodes, ``whole`` is the GPU that it is, or is a partition of. ``node`` is its node
    in the compute topology, ``None`` if that is unknown. A card that does not compute needs no ``/dev/kfd``.
    """

    adapter: Adapter
    whole: Adapter
    node: kfd.KfdNode | None = None
    computes: bool = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """Paths of its device nodes."""
        return ("/dev/kfd", *self.adapter.nodes) if self.computes else self.adapter.nodes


AmdCard = CardOf[AmdFacts]


class Amd(Vendor):
    """AMD's cards."""

    def __init__(self, options: GpuOptions, context: Context, environment: Environment = STANDARD) -> None:
        self._sysfs = Sysfs(context.root)
        self._context = context
        self._topology_check = environment.timings.topology_check
        self._health = AmdHealth(context, options, environment)
        self._links: tuple[str, dict[int, Mapping[int, kfd.XgmiLink]]] = ("", {})
        self._write = environment.write
        self._modes: Modes | None = None

    def scan(self, adapters: Sequence[Adapter]) -> list[AmdCard]:
        """GPUs, or their partitions if they have any."""
        topology = kfd.read(self._sysfs)
        wholes = {adapter.id: adapter for adapter in adapters if adapter.address}
        members: dict[str, list[Adapter]] = {name: [whole] for name, whole in wholes.items()}
        for adapter in adapters:
            node = topology.nodes.get(adapter.render)
            if node and not adapter.address:
                whole = next((address for address in node.addresses if address in members), "")
                if whole:
                    members[whole].append(adapter)
        cards: list[AmdCard] = []
        for name, parts in members.items():
            facts = self._whole_facts(wholes[name])
            if facts.is_partitioned or len(parts) > 1:
                facts = replace(facts, memory=_share(facts.memory, parts, topology))
            for part in parts:
                cards.append(self._card(len(cards), part, wholes[name], facts, topology))
        return cards

    def probe(self, cards: Sequence[AmdCard]) -> Mapping[str, Health]:
        """The cards' error counters, the exporter's verdicts, and whether the drivers answer."""
        return self._health.check({card.id: card.facts.whole for card in cards})

    def change(self, cards: Sequence[AmdCard], layout: Layout) -> Change | None:
        """How a GPU gets the partition modes of a layout."""
        if self._modes is None:
            from .modes import Modes

            self._modes = Modes(self._sysfs, self._write)
        return self._modes.change(cards[0].facts.whole, layout)

    def links(self, a: AmdCard, b: AmdCard) -> int:
        """How closely XGMI connects two cards; two partitions of one GPU are closer than any others."""
        if a.facts.whole.id == b.facts.whole.id:
            return SAME_CHIP
        if a.facts.node is None or b.facts.node is None:
            return 0
        link = self._links_of(a.facts.node.number).get(b.facts.node.number)
        return NEIGHBOUR * link.links // link.hops if link else 0

    def usage(self, cards: Sequence[AmdCard]) -> Mapping[str, Usage]:
        """Of cards that are a whole GPU: the driver has no figures of a partition."""
        return {
            card.id: self._usage(card.facts.whole.path)
            for card in cards
            if card.device.attributes["kind"] != PARTITION
        }

    def processes(self, cards: Sequence[AmdCard]) -> Mapping[str, Collection[int]]:
        found = kfd.processes(self._sysfs)
        nodes = {card.id: card.facts.node for card in cards}
        return {name: found.get(node.number, ()) for name, node in nodes.items() if node}

    def _usage(self, path: str) -> Usage:
        """See the kernel's Documentation/gpu/amdgpu/driver-misc.rst and thermal.rst."""
        busy, used, memory = (
            self._sysfs.integer(f"{path}/{name}")
            for name in ("gpu_busy_percent", "mem_info_vram_used", "mem_info_vram_total")
        )
        return Usage(None if busy is None else min(busy, 100) / 100, used, memory)

    async def watch(self) -> AsyncIterator[Event]:
        """Changes of the compute topology: other partitions, a GPU that was lost or reset."""
        before = await self._context.run_blocking(kfd.generation, self._sysfs)
        while True:
            await asyncio.sleep(self._topology_check)
            now = await self._context.run_blocking(kfd.generation, self._sysfs)
            if now != before:
                before = now
                yield Event("kfd", "change", kfd.TOPOLOGY)

    def edits(self, cards: Sequence[AmdCard], request: ContainerRequest) -> Edits:
        """``/dev/kfd`` for a card that computes, and the DRM nodes."""
        return drm_nodes((card.id, card.facts.nodes) for card in cards)

    def _links_of(self, node: int) -> Mapping[int, kfd.XgmiLink]:
        """The links of a node, cached until the topology changes."""
        now = kfd.generation(self._sysfs)
        if self._links[0] != now:
            self._links = (now, {})
        known = self._links[1]
        if node not in known:
            known[node] = kfd.xgmi_links(self._sysfs, node)
        return known[node]

    def _card(
        self, index: int, adapter: Adapter, whole: Adapter, facts: _Whole, topology: kfd.Topology
    ) -> AmdCard:
        node = topology.nodes.get(adapter.render)
        is_part = not adapter.address or facts.is_partitioned
        state = self._card_state(adapter, whole, topology, node, is_part=is_part)
        memory = node.memory if node else None
        attributes = of_adapter(whole) | {
            "vendor": AMD,
            "kind": PARTITION if is_part else VF if adapter.is_virtual else GPU,
            "index": index,
            "renderNode": adapter.render_node,
            "cardNode": adapter.card_node,
            "parent": whole.id if is_part else adapter.physical_function,
            "architecture": node.architecture if node else "",
            "memory": ((memory or facts.memory) if is_part else (facts.memory or memory)) or None,
            **facts.attributes,
            **named(
                self._context,
                {"computeUnits": node.compute_units, "simdUnits": node.simds} if node else {},
            ),
        }
        computes = node is not None or (topology.is_hidden and self._sysfs.exists("/dev/kfd"))
        own = AmdFacts(adapter, whole, node, computes)
        claims, part_of = frozenset[str](), frozenset[str]()
        if is_part:
            claims = frozenset({claim.partition(adapter.id), *(claim.node(path) for path in adapter.nodes)})
            part_of = parents(whole) | {claim.pci(whole.address)}
        made = device(
            whole,
            attributes,
            state.health,
            name=adapter.id,
            withheld=state.withheld,
            claims=claims,
            part_of=part_of,
        )
        return CardOf(made, AMD, own)

    def _card_state(
        self,
        adapter: Adapter,
        whole: Adapter,
        topology: kfd.Topology,
        node: kfd.KfdNode | None,
        *,
        is_part: bool,
    ) -> DriverState:
        state = driver_state(self._sysfs, whole, DRIVERS, adapter.nodes)
        if state.withheld or not state.health:
            return state
        if node is None and topology.is_hidden:
            return DriverState(unhealthy(_HIDDEN) if is_part else HEALTHY)
        if node is None and whole.pci_class.startswith(_HEADLESS):
            return DriverState(unhealthy(_CANNOT_COMPUTE))
        if node is not None and not self._sysfs.exists("/dev/kfd"):
            return DriverState(unhealthy("/dev/kfd does not exist"))
        return DriverState(HEALTHY)

    def _whole_facts(self, whole: Adapter) -> _Whole:
        path = whole.path
        compute = self._mode(f"{path}/current_compute_partition")
        memory = self._mode(f"{path}/current_memory_partition")
        total = self._sysfs.integer(f"{path}/mem_info_vram_total")
        return _Whole(
            is_partitioned=compute not in ("", _WHOLE),
            memory=total >> 20 if total is not None and 0 < total < 1 << 60 else None,
            attributes={
                "profile": "_".join(mode.lower() for mode in (compute, memory) if mode) if compute else "",
                "product": self._label(f"{path}/product_name"),
                "uuid": self._label(f"{path}/unique_id"),
                "serial": self._label(f"{path}/serial_number"),
                "firmware": self._label(f"{path}/vbios_version"),
                "driverVersion": self._label(f"/sys/module/{whole.driver}/version") if whole.driver else "",
            },
        )

    def _mode(self, path: str) -> str:
        text = self._sysfs.text(path)
        return text if _MODE.fullmatch(text) else ""

    def _label(self, path: str) -> str:
        text = self._sysfs.text(path)
        return text if _LABEL.fullmatch(text) and text not in _NOTHING else ""


@frozen
class _Whole:
    """The content of a GPU's own files, which applies to each partition; ``memory`` is that of one."""

    is_partitioned: bool
    memory: int | None
    attributes: Mapping[str, AttributeValue | None]


def _share(memory: int | None, parts: Sequence[Adapter], topology: kfd.Topology) -> int | None:
    """The memory of a partition: an equal share in every mode (amdgpu_xcp.c, KFD_XCP_MEMORY_SIZE)."""
    is_known = memory is not None and all(part.render in topology.nodes for part in parts)
    return memory // len(parts) if memory is not None and is_known else None
