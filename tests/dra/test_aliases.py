"""What a device publishes by the terms of its entry."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from devhost.backend.model import NOTHING, AttributeValue, Device
from devhost.dra.aliases import Aliased, Aliases, aliased
from devhost.planning.profiles import bus, first, joined, positive, titled, version
from devhost.planning.settings import Alias, DraTerms

RESOURCE = "example.com/toy"
PARENT = Device("p0", {"uuid": "GPU-1"})


def published(
    *wanted: Alias, attributes: Mapping[str, AttributeValue] = NOTHING, lists: bool = False
) -> Aliased:
    terms = DraTerms(attributes=wanted, lists=lists)
    return aliased(terms, RESOURCE, Device("d0", attributes), {"p0": PARENT})


def capacities(*wanted: Alias, **attributes: AttributeValue) -> Aliased:
    return aliased(DraTerms(capacity=wanted), RESOURCE, Device("d0", attributes), {})


def test_an_entry_without_names_publishes_nothing_more() -> None:
    assert published(attributes={"kind": "gpu"}) == Aliased()


def test_an_attribute_is_published_under_another_name() -> None:
    found = published(Alias("type", "kind"), attributes={"kind": "gpu"})
    assert found.attributes == (("type", "gpu"),)


def test_the_resource_and_the_id_are_sources() -> None:
    found = published(Alias("a", "resource"), Alias("b", "id"))
    assert found.attributes == (("a", RESOURCE), ("b", "d0"))


def test_an_attribute_of_the_device_that_another_one_names_is_a_source() -> None:
    found = published(Alias("parentUUID", "parent.uuid"), attributes={"parent": "p0"})
    assert found.attributes == (("parentUUID", "GPU-1"),)


@pytest.mark.parametrize("attributes", [{}, {"parent": "gone"}, {"parent": 3}])
def test_a_device_without_the_source_lacks_the_name(attributes: Mapping[str, AttributeValue]) -> None:
    wanted = Alias("parentUUID", "parent.uuid"), Alias("type", "kind"), Alias("other", "parent.name")
    assert published(*wanted, attributes=attributes).attributes == ()


def test_a_device_without_the_source_has_the_value_for_such_devices() -> None:
    assert published(Alias("node", "numaNode", otherwise=-1)).attributes == (("node", -1),)


def test_only_devices_of_the_kind_have_the_name() -> None:
    wanted = Alias("a", "id", kind="gpu"), Alias("b", "id", kind="mig")
    assert published(*wanted, attributes={"kind": "mig"}).attributes == (("b", "d0"),)


def test_a_list_of_one_is_its_member() -> None:
    found = published(Alias("ifName", "netDevs"), attributes={"netDevs": ("eth0",)})
    assert (found.attributes, found.left_out) == ((("ifName", "eth0"),), ())


def test_a_list_of_several_is_left_out_unless_the_entry_allows_lists() -> None:
    several: Mapping[str, AttributeValue] = {"netDevs": ("eth0", "eth1")}
    found = published(Alias("ifName", "netDevs"), attributes=several)
    assert found == Aliased(left_out=(("ifName", "it has 2 values, and the entry has no dra.lists"),))
    found = published(Alias("ifName", "netDevs"), attributes=several, lists=True)
    assert found == Aliased((("ifName", ("eth0", "eth1")),))


@pytest.mark.parametrize("lists", [False, True])
def test_an_empty_list_is_no_value(lists: bool) -> None:
    wanted = Alias("ifName", "netDevs"), Alias("names", "netDevs", otherwise="none")
    found = published(*wanted, attributes={"netDevs": ()}, lists=lists)
    assert found == Aliased((("names", "none"),))


def test_a_capacity_has_the_unit_of_its_attribute() -> None:
    found = capacities(Alias("memory", "memory", unit="Mi"), Alias("ports", "ports"), memory=81920, ports=2)
    assert found.capacity == (("memory", "80Gi"), ("ports", "2"))


@pytest.mark.parametrize("value", [-1, 2**43, "many"])
def test_what_is_no_quantity_of_64_bits_is_no_capacity(value: AttributeValue) -> None:
    found = capacities(Alias("memory", "memory", unit="Mi"), memory=value)
    assert found == Aliased(left_out=(("memory", f"{value} is no capacity"),))


def test_the_greatest_quantity_is_a_capacity() -> None:
    assert capacities(Alias("memory", "memory"), memory=2**63 - 1).capacity == (("memory", str(2**63 - 1)),)


# Conversions of profiles


def test_values_are_converted_as_other_drivers_publish_them() -> None:
    assert [version(one) for one in ("9.0", "570.124.06", "7", "12.x", "6.19.14.31400000")] == [
        "9.0.0",
        "570.124.6",
        "7.0.0",
        None,
        "6.19.14",
    ]
    assert (version("1.18446744073709551616"), version("٣.1")) == (None, None)
    assert (first(("a", "b")), first(())) == ("a", None)
    assert (positive(0), positive(7)) == (False, True)
    assert (titled("ada-lovelace"), joined("Instinct (MI210) X")) == ("Ada Lovelace", "Instinct_MI210_X")
    assert bus("pci0000:4a") == "4a"


def test_what_a_device_publishes_is_worked_out_again_only_if_it_or_a_named_device_has_changed() -> None:
    terms = DraTerms(attributes=(Alias("parentUUID", "parent.uuid"),))
    parent, other = Device("p0", {"uuid": "GPU-1"}), Device("p0", {"uuid": "GPU-2"})
    child, alone = Device("d0", {"parent": "p0"}), Device("d1", {"parent": "p9"})
    aliases = Aliases()
    first = aliases.follow(terms, RESOURCE, [child, alone], {"p0": parent})
    again = aliases.follow(terms, RESOURCE, [child, alone], {"p0": parent})
    assert [first[name] is again[name] for name in ("d0", "d1")] == [True, True]
    moved = aliases.follow(terms, RESOURCE, [child, alone], {"p0": other})
    assert [moved[name] is again[name] for name in ("d0", "d1")] == [False, True]
    assert moved["d0"].attributes == (("parentUUID", "GPU-2"),)
    edited = DraTerms(attributes=(Alias("owner", "parent"),))
    assert aliases.follow(edited, RESOURCE, [child], {})["d0"].attributes == (("owner", "p0"),)
    assert aliases.follow(DraTerms(), RESOURCE, [child], {}) == {}
