"""The backend: combines scans and netlink into devices.

Other modules derive everything from a :class:`~.model.Function` and its :class:`~.model.Facts`:
:mod:`.attributes` for ``where``, :mod:`.health`, :mod:`.allocation` what containers and CNI plugins get,
:mod:`.provisioning` the virtual functions themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from devhost.backend import (
    AllocateRequest,
    AllocationError,
    Backend,
    Context,
    Device,
    Edits,
    Event,
    Health,
    MissingDriver,
    claim,
    unhealthy,
)
from devhost.backend.errors import counted, few
from devhost.backend.frozen import frozen
from devhost.backend.purpose import (
    FABRIC_MANAGEMENT,
    MANAGES_FABRIC,
    NODE_NETWORK,
    NODE_STORAGE,
    PURPOSE,
    FabricManagers,
)
from devhost.backend.sysfs import Sysfs, pcie_path

from .allocation import VARIABLE, document, edits, group_node, own_nodes
from .attributes import ATTRIBUTES, NO_NAMED_FILES, NamedFiles, of_function
from .bursts import BurstWait
from .health import Lacks, Readiness, verdict, without_heartbeat
from .in_use import UNKNOWN, in_use
from .model import VGPU_TYPE, Facts, Function, FunctionKind, Interface, Snapshot
from .network import Network
from .options import SriovOptions, SriovUse
from .pci_bus import Bus
from .provisioning import Ownership, Provisioner
from .scan import MDEV_BUS, Scan
from .watch import network_events

if TYPE_CHECKING:
    from .mediated import MediatedDevices

LEAVING = "the virtual functions of its physical function are about to change"
"""Why functions and their mediated devices are withheld meanwhile."""


@frozen
class _Basis:
    """Everything that determines a device.

    ``reason`` is why its ``purpose`` is special. Without a purpose, it is unknown whether the node uses it.
    """

    function: Function
    physical: Function | None
    representor: Interface | None
    facts: Facts
    lacks: Lacks
    purpose: str = ""
    reason: str = ""
    is_leaving: bool = False


class Sriov(Backend):
    """SR-IOV: physical, virtual and scalable functions, and mediated devices."""

    name = "sriov"
    Options = SriovOptions
    ResourceOptions = SriovUse
    attributes = ATTRIBUTES
    variables = (f"{VARIABLE}_*", "MDEV_PCI_RESOURCE_*")
    discover_deadline = 30.0  # a scan waits for the end of a burst, then for the netlink process
    subsystems = (
        "pci",
        "net",
        "auxiliary",
        "infiniband",
        "infiniband_verbs",
        "infiniband_mad",
        "mdev",
        "vdpa",
        "vfio",
        "vfio-dev",
        "uio",
    )

    def __init__(
        self,
        options: SriovOptions,
        context: Context,
        *,
        sysfs: Sysfs | None = None,
        network: Network | None = None,
        bursts: BurstWait | None = None,
    ) -> None:
        super().__init__(options, context)
        self._sysfs = sysfs or Sysfs(context.root)
        self._scan = Scan(self._sysfs)
        self._bursts = bursts or BurstWait(self._sysfs, ignore_ports=options.ignore_port_state)
        self._network = network or Network(self._sysfs, context, options.node_addresses)
        self._readiness = Readiness(self._sysfs)
        self._fabric_managers = FabricManagers(self._sysfs, context.log)
        # Replaced, never modified: probe(), allocate() and watch() read it on other threads.
        self._made: dict[str, tuple[_Basis, Device]] = {}
        self._snapshot = Snapshot()
        self._mediated: MediatedDevices | None = None
        self._divided: frozenset[str] = frozenset()
        """Claims of the functions of which mediated devices were offered at the last scan."""
        self._files = NO_NAMED_FILES
        self._provisioner = Provisioner(
            Bus(context.root),
            Ownership(context.root),
            options.virtual_functions,
            context.held,
            self._is_offered,
            context.log,
        )

    def notice(self, event: Event) -> None:
        """Notes an event; see :meth:`devhost_sriov.scan.Scan.notice` for its scope."""
        self._scan.notice(event)
        self._network.notice(event)
        self._bursts.notice(event)
        self._readiness.notice(event)
        if self._mediated is not None:
            self._mediated.notice(event)

    def discover(self) -> list[Device]:
        """Every function, also those that are withheld, and the mediated devices."""
        self._bursts.wait(self._snapshot.functions)
        files = NamedFiles.of(self.context.wanted)
        if files != self._files:
            self._files, self._made = files, {}
        snapshot = self._scan.scan(files)
        facts, lacks = self._network.facts(snapshot), self._readiness.lacks(snapshot)
        stored = in_use(self._sysfs, snapshot.functions.values())
        self._made = {
            name: self._make(
                one, snapshot, facts[name], lacks[name], self._purpose(one, facts[name], stored.get(name, ""))
            )
            for name, one in snapshot.functions.items()
        }
        self._snapshot = snapshot
        return [*(device for _, device in self._made.values()), *self._mediated_devices(snapshot)]

    def _mediated_devices(self, snapshot: Snapshot) -> Iterable[Device]:
        """The mediated devices; nodes without their bus do without this code."""
        if self._mediated is None and self._sysfs.exists(MDEV_BUS):
            from .mediated import MediatedDevices

            self._mediated = MediatedDevices(self._sysfs)
        if self._mediated is None:
            return ()
        leaving = {claim.pci(address) for address in self._provisioner.leaving}
        found = [
            one if leaving.isdisjoint(one.part_of) else replace(one, withheld=LEAVING)
            for one in self._mediated.scan(everything=snapshot.everything)
        ]
        self._divided = frozenset().union(*(one.part_of for one in found if not one.withheld))
        return found

    def missing_drivers(self) -> list[MissingDriver]:
        """Options and keys that name nothing on this node, as of the last scan.

        One file may name the addresses and functions of several nodes, so one that exists here is enough.
        """
        found = []
        if self._network.lacks_addresses(self.options.node_addresses):
            reason = (
                "backends.sriov.nodeAddresses has no effect: no interface of the node has these addresses"
            )
            found.append(MissingDriver(few(self.options.node_addresses), reason, makes_device=False))
        for use in self.context.entries:
            names = use.info.keys() if isinstance(use, SriovUse) and self._snapshot.functions else ()
            if names and "*" not in names and self._snapshot.functions.keys().isdisjoint(names):
                reason = "info has no effect: no function of the node has these ids (use * for all)"
                found.append(MissingDriver(few(sorted(names)), reason, makes_device=False))
        return found

    def allocate(self, request: AllocateRequest) -> Edits:
        """What a container needs to use these functions and mediated devices."""
        mediated = [device for device in request.devices if _is_mediated(device)]
        functions = [self._basis(device).function for device in request.devices if not _is_mediated(device)]
        parts = [edits(self._sysfs, functions, request)] if functions else []
        if mediated:
            from .mediated import edits as mediated_edits

            parts.append(mediated_edits(self._sysfs, mediated, request))
        return Edits.merge(parts)

    def device_info(self, device: Device, request: AllocateRequest) -> Mapping[str, object] | None:
        """The device-info document of a function for network plugins."""
        if _is_mediated(device):
            return None
        basis = self._basis(device)
        representor = basis.facts.representor or (basis.representor.name if basis.representor else "")
        return document(self._sysfs, basis.function, representor, request.options)

    def provision(self) -> None:
        """Creates, binds and removes virtual functions according to the options."""
        self._provisioner.run()

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """The functions that do not respond."""
        dead = unhealthy("its configuration space reads as ones: it failed or lost its link")
        made = self._made
        functions = [made[device.id][0].function for device in devices if device.id in made]
        found = without_heartbeat(self._sysfs, functions)
        return found | {one.id: dead for one in functions if self._sysfs.is_dead(one.path)}

    def close(self) -> None:
        """Ends the netlink process, if there is one."""
        self._network.close()

    def watch(self) -> AsyncIterator[Event]:
        """Changes of links, routes and embedded switches, which cause no uevent."""
        return network_events(self.context, self._network)

    def _is_offered(self, address: str) -> bool:
        """Whether a container can get a function, or a mediated device of it."""
        made = self._made.get(address)
        return claim.pci(address) in self._divided or (made is not None and not made[1].withheld)

    def _basis(self, device: Device) -> _Basis:
        if (made := self._made.get(device.id)) is None:
            raise AllocationError(f"{device.id} is gone")
        return made[0]

    def _purpose(self, function: Function, facts: Facts, stored: str) -> tuple[str, str]:
        """The special purpose of a function, and why it has it; both are empty for most."""
        if function.is_network and self._fabric_managers.include(function.pci_path, function.vendor):
            return FABRIC_MANAGEMENT, MANAGES_FABRIC
        reason = facts.in_use or stored
        if not reason or reason.startswith(UNKNOWN):
            return "", reason
        return NODE_NETWORK if facts.in_use else NODE_STORAGE, reason

    def _make(
        self, function: Function, snapshot: Snapshot, facts: Facts, lacks: Lacks, use: tuple[str, str]
    ) -> tuple[_Basis, Device]:
        basis = _Basis(
            function,
            snapshot.physical_of(function),
            snapshot.representors.get(function.id),
            facts,
            lacks,
            *use,
            self._is_leaving(function, snapshot),
        )
        before = self._made.get(function.id)
        # an unchanged device stays the same object, which the core compares by identity
        return before if before and before[0] == basis else (basis, self._device(basis, snapshot))

    def _is_leaving(self, function: Function, snapshot: Snapshot) -> bool:
        """Whether a function, or one of its virtual functions, is about to change."""
        leaving = self._provisioner.leaving
        known = (snapshot.functions[one] for one in leaving if one in snapshot.functions)
        return function.id in leaving or any(one.parent == function.id for one in known)

    def _device(self, basis: _Basis, snapshot: Snapshot) -> Device:
        function = basis.function
        attributes = of_function(function, snapshot, basis.facts, self._files)
        if basis.purpose:
            attributes[PURPOSE] = basis.purpose
        parts, own = self._parts_reason(function), self._withheld_reason(basis)
        is_allowed = self.options.allow_in_use and basis.purpose in (NODE_NETWORK, NODE_STORAGE)
        return Device(
            id=function.id,
            attributes=attributes,
            claims=self._claims(function),
            part_of=frozenset((claim.pci(function.parent),) if function.parent else ()),
            numa_nodes=() if function.numa_node is None else (function.numa_node,),
            pcie_path=pcie_path(function.path),
            health=verdict(
                function, basis.physical, basis.lacks.itself, ignore_ports=self.options.ignore_port_state
            ),
            withheld=parts or own,
            reserved=basis.reason if basis.purpose and not is_allowed else None,
            unusable_for=basis.lacks.uses,
            divided=bool(parts) and own is None,
        )

    def _parts_reason(self, function: Function) -> str | None:
        """Why the parts of a function are offered instead of it; ``None`` if it has none."""
        counts = ((function.num_vfs, "virtual"), (function.num_sfs, "scalable"))
        if parts := [counted(count, f"{kind} function") for count, kind in counts if count]:
            is_one = function.num_vfs + function.num_sfs == 1
            return f"it has {' and '.join(parts)}, which {'is' if is_one else 'are'} offered instead"
        return None

    def _withheld_reason(self, basis: _Basis) -> str | None:
        """Why a function is not offered, whether it has parts or not."""
        function = basis.function
        if function.vgpu_type == 0:
            return f"no vGPU is configured: its {VGPU_TYPE} is 0 (write the number of a vGPU type to it)"
        if basis.is_leaving:
            return LEAVING
        if basis.reason and not basis.purpose and not self.options.allow_in_use:
            return f"{basis.reason}; set backends.sriov.allowInUse to offer it"
        return None

    def _claims(self, function: Function) -> frozenset[str]:
        """Claims of a function: itself, and its IOMMU group if a program gets that."""
        nodes = {claim.node(path) for path in own_nodes(self._sysfs, function)}
        if function.kind is FunctionKind.SCALABLE:
            return frozenset((claim.auxiliary(function.id), *nodes))
        own = {claim.pci(function.address), *nodes}
        if function.uses_vfio and (group := function.iommu_group).isascii() and group.isdecimal():
            own |= {claim.iommu_group(group), claim.node(group_node(self._sysfs, group))}
        return frozenset(own)


def _is_mediated(device: Device) -> bool:
    return device.attributes.get("kind") == FunctionKind.MEDIATED
