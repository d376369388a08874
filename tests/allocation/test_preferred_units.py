"""Units by an attribute in the preference: each is one device, in the place of its members."""

from __future__ import annotations

from affinity_machine import SWITCHES, Machine, behind, switch_of

from devhost.allocation.inventory import Inventory
from devhost.allocation.preferred import PreferredAllocation
from devhost.backend.model import HEALTHY, Device
from devhost.planning.affinity.topology import Links
from devhost.planning.claims import Reason
from devhost.planning.plan import Membership, Offer, units
from devhost.planning.settings import Prefer

NODES = {"u1": 0, "u2": 1, "u3": 0, "u4": 1}


def preferred(links: Links, size: int, nodes: dict[str, int] | None = None) -> set[str]:
    """The units that a container should get, each of two devices."""
    devices = [
        Offer(Device(f"{unit}-{n}", numa_nodes=(node,)), 1, Membership(unit))
        for unit, node in (NODES if nodes is None else nodes).items()
        for n in range(2)
    ]
    inventory = Inventory(lambda: 0.0, lambda: 0.0)
    inventory.update(units("slot", devices), lambda _: HEALTHY, Reason)
    inventories = {"tpu": inventory}
    preference = PreferredAllocation(lambda: inventories)
    for _ in range(2):  # what is known of the units is used again
        choice = preference.prefer("tpu", inventory, Prefer.TOPOLOGY, links, [*NODES], [], size)
        inventory.update(units("slot", devices), lambda _: HEALTHY, Reason)
    return set(choice.tokens)


def test_units_near_each_other_are_preferred() -> None:
    assert preferred({}, 2) == {"u1", "u3"}


def test_devices_of_other_resources_are_preferred_near_a_unit() -> None:
    machine = Machine(gpu=2)
    for switch in range(SWITCHES):
        machine.add(f"tpu{switch}", [behind(switch, f"{switch}{n}") for n in range(2)], of=Membership("u"))
        got = machine.pod((f"tpu{switch}", 1), ("gpu", 1))
        assert switch_of(got["gpu"][0]) == switch


def test_units_with_linked_members_are_preferred() -> None:
    same = dict.fromkeys(NODES, 0)
    assert preferred({frozenset({"u2-0", "u4-1"}): 3}, 2, same) == {"u2", "u4"}
