"""ResourceSlices are always valid, devices keep their places in them, and one change is one slice."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from devhost_testing.dra.api_objects import SLICES, Objects, place
from hypothesis import given, settings
from hypothesis import strategies as st
from slice_rules import pool_problems, slice_problems

from devhost.backend.model import HEALTHY, NOTHING, AttributeValue, Device, Health, unhealthy
from devhost.dra.aliases import Aliased
from devhost.dra.slices import DesiredSlice, LeftOut, Offered, Pool
from devhost.planning.amounts import Amount
from devhost.planning.quantities import quantity
from devhost.planning.settings import OF_ANY, Version

DRIVER = "devhost.example.com"
NODE = "node-1"
RESOURCE = "example.com/toy"

promise = settings(deadline=None, derandomize=True)
thorough = settings(deadline=None, derandomize=True, max_examples=3 * settings().max_examples)


def pool(resource: str = RESOURCE, node: str = NODE, driver: str = DRIVER) -> Pool:
    return Pool(driver, node, resource, "toy")


def toy(
    identity: str = "d0",
    attributes: Mapping[str, AttributeValue] = NOTHING,
    health: Health = HEALTHY,
    replicas: int = 1,
) -> Offered:
    return Offered(Device(identity, attributes), health, replicas)


def toys(*numbers: int) -> list[Offered]:
    return [toy(f"d{number}") for number in numbers]


def only(offer: Offered, **terms: Any) -> dict[str, Any]:
    """How a single device is published."""
    slices, _ = pool().slices([offer], **terms)
    (device,) = slices[0].devices
    return dict(device)


def attributes(offer: Offered, **terms: Any) -> dict[str, Any]:
    """The attributes of a single device, without their types."""
    found: dict[str, Mapping[str, Any]] = only(offer, **terms)["attributes"]
    return {key: value for key, one in found.items() for value in one.values()}


def reasons(offer: Offered, **terms: Any) -> dict[str, str]:
    """Why attributes of a single device, or the device, are left out."""
    _, left_out = pool().slices([offer], **terms)
    return {one.attribute: one.reason for one in left_out}


def ids(slices: Sequence[DesiredSlice]) -> list[list[str]]:
    return [list(one.ids) for one in slices]


def specs(subject: Pool, slices: Sequence[DesiredSlice], generation: int = 1) -> dict[str, dict[str, Any]]:
    """The slices by the names of their objects."""
    return {subject.object_name(one.index): subject.spec(one, generation, len(slices)) for one in slices}


def names(slices: Sequence[DesiredSlice]) -> dict[int, list[str]]:
    """What a publisher finds at the API server after a restart."""
    return {one.index: [device["name"] for device in one.devices] for one in slices}


# Every slice is valid

ID = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@+/=#-"
texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=70)
addresses = st.builds(
    "{:04x}:{:02x}:{:02x}.{}".format, *(st.integers(0, most) for most in (2**24 - 1, 255, 255, 7))
)
identities = st.one_of(
    addresses,
    addresses.map(lambda address: re.sub("[:.]", "-", address)),
    st.text(ID, min_size=1, max_size=63),
    st.text("aA-.", min_size=1, max_size=4),
    st.from_regex(r"a-[0-9a-f]{8}", fullmatch=True),
)
keys = st.one_of(
    st.sampled_from(
        ["driverVersion", "version", "id", "resource", "backend", "pcieSwitch", "sysattr.a/b", "a.b", "a_b"]
    ),
    st.text("aZ9_.-/é", min_size=1, max_size=40),
)
versions = st.sampled_from(
    ["1.2.3", "1.02.3", "1.2", "1.2.3-rc.1+b", "1.2.3-01", "570.86.05", "1.2.3-", "٣.1.1", f"1.{2**64}.3"]
)
values = st.one_of(
    st.booleans(), st.integers(-(2**65), 2**65), texts, versions, st.tuples(texts), st.just("é" * 40)
)
healths = st.one_of(st.just(HEALTHY), texts.map(unhealthy))
many = st.integers(0, 40).map(lambda count: {f"a{number}": number for number in range(count)})
devices = st.builds(
    Device,
    identities,
    st.builds(lambda some, more: {**some, **more}, st.dictionaries(keys, values, max_size=8), many),
    claims=st.frozensets(st.one_of(addresses.map("pci:{}".format), st.just("node:/dev/x")), max_size=3),
    numa_nodes=st.lists(st.integers(-1, 3), max_size=2).map(tuple),
    pcie_path=st.lists(st.one_of(addresses, st.just("odd")), max_size=6).map(tuple),
)
replicas = st.one_of(st.just(1), st.integers(1, 10_000), st.sampled_from([2, 1000, 10_000]))
alias_names = st.one_of(
    st.from_regex(r"([a-z][a-z0-9-]{0,60}[a-z0-9]/)?[A-Za-z_][A-Za-z0-9_]{0,31}", fullmatch=True),
    st.sampled_from(["resource", "pcieSwitch", "resource.kubernetes.io/numaNode", "driverVersion"]),
)
alias_values = st.one_of(values, st.lists(texts, min_size=1, max_size=20).map(tuple))
aliases = st.builds(
    Aliased,
    st.dictionaries(alias_names, alias_values, max_size=24).map(lambda found: tuple(found.items())),
    st.dictionaries(
        st.sampled_from(["memory", "cores", "a.b/c"]),
        st.builds(quantity, st.integers(0, 2**30), st.sampled_from(["", "k", "Ki", "Mi", "Gi"])),
    ).map(lambda found: tuple(found.items())),
    st.booleans(),
)
amounts = st.one_of(
    st.just(()),
    st.builds(
        Amount,
        st.sampled_from(["memory", "cores"]),
        st.integers(1, 2**20),
        st.integers(1, 2**20),
        attribute=st.sampled_from(["", "version"]),
        total=st.integers(0, 2**40),
    ).map(lambda one: (one,)),
)
offers = st.builds(
    Offered, devices, healths, replicas, st.one_of(st.just(Aliased()), aliases), st.just(OF_ANY), amounts
)
subdomains = st.from_regex(
    r"[a-z0-9]([a-z0-9-]{0,80}[a-z0-9])?(\.[a-z]([a-z0-9-]{0,80}[a-z0-9])?){0,3}", fullmatch=True
)
resources = st.builds(
    "{}/{}".format,
    subdomains.filter(lambda domain: len(domain) <= 244),
    st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True),
)
dropped_fields = st.frozensets(st.sampled_from(["taints", "allowMultipleAllocations", "capacity"]))


@promise
@given(st.data())
def test_every_slice_is_valid_by_the_rules_of_the_api_server(data: st.DataObject) -> None:
    driver = data.draw(subdomains.filter(lambda name: len(name) <= 63))
    node = data.draw(subdomains.filter(lambda name: len(name) <= 253))
    subject = pool(data.draw(resources), node, driver)
    for _ in range(2):
        offered = data.draw(st.lists(offers, max_size=8, unique_by=lambda one: one.device.id))
        refusable = [(one.device.id, key) for one in offered for key in ("", "id", *one.device.attributes)]
        rejected = data.draw(st.frozensets(st.sampled_from(refusable))) if refusable else ()
        dropped = data.draw(dropped_fields)
        slices, left_out = subject.slices(offered, dropped=dropped, rejected=rejected)
        assert pool_problems(specs(subject, slices)) == []
        published = {identity for one in slices for identity in one.ids}
        assert published | {one.device_id for one in left_out if not one.attribute} == {
            one.device.id for one in offered
        }
        fields = {key for one in slices for device in one.devices for key in device}
        assert not fields & dropped


@promise
@given(st.lists(offers, max_size=8, unique_by=lambda one: one.device.id), st.integers(0, 140))
def test_the_api_server_accepts_pools_of_several_slices(offered: list[Offered], more: int) -> None:
    subject, server = pool(), Objects()
    slices, _ = subject.slices([*offered, *toys(*range(more))])
    for name, spec in specs(subject, slices).items():
        metadata = {"name": name}
        sent = {"apiVersion": "resource.k8s.io/v1", "metadata": metadata, "spec": spec}
        assert server.create(place(SLICES), sent)["spec"] == spec


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nodeName": "UPPER"}, "nodeName 'UPPER'"),
        ({"devices": [{"name": "a"}, {"name": "a"}]}, "names ['a']"),
        ({"devices": [{"name": "a_b"}]}, "device a_b: name"),
        (
            {"devices": [{"name": "a", "attributes": {"v": {"version": "1.02.3"}}}]},
            "device a: attribute v: version '1.02.3'",
        ),
        (
            {"devices": [{"name": "a", "attributes": {str(n): {"int": n} for n in range(33)}}]},
            "device a: 33 attributes and 0 capacities",
        ),
        (
            {"devices": [{"name": f"d{n}", "taints": [{}] if n else []} for n in range(65)]},
            "65 devices",
        ),
    ],
)
def test_the_rules_that_slices_are_checked_against_find_problems(change: Any, problem: str) -> None:
    valid = pool().spec(pool().slices([])[0][0], 1, 1)
    assert slice_problems(valid) == []
    with_taints = {**valid, **change}
    for device in with_taints.get("devices", ()):
        device["taints"] = [
            {"key": "a", "value": "b", "effect": "NoSchedule"} for _ in device.get("taints", ())
        ]
    assert problem in slice_problems(with_taints)


# Places


@thorough
@given(st.data())
def test_a_device_keeps_slice_and_place_until_it_goes_and_holes_are_filled_first(data: st.DataObject) -> None:
    subject = pool()
    taken: dict[str, tuple[int, int]] = {}
    before: dict[int, DesiredSlice] = {}
    dice = random.Random(data.draw(st.integers(0, 2**32)))
    present: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        present = [number for number in present if dice.random() < 0.9]
        dice.shuffle(present)
        present += [dice.randrange(10**6) for _ in range(dice.choice([0, 1, 5, 70]))]
        present = list(dict.fromkeys(present))
        slices, _ = subject.slices(toys(*present))
        identities = [f"d{number}" for number in present]
        free = iter(sorted(set(spots(len(present) + len(taken))) - {taken.get(i) for i in identities}))
        expected = {i: taken[i] for i in identities if i in taken}
        expected |= {i: next(free) for i in identities if i not in taken}
        assert {i: where(subject, i) for i in identities} == expected
        changed = {taken.get(i) for i in {*taken, *identities} if taken.get(i) != expected.get(i)}
        changed |= {expected.get(i) for i in {*taken, *identities} if taken.get(i) != expected.get(i)}
        touched = {spot[0] for spot in changed if spot}
        for one in slices:
            kept = one.index in before and before[one.index].digest == one.digest
            assert kept == (one.index in before and one.index not in touched)
        assert ids(slices) == [
            [i for i in sorted(expected, key=lambda i: expected[i]) if expected[i][0] == index]
            for index in range(max((index for index, _ in expected.values()), default=0) + 1)
        ]
        taken, before = expected, {one.index: one for one in slices}


def spots(count: int) -> list[tuple[int, int]]:
    """The first places of a pool."""
    return [divmod(number, 64) for number in range(count)]


def where(subject: Pool, identity: str) -> tuple[int, int]:
    """The place of a published device."""
    slot = subject.slot(identity)
    assert slot is not None
    return slot.slice_index, slot.place


@promise
@given(st.integers(0, 200), st.integers(0, 2**32))
def test_adoption_after_a_restart_yields_the_identical_slices(count: int, seed: int) -> None:
    dice = random.Random(seed)
    subject = pool()
    subject.slices(toys(*range(count)))
    left = [number for number in range(count) if dice.random() < 0.8] + list(range(1000, 1000 + seed % 30))
    slices, _ = subject.slices(toys(*left))
    again = pool()
    again.adopt(names(slices))
    dice.shuffle(left)
    assert again.slices(toys(*left))[0] == slices


def test_devices_beyond_64_open_another_slice() -> None:
    assert [len(one.ids) for one in pool().slices(toys(*range(64)))[0]] == [64]
    assert [len(one.ids) for one in pool().slices(toys(*range(65)))[0]] == [64, 1]
    assert [len(one.ids) for one in pool().slices(toys(*range(200)))[0]] == [64, 64, 64, 8]


def test_a_pool_without_devices_is_one_empty_slice() -> None:
    subject = pool()
    slices, left_out = subject.slices([])
    assert (ids(slices), left_out) == ([[]], [])
    assert subject.spec(slices[0], 7, 1) == {
        "driver": DRIVER,
        "nodeName": NODE,
        "pool": {"name": "node-1/example.com-toy", "generation": 7, "resourceSliceCount": 1},
    }


def test_devices_are_placed_in_the_order_of_the_offers() -> None:
    assert ids(pool().slices(toys(3, 1, 2))[0]) == [["d3", "d1", "d2"]]


def test_one_changed_attribute_changes_the_digest_of_one_slice() -> None:
    subject = pool()
    offered = toys(*range(150))
    before, _ = subject.slices(offered)
    offered[70] = toy("d70", {"mtu": 9000})
    after, _ = subject.slices(offered)
    assert [one.digest == two.digest for one, two in zip(before, after, strict=True)] == [True, False, True]
    assert ids(after) == ids(before)


def test_the_order_of_attributes_changes_no_digest() -> None:
    one, _ = pool().slices([toy("d0", {"mtu": 1, "up": True})])
    other, _ = pool().slices([toy("d0", {"up": True, "mtu": 1})])
    assert one[0].digest == other[0].digest


def test_a_new_device_takes_the_place_of_one_that_went() -> None:
    subject = pool()
    subject.slices(toys(*range(130)))
    slices, _ = subject.slices([one for one in toys(*range(130), 500) if one.device.id != "d3"])
    assert slices[0].ids[3] == "d500"
    assert [len(one.ids) for one in slices] == [64, 64, 2]


def test_the_last_slice_goes_with_its_last_device_and_one_in_the_middle_stays() -> None:
    subject = pool()
    subject.slices(toys(*range(130)))
    slices, _ = subject.slices(toys(*range(64), *range(128, 130)))
    assert [len(one.ids) for one in slices] == [64, 0, 2]
    slices, _ = subject.slices(toys(*range(64)))
    assert [len(one.ids) for one in slices] == [64]


def test_after_a_restart_new_devices_fill_the_places_of_slices_and_devices_that_are_gone() -> None:
    subject = pool()
    slices, _ = subject.slices(toys(*range(192)))
    found = names(slices)
    del found[1]
    again = pool()
    again.adopt(found)
    after, _ = again.slices(toys(999, *range(5, 64), *range(128, 192)))
    assert after[0].ids == ("d999", *slices[0].ids[5:])
    assert [len(one.ids) for one in after] == [60, 0, 64]
    assert after[2] == slices[2]


def test_a_place_that_cannot_be_adopted_does_no_harm() -> None:
    subject = pool()
    subject.adopt(
        {-1: ["d0"], 10_000: ["d1"], 0: ["d2", "d2"], 1: ["d2", *[f"x{n}" for n in range(70)], "d3"]}
    )
    slices, _ = subject.slices(toys(0, 1, 2, 3))
    assert ids(slices) == [["d2", "d0", "d1", "d3"]]


def test_a_device_that_is_offered_twice_is_published_once() -> None:
    assert ids(pool().slices([*toys(1), *toys(1)])[0]) == [["d1"]]


# Names


@thorough
@given(identities, identities)
def test_two_devices_never_have_one_name(one: str, other: str) -> None:
    subject = pool()
    assert (subject.device_name(one) == subject.device_name(other)) == (one == other)


@thorough
@given(identities)
def test_a_device_whose_id_is_the_name_of_another_gets_another_name(identity: str) -> None:
    name = pool().device_name(identity)
    assert (pool().device_name(name) == name) == (name == identity)


def test_the_name_of_a_pci_function_is_its_address() -> None:
    assert pool().device_name("0000:3b:00.0") == "0000-3b-00-0"
    assert pool().device_name("card0") == "card0"


def test_a_name_that_hides_part_of_the_id_ends_in_a_hash() -> None:
    assert re.fullmatch("gpu-5a3c-[0-9a-f]{8}", pool().device_name("GPU-5a3c"))
    assert re.fullmatch("id-[0-9a-f]{8}", pool().device_name("@"))


def test_of_two_devices_with_one_name_the_first_is_published() -> None:
    """These two ids have the same first eight digits of their SHA-256."""
    one, other = "AbcdeFGhIJklMnOPqrstuvwxyzabcdefgh", "abCDefgHijKlMnopQrstuvwxyzabcdefgh"
    subject = pool()
    slices, left_out = subject.slices([toy(one), toy(other)])
    name = subject.device_name(one)
    assert ids(slices) == [[one]]
    assert left_out == [LeftOut(other, "", f"device {one} has the same name {name} in slices")]
    assert ids(subject.slices([toy(other)])[0]) == [[other]]


@thorough
@given(resources, resources, subdomains, subdomains)
def test_pools_and_slices_of_two_resources_or_nodes_never_have_one_name(
    resource: str, other: str, node: str, elsewhere: str
) -> None:
    one, two = pool(resource, node), pool(other, elsewhere)
    same = (resource, node) == (other, elsewhere)
    assert (one.name == two.name) == same
    assert (one.object_name(0) == two.object_name(0)) == same


def test_slices_of_two_nodes_differ_although_their_names_join_to_the_same_text() -> None:
    one, other = pool("b-c.com/d", "a"), pool("c.com/d", "a-b")
    assert one.object_name(0) != other.object_name(0)


@pytest.mark.conformance(98)
def test_the_order_of_names_is_the_order_of_slices() -> None:
    found = [pool().object_name(index) for index in (0, 9, 10, 99, 100, 9999)]
    assert found == sorted(found)
    assert found[0].startswith(f"{DRIVER}-{NODE}-example.com-toy-")
    assert found[0].endswith("-0000")


def test_the_number_of_slices_is_limited() -> None:
    with pytest.raises(ValueError, match="none has number 10000"):
        pool().object_name(10_000)


def test_names_of_resources_that_are_no_dns_names_are_distinct() -> None:
    found = {pool(name).name for name in ("a.com/x_y", "a.com/x-y", "a.com/X-y", "a.com/x.y", "a.com-x/y")}
    assert len(found) == 5


# Attributes


def test_a_device_has_attributes_for_its_resource_its_backend_and_its_id() -> None:
    published = only(toy("d0", {"product": "X100", "memory": 16, "up": False, "driverVersion": "570.86.15"}))
    assert published == {
        "name": "d0",
        "attributes": {
            "resource": {"string": RESOURCE},
            "backend": {"string": "toy"},
            "id": {"string": "d0"},
            "product": {"string": "X100"},
            "memory": {"int": 16},
            "up": {"bool": False},
            "driverVersion": {"version": "570.86.15"},
        },
    }


def test_the_resource_is_the_value_that_its_device_class_selects() -> None:
    """A long name of a resource is not left out: no class could select its devices."""
    long = f"{'a' * 60}.com/toy"
    slices, _ = pool(long).slices(toys(0))
    value = slices[0].devices[0]["attributes"]["resource"]["string"]
    assert re.fullmatch(r"a{55}-[0-9a-f]{8}", value)


@pytest.mark.conformance(116)
@pytest.mark.parametrize(
    ("value", "published"),
    [
        ("1.2.3", {"version": "1.2.3"}),
        ("1.2.3-rc.1+build.05", {"version": "1.2.3-rc.1+build.05"}),
        ("570.86.05", {"version": "570.86.5"}),
        ("6.19.14.31400000", {"version": "6.19.14"}),
        ("12.8", {"string": "12.8"}),
        ("v1.2.3", {"string": "v1.2.3"}),
        ("1.2.03-rc.1", {"string": "1.2.03-rc.1"}),
        ("1.2.3\n", {"string": "1.2.3\n"}),
        ("1.2.9999999999999999999", {"version": "1.2.9999999999999999999"}),
        ("1.2.20260131235959000000", {"string": "1.2.20260131235959000000"}),
        ("1.2.3-20260131235959000000", {"string": "1.2.3-20260131235959000000"}),
        ("1.2.3-a.20260131235959000000", {"string": "1.2.3-a.20260131235959000000"}),
        ("1.2.3+20260131235959000000", {"version": "1.2.3+20260131235959000000"}),
        ("٣.1.1", {"string": "٣.1.1"}),
    ],
)
def test_three_numbers_are_a_version_if_the_attribute_is_named_after_one(
    value: str, published: Mapping[str, str]
) -> None:
    assert only(toy("d0", {"fwVersion": value}))["attributes"]["fwVersion"] == published
    assert only(toy("d0", {"firmware": value}))["attributes"]["firmware"] == {"string": value}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("rdmaDevices", ("mlx5_0",), "its value is a list"),
        ("devLinks", "é" * 33, "its value has 66 bytes, and a slice allows 64"),
        ("model", "\udc80", "its value is not valid Unicode"),
        ("big", 2**63, "its value has more than 64 bits"),
        ("id", "x", "devhost publishes its own attribute with this name"),
        ("a" * 33, "x", "its name has more than the 32 characters that a slice allows"),
    ],
)
def test_a_value_that_no_slice_may_have_is_left_out_with_a_reason(
    name: str, value: AttributeValue, reason: str
) -> None:
    offer = toy("d0", {name: value, "other": 1})
    assert reasons(offer) == {name: reason}
    assert attributes(offer).get("other") == 1
    assert attributes(offer)["id"] == "d0"


def test_names_of_attributes_become_identifiers_and_the_first_of_two_wins() -> None:
    offer = toy("d0", {"sysattr.device/rev": 1, "9p": 2, "a.b": 3, "a_b": 4})
    found = attributes(offer)
    assert (found["sysattr_device_rev"], found["_9p"], found["a_b"]) == (1, 2, 3)
    assert reasons(offer) == {"a_b": "another attribute is published as a_b"}


@pytest.mark.parametrize("replicas", [1, 2])
def test_of_too_many_attributes_the_last_declared_are_left_out(replicas: int) -> None:
    numbered = {f"a{number}": number for number in range(40)}
    offer = Offered(Device("d0", numbered, numa_nodes=(1,)), HEALTHY, replicas)
    found = only(offer)
    assert len(found["attributes"]) + len(found.get("capacity", {})) == 32
    kept = 29 - replicas
    assert [key for key in found["attributes"] if key.startswith("a")] == [f"a{n}" for n in range(kept)]
    assert list(reasons(offer)) == [f"a{number}" for number in range(kept, 40)]


SWITCHED = ("0000:3a:00.0", "0000:3b:00.0", "0000:3c:09.0", "0000:3d:00.0")
"""A root port, the upstream and a downstream port of a switch, a device."""


@pytest.mark.parametrize(
    ("path", "switch", "root"),
    [
        (SWITCHED, "0000:3b:00.0", "pci0000:3a"),
        ((*SWITCHED[:3], "0000:3D:00.0", "0000:3e:00.0", "0000:3f:00.0"), "0000:3d:00.0", "pci0000:3a"),
        (SWITCHED[:3], None, "pci0000:3a"),
        (SWITCHED[:2], None, "pci0000:3a"),
        (("0000:00:02.0",), None, "pci0000:00"),
        # behind Intel VMD, whose devices are in a separate domain
        (("0000:64:00.5", "10000:00:02.0", "10000:01:00.0", "10000:02:00.0"), None, "pci0000:64"),
        (("0000:64:00.5", *(f"1{one}" for one in SWITCHED)), "10000:3b:00.0", "pci0000:64"),
        ((*SWITCHED[:-1], "board0"), "0000:3b:00.0", "pci0000:3a"),  # a unit below the last bridge
        ((), None, None),
        (("somewhere",), None, None),
    ],
)
def test_a_device_has_attributes_for_the_switch_and_the_host_bridge_above_it(
    path: tuple[str, ...], switch: str | None, root: str | None
) -> None:
    found = attributes(Offered(Device("d0", pcie_path=path), HEALTHY))
    assert found.get("pcieSwitch") == switch
    assert found.get("resource.kubernetes.io/pcieRoot") == root


@pytest.mark.parametrize(
    ("device", "address"),
    [
        (Device("0000:3D:00.0"), "0000:3d:00.0"),
        (Device("card", claims=frozenset({"pci:0000:3d:00.0", "node:/dev/x"})), "0000:3d:00.0"),
        (
            Device("card", claims=frozenset({"pci:0000:3d:00.0", "pci:0000:3d:00.1"}), pcie_path=SWITCHED),
            "0000:3d:00.0",
        ),
        (Device("card", claims=frozenset({"pci:0000:3d:00.0", "pci:0000:3d:00.1"})), None),
        # a part of a function, and a device on a controller, are no functions
        (Device("slice", part_of=frozenset({"pci:0000:3d:00.0"}), pcie_path=SWITCHED), None),
        (Device("ttyUSB0", claims=frozenset({"usb:1-1"}), pcie_path=SWITCHED), None),
        # a unit that is named after the physical function of its members
        (Device("0000:3d:00.0", claims=frozenset({"pci:0000:3d:00.1", "pci:0000:3d:00.2"})), None),
    ],
)
def test_only_a_pci_function_has_a_pci_address(device: Device, address: str | None) -> None:
    assert attributes(Offered(device, HEALTHY)).get("resource.kubernetes.io/pciBusID") == address


@pytest.mark.parametrize(
    ("nodes", "value"), [((0,), 0), ((1,), 1), ((-1,), None), ((), None), ((0, 1), None)]
)
def test_only_a_device_near_one_numa_node_has_a_numa_node(nodes: tuple[int, ...], value: int | None) -> None:
    found = attributes(Offered(Device("d0", numa_nodes=nodes), HEALTHY))
    assert found.get("resource.kubernetes.io/numaNode") == value


# Health, sharing, and what the API server does not take


def test_an_unhealthy_device_has_a_taint_that_keeps_new_claims_off() -> None:
    assert only(toy(health=unhealthy("Xid 79: GPU has fallen off the bus")))["taints"] == [
        {
            "key": f"{DRIVER}/unhealthy",
            "value": "Xid-GPU-has-fallen-off-the-bus",
            "effect": "NoSchedule",
        }
    ]
    assert "taints" not in only(toy())
    assert only(toy(health=unhealthy("79")))["taints"][0]["value"] == "unhealthy"


def test_a_number_in_the_reason_that_changes_does_not_change_the_slice() -> None:
    subject = pool()
    before, _ = subject.slices([toy(health=unhealthy("it has 91 °C"))])
    assert subject.slices([toy(health=unhealthy("it has 92 °C"))])[0][0].digest == before[0].digest


def test_an_unhealthy_device_is_left_out_where_taints_are_not_known() -> None:
    subject = pool()
    offered = [toy("d0", health=unhealthy("no link")), toy("d1")]
    subject.slices(offered)
    slices, left_out = subject.slices(offered, dropped={"taints"})
    assert ids(slices) == [["d1"]]
    reason = "it is unhealthy (no link), and this API server does not support taints of devices"
    assert left_out == [LeftOut("d0", "", reason)]
    slices, _ = subject.slices([toy("d0"), toy("d1")], dropped={"taints"})
    assert ids(slices) == [["d0", "d1"]]


@pytest.mark.parametrize(("replicas", "quantity"), [(2, "2"), (999, "999"), (1000, "1k"), (10_000, "10k")])
def test_a_shared_device_has_slots_in_the_notation_of_the_api_server(replicas: int, quantity: str) -> None:
    published = only(toy(replicas=replicas))
    assert published["allowMultipleAllocations"] is True
    assert published["capacity"] == {
        "slots": {
            "value": quantity,
            "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": quantity, "step": "1"}},
        }
    }
    assert not {"allowMultipleAllocations", "capacity"} & only(toy()).keys()


@pytest.mark.parametrize("dropped", [{"allowMultipleAllocations"}, {"capacity"}, {"requestPolicy"}])
def test_a_shared_device_is_left_out_where_sharing_is_not_known(dropped: Collection[str]) -> None:
    """Published without the field, one claim would get the device as a whole."""
    slices, left_out = pool().slices([toy("d0", replicas=4), toy("d1")], dropped=dropped)
    assert ids(slices) == [["d1"]]
    (one,) = left_out
    assert (one.device_id, one.attribute) == ("d0", "")
    assert one.reason.startswith("share.replicas is more than 1, and this API server does not support")


def test_a_refused_attribute_costs_itself_only() -> None:
    subject = pool()
    offered = [toy("d0", {"a.b": 1, "mtu": 2}), toy("d1", {"a.b": 1})]
    slices, left_out = subject.slices(offered, rejected={("d0", "a_b")})
    first, second = slices[0].devices
    assert "a_b" not in first["attributes"]
    assert first["attributes"]["mtu"] == {"int": 2}
    assert second["attributes"]["a_b"] == {"int": 1}
    assert left_out == [LeftOut("d0", "a.b", "the API server refused it")]


def test_a_refused_device_costs_itself_only() -> None:
    slices, left_out = pool().slices(toys(0, 1), rejected={("d0", ""), ("d7", "")})
    assert ids(slices) == [["d1"]]
    assert left_out == [LeftOut("d0", "", "the API server refused it")]


def test_a_shared_device_without_its_slots_is_left_out() -> None:
    assert reasons(toy(replicas=2), rejected={("d0", "slots")}) == {"": "the API server refused it"}


def test_a_device_that_changes_keeps_its_place_and_its_slot_has_the_new_values() -> None:
    subject = pool()
    offered = toys(0, 1, 2)
    subject.slices(offered)
    changed = replace(offered[1], health=unhealthy("no link"))
    slices, _ = subject.slices([offered[0], changed, offered[2]])
    slot = subject.slot("d1")
    assert slot is not None
    assert (slot.device, slot.slice_index, slot.place) == ("d1", 0, 1)
    assert slot.body == slices[0].devices[1]
    assert slot.body["taints"]


# Names of the configuration


def test_an_alias_is_published_beside_the_attributes_of_the_backend() -> None:
    offer = toy(attributes={"kind": "gpu"})
    found = attributes(replace(offer, aliased=Aliased((("type", "gpu"), ("example.com/type", "gpu")))))
    assert found == {**attributes(offer), "type": "gpu", "example.com/type": "gpu"}


def test_only_aliases_are_published_with_a_profile() -> None:
    offer = replace(toy(attributes={"kind": "gpu"}), aliased=Aliased((("type", "gpu"),), only=True))
    assert attributes(offer).keys() == {"resource", "backend", "id", "type"}


def test_an_alias_has_precedence_over_an_attribute_of_its_name() -> None:
    offer = replace(toy(attributes={"type": 3}), aliased=Aliased((("type", "gpu"),)))
    assert attributes(offer)["type"] == "gpu"
    assert reasons(offer) == {"type": "another attribute is published as type"}


def test_a_name_with_the_domain_of_the_driver_is_the_one_without() -> None:
    aliased = Aliased(((f"{DRIVER}/type", "gpu"), (f"{DRIVER}/id", "x")))
    offer = replace(toy(attributes={"type": 3}), aliased=aliased)
    assert attributes(offer).keys() == {"resource", "backend", "id", f"{DRIVER}/type"}
    assert reasons(offer) == {
        "type": "another attribute is published as type",
        f"{DRIVER}/id": "devhost publishes its own attribute with this name",
    }


@pytest.mark.parametrize("names", [("type", f"{DRIVER}/type"), (f"{DRIVER}/type", "type")])
def test_of_two_aliases_with_one_name_only_the_first_is_published(names: tuple[str, str]) -> None:
    offer = replace(toy(), aliased=Aliased(tuple((name, "gpu") for name in names)))
    assert attributes(offer).keys() == {"resource", "backend", "id", names[0]}
    assert reasons(offer) == {names[1]: "another attribute is published as type"}


@pytest.mark.parametrize("value", [7, 1, "1"])
def test_an_alias_does_not_replace_what_devhost_publishes_but_may_equal_it(value: int | str) -> None:
    name = "resource.kubernetes.io/numaNode"
    device = Device("d0", numa_nodes=(1,))
    offer = Offered(device, HEALTHY, aliased=Aliased(((name, value),)))
    assert attributes(offer)[name] == 1
    taken = {name: "devhost publishes its own attribute with this name"}
    assert reasons(offer) == ({} if value == 1 else taken)


def test_the_attributes_of_the_backend_are_left_out_before_an_alias() -> None:
    many = {f"a{number}": number for number in range(40)}
    offer = replace(toy(attributes=many), aliased=Aliased((("type", "gpu"),), (("memory", "1Gi"),)))
    assert attributes(offer)["type"] == "gpu"
    assert len(attributes(offer)) == 31


def test_a_capacity_is_published_as_a_quantity() -> None:
    offer = replace(toy(), aliased=Aliased(capacity=(("memory", "80Gi"),)))
    assert only(offer)["capacity"] == {"memory": {"value": "80Gi"}}
    assert "capacity" not in only(offer, dropped=["capacity"])


def test_a_shared_device_has_only_its_slots_as_capacity() -> None:
    offer = replace(toy(replicas=2), aliased=Aliased(capacity=(("memory", "80Gi"),)))
    assert only(offer)["capacity"].keys() == {"slots"}
    assert reasons(offer) == {"memory": "the device has share.replicas, and each claim would use all of it"}


MEMORY = Amount("memory", 2**30, 2**28, usual=2**32, attribute="memory", unit=2**20)
CORES = Amount("cores", 10, 10, usual=10, total=100)


def shared(**attributes: int) -> Offered:
    return replace(toy(attributes=attributes), amounts=(MEMORY, CORES))


def test_claims_can_use_amounts_of_the_capacities_of_a_device() -> None:
    published = only(shared(memory=81920))
    assert published["allowMultipleAllocations"] is True
    assert published["capacity"] == {
        "memory": {
            "value": "80Gi",
            "requestPolicy": {"default": "4Gi", "validRange": {"min": "1Gi", "max": "80Gi", "step": "256Mi"}},
        },
        "cores": {
            "value": "100",
            "requestPolicy": {"default": "10", "validRange": {"min": "10", "max": "100", "step": "10"}},
        },
    }


def test_a_device_without_enough_of_a_capacity_is_left_out() -> None:
    assert reasons(shared(memory=100)) == {"": "it has 100Mi of memory, and share.capacity gives 1Gi or more"}
    assert reasons(shared()) == {"": "it has no memory, of which share.capacity gives claims an amount"}


def test_a_device_of_which_claims_use_amounts_has_no_other_capacity() -> None:
    """Without a policy, the first claim would use all of it."""
    offer = replace(shared(memory=81920), aliased=Aliased(capacity=(("memory", "80Gi"), ("engines", "2"))))
    assert only(offer)["capacity"].keys() == {"memory", "cores"}
    assert "requestPolicy" in only(offer)["capacity"]["memory"]
    assert reasons(offer) == {"engines": "the device has share.capacity, and each claim would use all of it"}


@pytest.mark.parametrize("dropped", [{"allowMultipleAllocations"}, {"capacity"}, {"requestPolicy"}])
def test_a_device_is_left_out_where_amounts_are_not_known(dropped: Collection[str]) -> None:
    (reason,) = reasons(shared(memory=81920), dropped=dropped).values()
    assert reason.startswith("the entry has share.capacity, and this API server does not support")


def test_a_device_without_one_of_its_amounts_is_left_out() -> None:
    offer = shared(memory=81920)
    assert reasons(offer, rejected={("d0", "cores")}) == {"": "the API server refused it"}


def test_a_device_has_fewer_attributes_beside_amounts() -> None:
    many = {f"a{number}": number for number in range(40)}
    assert len(attributes(shared(memory=81920, **many))) == 30


def test_a_list_is_published_as_one() -> None:
    offer = replace(toy(), aliased=Aliased((("ports", ("a", "b")),)))
    assert only(offer)["attributes"]["ports"] == {"strings": ("a", "b")}


def test_a_list_that_the_api_server_refused_is_left_out() -> None:
    offer = replace(toy(), aliased=Aliased((("ports", ("a", "b")),)))
    assert "ports" not in attributes(offer, rejected=[("d0", "ports")])


def test_the_lists_of_a_device_have_few_members() -> None:
    lists = (("one", ("x",) * 16), ("two", ("y",)))
    assert reasons(replace(toy(), aliased=Aliased(lists))) == {
        "two": "the lists of the device have more than 16 members"
    }


def test_only_a_version_of_a_profile_is_one_under_any_name() -> None:
    offer = replace(toy(), aliased=Aliased((("capability", Version("9.0.0")), ("ability", "9.0.0"))))
    found = only(offer)["attributes"]
    assert (found["capability"], found["ability"]) == ({"version": "9.0.0"}, {"string": "9.0.0"})


@pytest.mark.parametrize(
    ("number", "unit", "expected"),
    [
        (81920, "Mi", "80Gi"),
        (81559, "Mi", "81559Mi"),
        (0, "Mi", "0"),
        (1000, "", "1k"),
        (1024, "", "1024"),
        (1024**6, "Ki", "1024Ei"),
    ],
)
def test_a_quantity_is_written_as_the_api_server_writes_it(number: int, unit: str, expected: str) -> None:
    assert quantity(number, unit) == expected
