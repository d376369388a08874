"""A device that comes to be shared in another way while containers have it."""

from __future__ import annotations

from kit.allocator import POD, Listed

from devhost.planning.claims import UNNAMED
from devhost.planning.settings import Of


def test_a_device_of_one_container_is_not_shared_until_it_is_released() -> None:
    rig = Listed()
    rig.show(*"ab", replicas=1)
    rig.inventory.allocated(["a"])
    rig.show(*"ab", replicas=2)
    assert rig.healthy() == {"b::0", "b::1"}
    entries = rig.inventory.snapshot.entries
    assert entries["a::0"].health.reason == f"{UNNAMED} has it as a, from before it was shared in this way"
    rig.hear(card="a")
    rig.show(*"ab", replicas=2)
    withheld = rig.inventory.snapshot.entries["a::1"]
    assert "a pod has it as a" in withheld.health.reason
    assert withheld.held_by == (POD,)
    rig.hear()
    rig.hear()
    rig.show(*"ab", replicas=2)
    assert rig.healthy() == {"a::0", "a::1", "b::0", "b::1"}


def test_a_shared_device_is_not_exclusive_until_all_have_released_it() -> None:
    rig = Listed()
    rig.show(*"ab", replicas=3)
    rig.inventory.allocated(["a::0", "a::2"])
    rig.show(*"ab", replicas=1)
    assert rig.healthy() == {"b"}
    rig.hear(card="a::0 a::2")
    rig.hear(card="a::2")
    rig.hear(card="a::2")
    rig.show(*"ab", replicas=1)
    assert rig.healthy() == {"b"}
    rig.hear()
    rig.hear()
    rig.show(*"ab", replicas=1)
    assert rig.healthy() == {"a", "b"}


def test_who_shares_goes_on_sharing_when_the_number_changes() -> None:
    rig = Listed()
    rig.show(*"ab", replicas=5)
    rig.inventory.allocated(["a::0", "a::4"])
    rig.show(*"ab", replicas=2)
    assert rig.healthy() == {"a::0", "a::1", "b::0", "b::1"}
    rig.show(*"ab", replicas=2, of=Of.ALL)
    assert rig.healthy() == {"all::0", "all::1"}


def test_all_for_one_and_each_for_one_exclude_one_another() -> None:
    rig = Listed()
    rig.show(*"ab", replicas=1)
    rig.inventory.allocated(["b"])
    rig.show(*"ab", replicas=1, of=Of.ALL)
    assert rig.healthy() == set()
    rig.show(*"ab", replicas=1)
    assert rig.healthy() == {"a", "b"}
    rig.hear(card="b")
    rig.hear()
    rig.hear()
    rig.show(*"ab", replicas=1, of=Of.ALL)
    rig.inventory.allocated(["all::0"])
    rig.show(*"ab", replicas=3, of=Of.ALL)
    assert rig.healthy() == {"all::0"}
    rig.show(*"ab", replicas=1)
    assert rig.healthy() == set()
