"""The backend: combines scans, namespaces and nodes into devices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path

from devhost.backend import (
    HEALTHY,
    AllocateRequest,
    AllocationError,
    AttributeValue,
    Backend,
    Context,
    Device,
    DeviceNode,
    Edits,
    Event,
    Health,
    MissingDriver,
    claim,
    option,
)
from devhost.backend.frozen import frozen
from devhost.backend.infiniband import DIRECTORY, Node, Role, rdma_cm_node
from devhost.backend.netlink import shares_network_namespace
from devhost.backend.purpose import PURPOSE
from devhost.backend.sysfs import Sysfs, pcie_path

from .attributes import ATTRIBUTES, of_function, of_unit
from .missing_drivers import MissingDrivers
from .model import Kind, Place, health_of
from .namespaces import Absent, Presence, refusal
from .netlink import RdmaCore, running_core
from .nodes import missing_node_reason, required
from .purpose import Purposes
from .scan import PORTS, Function, FunctionReader, Scan, Unit, read_place
from .verbs import Verbs, VerbsHealth, VerbsProbe
from .watch import PortWatch, unannounced_ports

DEVICES = "RDMA_DEVICES"
"""The variable with the names of a container's RDMA devices, separated by commas.

The kubelet keeps one value where several resources set it, so each resource also sets one that ends in its
own name.
"""

OWN_NODES = DIRECTORY
"""The directory in which libibverbs opens nodes, independent of the root."""


@frozen
class RdmaOptions:
    """The keys under ``backends.rdma``."""

    ignore_port_state: bool = option(False, "Adapters without an active port count as healthy.")
    verbs_probe: VerbsProbe = option(
        VerbsProbe.AUTO,
        "Whether each resync opens every adapter through pyverbs: `auto` if pyverbs is installed, "
        "`always` (logs a warning if it is not), or `never`.",
    )


@frozen
class _Basis:
    """Everything that determines a device.

    ``missing_node`` is the reason if one is missing, ``reason`` why its ``purpose`` is special.
    """

    unit: Unit
    purpose: str
    reason: str
    missing_node: str
    has_rdma_cm: bool
    netns_mode: str | None


class Rdma(Backend):
    """RDMA adapters: InfiniBand, RoCE, iWARP and EFA."""

    name = "rdma"
    Options = RdmaOptions
    attributes = ATTRIBUTES
    variables = (f"{DEVICES}*",)
    subsystems = (
        "infiniband",
        "infiniband_verbs",
        "infiniband_mad",
        "infiniband_cm",
        "misc",
        "net",
        "pci",
        "auxiliary",
    )

    def __init__(
        self,
        options: RdmaOptions,
        context: Context,
        *,
        sysfs: Sysfs | None = None,
        core: RdmaCore | None = None,
        verbs: Verbs | None = None,
        ports: PortWatch | None = None,
        own_nodes: str = OWN_NODES,
    ) -> None:
        super().__init__(options, context)
        self._core = core or running_core(context.root)
        self._ports = ports or PortWatch(context)
        self._own_nodes = own_nodes
        self._sysfs = sysfs or Sysfs(context.root)
        self._scan = Scan(self._sysfs)
        self._presence = Presence(self._sysfs)
        self._purposes = Purposes(self._sysfs, context)
        self._missing_drivers = MissingDrivers(self._sysfs)
        self._missing: Sequence[MissingDriver] = ()
        self._functions_stale = True
        self._verbs = VerbsHealth(options.verbs_probe, context.log, verbs)
        self._netns_mode: str | None = None
        self._hears_links = False
        self._made: dict[str, tuple[_Basis, Device]] = {}
        # Replaced, never modified: probe(), allocate() and watch() read them on other threads.
        self._names: Mapping[str, str] = {}
        self._places: Mapping[str, Place] = {}
        self._absent: Mapping[str, Absent] = {}

    def notice(self, event: Event) -> None:
        """Notes an event; see :meth:`devhost_rdma.scan.Scan.notice` for its scope."""
        self._scan.notice(event)
        self._functions_stale |= event.subsystem != "net" and event.sys_path not in PORTS

    def discover(self) -> list[Device]:
        """Every function with RDMA devices, on the node or in a pod."""
        snapshot = self._scan.scan()
        if snapshot.everything:
            self._netns_mode = self._core.netns_mode() if self._core else None
            self._hears_links = shares_network_namespace(self._sysfs)
        rdma_cm = rdma_cm_node(self._sysfs)
        self._purposes.update(unit.function for unit in snapshot.units)
        self._made = {unit.function.place.id: self._make(unit, rdma_cm) for unit in snapshot.units}
        absent = self._presence.absent(snapshot.units, snapshot.hidden_nodes, self._netns_mode)
        self._absent = {away.place.id: away for away in absent}
        seen = [
            (basis.unit, device) for name, (basis, device) in self._made.items() if name not in self._absent
        ]
        self._presence.remember(seen, absent)
        self._places = {unit.function.place.id: unit.function.place for unit, _ in seen}
        self._names = {unit.function.place.id: unit.main.name for unit, _ in seen}
        if snapshot.everything or self._functions_stale:
            self._functions_stale = False
            self._missing = self._without_drivers(snapshot.units, absent)
        self._ports.follow(
            [
                path
                for unit in snapshot.units
                for path in unannounced_ports(unit, hears_links=self._hears_links)
            ]
        )
        return [device for _, device in seen] + [self._absent_device(away, rdma_cm) for away in absent]

    def missing_drivers(self) -> Sequence[MissingDriver]:
        """Adapters without an RDMA device because a driver or module is missing, as of the last scan."""
        return self._missing

    def allocate(self, request: AllocateRequest) -> Edits:
        """The nodes of all RDMA devices of these functions, and variables with their names."""
        rdma_cm = rdma_cm_node(self._sysfs)
        nodes: dict[str, bool] = {}
        names: dict[str, None] = {}
        rdma_cm_needed = False
        for device in request.devices:
            place = self._places.get(device.id)
            found, own = read_place(self._sysfs, place) if place else ([], [])
            if not found:
                raise AllocationError(refusal(self._absent, device.id))
            if missing_node := missing_node_reason(found[0], own, rdma_cm, self._sysfs):
                raise AllocationError(f"{device.id}: {missing_node}")
            needed = set(required(found[0]))
            nodes.update({node.path: node.role in needed for node in own})
            names.update(dict.fromkeys(one.name for one in found))
            rdma_cm_needed |= Role.RDMA_CM in needed
        if rdma_cm:
            nodes[rdma_cm] = rdma_cm_needed
        edits = tuple(
            DeviceNode(path, required=is_needed, shared=path == rdma_cm) for path, is_needed in nodes.items()
        )
        variables = (request.variable(DEVICES), DEVICES)
        return Edits(edits, env=dict.fromkeys(variables, ",".join(names)))

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """The health of devices that were opened with pyverbs, if it is installed.

        Empty if the nodes below ``context.root`` are not those in ``/dev`` of this process, which libibverbs
        opens.
        """
        return self._verbs.probe(devices, self._names) if self._has_own_nodes() else {}

    def watch(self) -> AsyncIterator[Event]:
        """Changes of ports, which cause no uevent."""
        return self._ports.events()

    def _without_drivers(self, units: Iterable[Unit], absent: Iterable[Absent]) -> Sequence[MissingDriver]:
        functions = [unit.function for unit in units]
        served = {one.place.address for one in functions} | {away.place.address for away in absent}
        return [*self._missing_drivers.scan(served, {function.driver for function in functions})]

    def _make(self, unit: Unit, rdma_cm: str | None) -> tuple[_Basis, Device]:
        missing_node = missing_node_reason(unit.main, unit.nodes, rdma_cm, self._sysfs)
        purpose, reason = self._purposes.of(unit.function)
        basis = _Basis(unit, purpose, reason, missing_node, bool(rdma_cm), self._netns_mode)
        before = self._made.get(unit.function.place.id)
        # an unchanged device stays the same object, which the core compares by identity
        return before if before and before[0] == basis else (basis, self._device(basis))

    def _device(self, basis: _Basis) -> Device:
        unit = basis.unit
        attributes = of_unit(unit, has_rdma_cm=basis.has_rdma_cm, netns_mode=basis.netns_mode)
        if basis.purpose:
            attributes[PURPOSE] = basis.purpose
        attributes = self._presence.completed(unit, attributes)
        names = [device.name for device in unit.devices]
        health = health_of(unit.main.ports, basis.missing_node, ignore_ports=self.options.ignore_port_state)
        return _device(unit.function, attributes, unit.nodes, names, health, basis.reason)

    def _absent_device(self, away: Absent, rdma_cm: str | None) -> Device:
        if away.last is not None:
            return away.last
        function = FunctionReader(self._sysfs).read(away.place)
        names = tuple(dict.fromkeys(node.ib_device for node in away.nodes))
        attributes = of_function(function, away.nodes, has_rdma_cm=bool(rdma_cm), netns_mode=self._netns_mode)
        if names:
            attributes |= {"ibDevice": names[0], "ibDevices": names}
        return _device(function, attributes, away.nodes, names)

    def _has_own_nodes(self) -> bool:
        """Whether libibverbs opens the nodes that were found, such as by a mount in a container."""
        if not self._sysfs.prefix:
            return True
        try:
            return Path(self._own_nodes).samefile(self._sysfs.prefix + DIRECTORY)
        except OSError:
            return False


def _device(
    function: Function,
    attributes: Mapping[str, AttributeValue],
    nodes: Iterable[Node],
    names: Iterable[str],
    health: Health = HEALTHY,
    reserved: str | None = None,
) -> Device:
    """The device of a function, whose RDMA devices have these nodes and names."""
    place = function.place
    above = {claim.pci(place.address)} if place.address else set()
    if place.kind is Kind.SUBFUNCTION:
        above.add(claim.auxiliary(place.id))
    own = {claim.rdma(place.id), *(claim.node(node.path) for node in nodes), *map(claim.infiniband, names)}
    return Device(
        id=place.id,
        attributes=attributes,
        claims=frozenset(own),
        part_of=frozenset(above),
        numa_nodes=() if function.numa_node is None else (function.numa_node,),
        pcie_path=pcie_path(place.path),
        health=health,
        reserved=reserved,
    )
