"""A machine with eight GPUs and eight HCAs behind four switches on two sockets, and its host's memory."""

from __future__ import annotations

from collections.abc import Sequence

from devhost.allocation.inventory import Inventory
from devhost.allocation.preferred import PreferredAllocation
from devhost.backend.model import Device
from devhost.planning.affinity import Choice
from devhost.planning.claims import Reason
from devhost.planning.plan import Membership, Offer, units
from devhost.planning.settings import Of, Prefer

SWITCHES = 4


def switch_of(name: str) -> int:
    """The switch of a device, by its name's number."""
    return int(name[1:]) // 2


def behind(switch: int, name: str, **more: object) -> Device:
    """A device at a downstream port of its own."""
    port, upstream = f"0000:{0x10 * (switch + 1):02x}:01.0", f"0000:{0x10 * (switch + 1) + 1:02x}:00.0"
    downstream = f"0000:{0x10 * (switch + 1) + 2:02x}:{name}.0"
    return Device(
        name, numa_nodes=(switch // 2,), pcie_path=(port, upstream, downstream, f"at-{name}"), **more
    )


class Machine:
    """The resources of one host, a clock that stands still, and a kubelet that follows preferences."""

    def __init__(self, **kinds: int) -> None:
        self.now = 1000.0
        self.inventories: dict[str, Inventory] = {}
        self.policies: dict[str, Prefer] = {}
        for kind, each in kinds.items():
            count = each * SWITCHES
            devices = [
                behind(n // each, f"{kind[0]}{n * 2 // each if each == 1 else n}") for n in range(count)
            ]
            self.add(kind, devices)
        self.vicinity = PreferredAllocation(lambda: self.inventories, clock=lambda: self.now)

    def add(
        self, kind: str, devices: Sequence[Device], replicas: int = 1, of: Of | Membership = Of.EACH
    ) -> None:
        """Another resource, whose devices may be a unit by an attribute."""
        inventory = self.inventories[kind] = Inventory(lambda: 0.0, lambda: self.now)
        unit = None if isinstance(of, Of) else of
        offers = [Offer(device, replicas, unit) for device in devices]
        made = units(of if isinstance(of, Of) else "slot", offers)
        inventory.update(made, lambda device: device.health, lambda device: Reason("gone"))

    def free(self, kind: str) -> list[str]:
        """Tokens nobody has."""
        inventory = self.inventories[kind]
        return [name for name in inventory.snapshot.entries if name not in inventory.allocations]

    def hold(self, kind: str, *tokens: str) -> None:
        """Somebody has had these for long."""
        self.inventories[kind].allocated(tokens)

    def prefer(self, kind: str, count: int, links: dict[frozenset[str], int] | None = None) -> Choice:
        """What is preferred of the free tokens."""
        policy = self.policies.get(kind, Prefer.TOPOLOGY)
        return self.vicinity.prefer(
            kind, self.inventories[kind], policy, links or {}, self.free(kind), (), count
        )

    def ask(self, kind: str, count: int) -> list[str]:
        """One container's request for one resource, from the preference to the devices."""
        began = self.now
        tokens = self.prefer(kind, count).tokens
        self.now += 0.0005
        self.inventories[kind].allocated(tokens)
        self.vicinity.allocated(kind, self.inventories[kind], began, tokens)
        self.now += 0.0005
        return list(tokens)

    def pause(self, seconds: float) -> None:
        """Nothing happens for a while."""
        self.now += seconds

    def pod(self, *wants: tuple[str, int]) -> dict[str, list[str]]:
        """A pod of one container, long after everything before."""
        self.pause(60)
        return {kind: self.ask(kind, count) for kind, count in wants}
