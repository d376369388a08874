"""The rig of the allocation layer: a ledger, the list of a resource, and what hands it out, without a host.

Each class has what the one before it has. The clock is in the test's hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from devhost.allocation.allocations import Allocations, Listing, Reservation
from devhost.allocation.allocator import Allocator
from devhost.allocation.cdi.files import SpecFiles
from devhost.allocation.cdi.injector import MAX_SETS, CdiInjection
from devhost.allocation.claims import ClaimedDevice
from devhost.allocation.device_info import DeviceInfoFiles
from devhost.allocation.inventory import Inventory, Snapshot
from devhost.allocation.leases import Claims
from devhost.allocation.resource_backend import Granted, ResourceBackend
from devhost.backend import AllocateRequest, Backend, Device, DeviceNode, Edits, NoOptions
from devhost.backend.model import ClaimHolder, Health, Holder, unhealthy
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import Scanner
from devhost.planning.claims import Reason, claims_of, held_by_claims
from devhost.planning.plan import Offer, Plan, units
from devhost.planning.planner import plan_devices
from devhost.planning.settings import Of, ResourceSettings, Settings
from devhost.planning.timing import ALLOCATION as NODE
from devhost.telemetry.metrics import Metrics

CARD = "example.com/card"
POD = Holder("default", "pod", "main")


async def allocated(allocator: Allocator, tokens: Sequence[str]) -> Granted:
    """The answer, after it is recorded as the server does."""
    answer = await allocator.allocate(tokens)
    await answer.record()
    return answer.granted


class NotingScanner(Scanner):
    """Notes which devices lack something, and how often it is asked to look again."""

    def __init__(self, runner: BackendRunner) -> None:
        super().__init__(runner, Metrics(), lambda caused_at: None)
        self.denied: dict[str, list[str]] = {}
        self.rechecks = 0

    def report_missing(self, device: str, paths: Sequence[str]) -> None:
        self.denied[device] = list(paths)

    def recheck(self) -> None:
        self.rechecks += 1


class Ledger:
    """What containers hold on a node whose devices a test chooses, and the plans that are made of it."""

    def __init__(self, *devices: Device | str) -> None:
        self.now = 1000.0
        self.replans = 0
        self.found: dict[str, dict[str, Device]] = {"card": {}, "net": {}}
        self.plug(*devices)
        self.allocations = Allocations(lambda: self.now, self.replan)

    def replan(self) -> None:
        self.replans += 1

    def plug(self, *devices: Device | str, backend: str = "card") -> None:
        """The backend finds these devices and no other."""
        made = (Device(one) if isinstance(one, str) else one for one in devices)
        self.found = {**self.found, backend: {device.id: device for device in made}}

    def plan(self, *entries: ResourceSettings, driver: str = "") -> Plan:
        return plan_devices(self.found, Settings(entries, dra_driver=driver), self.allocations)

    def hear(
        self,
        *,
        pods: int = 3,
        kubelet: int = 1,
        after: float = NODE.release_gap,
        containers: Mapping[Holder, bool] | None = None,
        claims: Claims | None = None,
        **held: str,
    ) -> bool:
        """The kubelet names these tokens, some time after what happened last; whether that is news.

        Args:
            pods: how many pods it names.
            kubelet: the run of the kubelet.
            after: seconds.
            containers: all containers, and whether each has devices of device plugins.
            claims: the ResourceClaims that containers use.
            held: the tokens of each resource, which is given without its domain.
        """
        self.now += after
        holders = {f"example.com/{name}": dict.fromkeys(tokens.split(), POD) for name, tokens in held.items()}
        return self.allocations.apply(
            Listing((kubelet,), self.now, pods, holders, containers or {}, claims or {})
        )

    def held(self) -> set[tuple[str, str, str]]:
        """The token, the backend and the device of all that is held."""
        ledger = self.allocations.held()
        return {(token, one.backend, one.device.id) for one in ledger for token in one.tokens}

    def claims_of(self, device: str, backend: str = "card") -> Sequence[ClaimHolder]:
        """The claims that hold a device."""
        return claims_of(held_by_claims(self.allocations.held()).get((backend, device), ()))

    def give(self, device: Device, resource: str = CARD, backend: str = "card") -> None:
        """A container gets the only token of a device."""
        held = self.allocations.of(resource)
        with Reservation(held, backend) as reservation:
            reservation.add({device.id: [device]}, [device.id])
            held.allocated(backend, {device.id: [device]}, [device.id])

    def claim(self, holder: ClaimHolder, *devices: ClaimedDevice) -> None:
        """A claim gets these devices."""
        with self.allocations.claims.reserved(holder, devices):
            self.allocations.claims.prepared(holder, devices)


class Listed(Ledger):
    """The list of a resource as the kubelet would see it; ``sick`` has why devices are unhealthy."""

    def __init__(self, resource: str = CARD, **sick: str) -> None:
        super().__init__()
        self.sick = sick
        self.inventory = Inventory(
            lambda: 1e9 + self.now,
            lambda: self.now,
            allocations=self.allocations.of(resource),
            backend="card",
        )

    def verdict(self, device: Device) -> Health:
        reason = self.sick.get(device.id)
        return unhealthy(reason) if reason else device.health

    def show(
        self,
        *offers: Offer | Device | str,
        replicas: int = 1,
        of: Of = Of.EACH,
        caused_at: float | None = None,
    ) -> bool:
        """The plan has these devices, as often as ``replicas`` says unless the offer does; whether the list
        differs.
        """
        made = [
            one if isinstance(one, Offer) else Offer(Device(one) if isinstance(one, str) else one, replicas)
            for one in offers
        ]
        return self.inventory.update(units(of, made), self.verdict, gone, caused_at)

    @property
    def snapshot(self) -> Snapshot:
        return self.inventory.snapshot

    def health(self) -> dict[str, str]:
        """Token → why it is unhealthy, empty if it is not."""
        return {name: entry.health.reason or "" for name, entry in self.snapshot.entries.items()}

    def healthy(self) -> set[str]:
        return {name for name, entry in self.snapshot.entries.items() if entry.health.healthy}


def gone(device: str) -> Reason:
    return Reason(f"{device} is gone")


def own_nodes(devices: Sequence[Device]) -> Edits:
    """What a backend answers whose devices have a node each, of the same name."""
    return Edits(tuple(DeviceNode(f"/dev/{device.id}") for device in devices))


class Supply(Listed):
    """The allocator of that resource, and the backend that it asks.

    Args:
        root: where the nodes of devices are.
        kind: what the backend has besides ``discover`` and ``allocate``, which call ``answer``.
        options: those of the resource.
        specs: makes the allocator inject by CDI names, in specifications below.
        most_sets: sets of devices that a specification keeps.
        infos: where files for network plugins go.
    """

    def __init__(
        self,
        root: Path,
        kind: type[Backend] = Backend,
        *,
        resource: str = CARD,
        options: object = None,
        specs: SpecFiles | None = None,
        most_sets: int = MAX_SETS,
        infos: DeviceInfoFiles | None = None,
    ) -> None:
        super().__init__(resource)
        supply = self

        class Card(kind):  # type: ignore[misc, valid-type]
            name = "card"

            def discover(self) -> list[Device]:
                return []

            def allocate(self, request: AllocateRequest) -> Edits:
                supply.asked.append([device.id for device in request.devices])
                edits: Edits = supply.answer(request.devices)
                return edits

        self.root = root
        self.asked: list[list[str]] = []
        self.answer: Callable[[Sequence[Device]], Any] = own_nodes
        self.runner = BackendRunner(Card, NoOptions(), root)
        self.scanner = NotingScanner(self.runner)
        self.entry = ResourceSettings(0, resource, "card", options=options)
        self.backend = ResourceBackend(resource, self.scanner, self.entry)
        if specs is not None:
            self.injection = CdiInjection(
                self.backend, self.inventory, specs, self.publish, most_sets=most_sets
            )
        injection = None if specs is None else self.injection
        self.allocator = Allocator(self.inventory, self.backend, self.entry, injection, device_info=infos)

    def publish(self) -> None:
        """The injection has another name for a device."""

    def make(self, names: Sequence[str]) -> None:
        """These devices have their nodes."""
        (self.root / "dev").mkdir(exist_ok=True)
        for name in names:
            (self.root / "dev" / name).touch()

    async def allocate(self, *tokens: str) -> Granted:
        """What the next container gets."""
        self.runner.discover([])
        return await allocated(self.allocator, tokens)
