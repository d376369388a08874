"""A device that comes to be shared in another way while containers have it."""

from __future__ import annotations

from dataclasses import dataclass

from devhost.allocation.allocations import Allocations, Listing
from devhost.allocation.inventory import Inventory
from devhost.backend.model import HEALTHY, Device, Holder
from devhost.planning.claims import UNNAMED, Reason
from devhost.planning.plan import Offer, units
from devhost.planning.settings import Of
from devhost.planning.timing import ALLOCATION as NODE

APART = NODE.release_gap

POD = Holder("default", "pod", "main")


@dataclass
class Rig:
    now: float = 100.0

    def __post_init__(self) -> None:
        allocations = Allocations(lambda: self.now).of("r")
        self.inventory = Inventory(lambda: self.now, lambda: self.now, allocations=allocations)

    def show(self, replicas: int, of: Of = Of.EACH) -> None:
        offers = [Offer(Device(name), replicas) for name in "ab"]
        self.inventory.update(
            units(of, offers), lambda _: HEALTHY, lambda device: Reason(f"{device} is gone")
        )

    def hear(self, *tokens: str) -> None:
        self.now += APART
        self.inventory.allocations.apply(Listing((1, 2, 3), self.now, 5, {"r": dict.fromkeys(tokens, POD)}))

    def healthy(self) -> set[str]:
        return {name for name, entry in self.inventory.snapshot.entries.items() if entry.health.healthy}


def test_a_device_of_one_container_is_not_shared_until_it_is_released() -> None:
    rig = Rig()
    rig.show(1)
    rig.inventory.allocated(["a"])
    rig.show(2)
    assert rig.healthy() == {"b::0", "b::1"}
    entries = rig.inventory.snapshot.entries
    assert entries["a::0"].health.reason == f"{UNNAMED} has it as a, from before it was shared in this way"
    rig.hear("a")
    rig.show(2)
    withheld = rig.inventory.snapshot.entries["a::1"]
    assert "a pod has it as a" in withheld.health.reason
    assert withheld.held_by == (Holder("default", "pod", "main"),)
    rig.hear()
    rig.hear()
    rig.show(2)
    assert rig.healthy() == {"a::0", "a::1", "b::0", "b::1"}


def test_a_shared_device_is_not_exclusive_until_all_have_released_it() -> None:
    rig = Rig()
    rig.show(3)
    rig.inventory.allocated(["a::0", "a::2"])
    rig.show(1)
    assert rig.healthy() == {"b"}
    rig.hear("a::0", "a::2")
    rig.hear("a::2")
    rig.hear("a::2")
    rig.show(1)
    assert rig.healthy() == {"b"}
    rig.hear()
    rig.hear()
    rig.show(1)
    assert rig.healthy() == {"a", "b"}


def test_who_shares_goes_on_sharing_when_the_number_changes() -> None:
    rig = Rig()
    rig.show(5)
    rig.inventory.allocated(["a::0", "a::4"])
    rig.show(2)
    assert rig.healthy() == {"a::0", "a::1", "b::0", "b::1"}
    rig.show(2, Of.ALL)
    assert rig.healthy() == {"all::0", "all::1"}


def test_all_for_one_and_each_for_one_exclude_one_another() -> None:
    rig = Rig()
    rig.show(1)
    rig.inventory.allocated(["b"])
    rig.show(1, Of.ALL)
    assert rig.healthy() == set()
    rig.show(1)
    assert rig.healthy() == {"a", "b"}
    rig.hear("b")
    rig.hear()
    rig.hear()
    rig.show(1, Of.ALL)
    rig.inventory.allocated(["all::0"])
    rig.show(3, Of.ALL)
    assert rig.healthy() == {"all::0"}
    rig.show(1)
    assert rig.healthy() == set()
