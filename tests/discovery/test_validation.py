"""Whatever a stranger's backend returns: a device that passes can be planned, listed and shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from devhost.backend import Attribute
from devhost.backend.errors import MAX_REASON
from devhost.backend.model import Device, Health, unhealthy
from devhost.discovery.validation import flaw_of, name_of, valid_devices

DECLARED = {
    "model": Attribute(str, "model", "x"),
    "index": Attribute(int, "index", 0),
    "flag": Attribute(bool, "flag", True),
    "links": Attribute(list, "links", ("a",)),
    "kind": Attribute(str, "kind", "vf", words=("pf", "vf")),
    "purpose": Attribute(str, "purpose", "display", words=("display",)),
    "modes": Attribute(list, "modes", ("a",), words=("a", "b")),
    "sysattr.*": Attribute(str, "anything", "x"),
}


class Broken(Mapping[str, Any]):
    """A lazy mapping whose source has gone away."""

    def __getitem__(self, key: str) -> Any:
        raise OSError("device\nis gone")

    def __iter__(self) -> Iterator[str]:
        raise OSError("device\nis gone")

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "device",
    [
        Device("d"),
        Device("0000:3b:00.1"),
        Device("GPU-8a56/1@x+y=z#1"),
        Device("x" * 63),
        Device("d", {"model": "", "index": -1, "flag": False, "links": (), "sysattr.a/b": "1"}),
        Device("d", {"kind": "pf", "modes": ("b", "a")}),
        Device("d", unusable_for={"rdma": "no node"}),
        Device("d", {"purpose": "display"}, reserved="it drives the display"),
        Device("d", {"purpose": "display"}),
        Device("d", numa_nodes=(-1,), pcie_path=("0000:00:01.0",), health=unhealthy("hot")),
    ],
)
def test_a_valid_device_is_accepted(device: Device) -> None:
    assert flaw_of(device, DECLARED) == ""


def bad(**fields: Any) -> Device:
    return Device(**{"id": "d", **fields})


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (None, "the backend returned NoneType, not Device"),
        (bad(id=""), "it has no id"),
        (bad(id=7), "its id is int, not a string"),
        (bad(id="x" * 64), "its id has 64 characters, more than 63"),
        (bad(id="-x"), "its id has characters other than"),
        (bad(id="a b"), "its id has characters other than"),
        (bad(id="a::0"), "or a double colon"),
        (bad(id="ö"), "its id has characters other than"),
        (bad(id="a\n"), "its id has characters other than"),
        (bad(attributes=None), "its attributes are not a mapping"),
        (bad(health=True), "its health is not a Health"),
        (bad(health=unhealthy(5)), "its health is not a Health of true or false and a reason"),  # type: ignore[arg-type]
        (bad(health=Health("bad", "hot")), "its health is not a Health of true or false"),  # type: ignore[arg-type]
        (bad(claims={"a"}), "its claims or part_of are not a frozenset"),
        (bad(part_of="a"), "its claims or part_of are not a frozenset"),
        (bad(numa_nodes={0}), "its numa_nodes are not a tuple of whole numbers"),
        (bad(numa_nodes=("0",)), "its numa_nodes are not a tuple of whole numbers"),
        (bad(numa_nodes=(True,)), "its numa_nodes are not a tuple of whole numbers"),
        (bad(numa_nodes=(2**70,)), "its numa_nodes are not a tuple of whole numbers below 1024"),
        (bad(former_ids="x"), "its former_ids are not a tuple of strings"),
        (bad(divided=True), "its divided is not a bool, or it is not withheld"),
        (bad(divided=1, withheld="x"), "its divided is not a bool, or it is not withheld"),
        (bad(counters=()), "its counters are not a mapping of DNS labels to whole numbers above zero"),
        (bad(counters={"a_b": 1}), "its counters are not a mapping of DNS labels"),
        (bad(consumes={"a": 0}), "its consumes are not a mapping of DNS labels"),
        (bad(consumes={"a": True}), "its consumes are not a mapping of DNS labels"),
        (bad(pcie_path=None), "its pcie_path is not a tuple of strings"),
        (bad(pcie_path=(1,)), "its pcie_path is not a tuple of strings"),
        (bad(withheld=1), "its withheld is neither a string nor None"),
        (bad(reserved=1), "its reserved is neither a string nor None"),
        (bad(reserved="it drives the display"), "it is reserved, but has no attribute 'purpose'"),
        (bad(reserved="x", attributes={"purpose": "a\n"}), "it is reserved, but has no attribute 'purpose'"),
        (bad(left_out=["model"]), "its left_out is not a frozenset of strings"),
        (bad(left_out=None), "its left_out is not a frozenset of strings"),
        (bad(left_out=frozenset({1})), "its left_out is not a frozenset of strings"),
        (bad(unusable_for=("rdma",)), "its unusable_for is not a mapping of strings to strings"),
        (bad(unusable_for={"rdma": None}), "its unusable_for is not a mapping of strings to strings"),
        (bad(unusable_for=Broken()), "reading its fields failed: OSError: device is gone"),
        (bad(attributes={7: "x"}), "attribute name 7 is not a string"),
        (bad(attributes={"colour": "red"}), "attribute 'colour' is not declared by the backend"),
        (bad(attributes={"model": 1}), "attribute 'model' is int, declared as str"),
        (bad(attributes={"model": None}), "attribute 'model' is NoneType, declared as str"),
        (bad(attributes={"index": "1"}), "attribute 'index' is str, declared as int"),
        (bad(attributes={"index": True}), "attribute 'index' is bool, declared as int"),
        (bad(attributes={"index": 16**5000}), "attribute 'index' is a number of more than 64 bits"),
        (bad(attributes={"index": -(2**64)}), "attribute 'index' is a number of more than 64 bits"),
        (bad(attributes={"flag": 1}), "attribute 'flag' is int, declared as bool"),
        (bad(attributes={"links": ["a"]}), "attribute 'links' is list, and should be a tuple of strings"),
        (bad(attributes={"links": (1,)}), "attribute 'links' has members that are not strings"),
        (bad(attributes={"sysattr.x": 1}), "attribute 'sysattr.x' is int, declared as str"),
        (bad(attributes={"kind": "sf"}), "attribute 'kind' is 'sf', declared as one of pf, vf"),
        (bad(attributes={"modes": ("a", "c")}), "attribute 'modes' is 'c', declared as one of a, b"),
        (bad(attributes=Broken()), "reading its fields failed: OSError: device is gone"),
    ],
)
def test_an_invalid_device_is_refused_with_the_reason(device: Any, reason: str) -> None:
    assert reason in flaw_of(device, DECLARED)
    assert "\n" not in flaw_of(device, DECLARED)


def test_what_is_no_device_is_refused_with_the_reason() -> None:
    good, refused = valid_devices([None, "d0", Device("d1")], DECLARED, {})
    assert list(good) == ["d1"]
    assert [one.reason for one in refused] == [
        "the backend returned NoneType, not Device",
        "the backend returned str, not Device",
    ]


def test_a_device_that_is_unusable_for_the_same_as_before_stays_the_same_object() -> None:
    """Everything later compares by identity."""
    first, _ = valid_devices([Device("d", unusable_for={"rdma": "no node"})], DECLARED, {})
    same, _ = valid_devices([Device("d", unusable_for={"rdma": "no node"})], DECLARED, first)
    assert same["d"] is first["d"]
    other, _ = valid_devices([Device("d", unusable_for={"rdma": "another"})], DECLARED, first)
    assert other["d"].unusable_for == {"rdma": "another"}


def test_a_device_in_the_place_of_another_replaces_it() -> None:
    known, _ = valid_devices([Device("d"), Device("e")], DECLARED, {})
    found, refused = valid_devices([Device("f"), known["e"]], DECLARED, known)
    assert list(found) == ["f", "e"] and not refused
    found, refused = valid_devices([known["e"], known["d"]], DECLARED, known)
    assert found == known and not refused


def test_an_invalid_device_in_the_place_of_a_valid_one_is_refused() -> None:
    known, _ = valid_devices([Device("d"), Device("e")], DECLARED, {})
    found, (refused,) = valid_devices([bad(health=None), known["e"]], DECLARED, known)
    assert list(found) == ["e"] and refused.device == "d"


def test_devices_of_which_nothing_has_changed_are_the_same_mapping() -> None:
    """Nothing has to look at each of them then."""
    known, _ = valid_devices([Device("d"), Device("e")], DECLARED, {})
    assert valid_devices(list(known.values()), DECLARED, known)[0] is known


@pytest.mark.parametrize("evil", ["A1\nX=1", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u202e", "\udc80", "\0"])
def test_an_attribute_that_is_more_than_text_is_left_out(evil: str) -> None:
    attributes = {"model": evil, "links": ("a", evil), "index": 1, "sysattr.x": "b", f"sysattr.{evil}": "c"}
    returned = Device("d", attributes, inherited=frozenset({"model", "index"}))
    (device,) = valid_devices([returned], DECLARED, {})[0].values()
    assert device.attributes == {"index": 1, "sysattr.x": "b"}
    assert device.inherited == {"index"}
    again, refused = valid_devices([replace(returned)], DECLARED, {"d": device})
    assert again["d"] is device and not refused


def test_reasons_are_printable() -> None:
    evil = "fan \x1b[2J\nstopped"
    own = {"withheld": evil, "reserved": evil, "attributes": {"purpose": "display"}}
    returned = Device("d", health=unhealthy(evil), unusable_for={"rdma": evil}, **own)
    (device,) = valid_devices([returned], DECLARED, {})[0].values()
    texts = [device.health.reason, device.withheld, device.reserved, device.unusable_for["rdma"]]
    assert texts == ["fan \\x1b[2J\\nstopped"] * 4


def test_reasons_are_short_enough_for_a_label_of_metrics() -> None:
    long = "fan " * MAX_REASON
    own = {"withheld": long, "reserved": long, "attributes": {"purpose": "display"}}
    returned = Device("d", health=unhealthy(long), unusable_for={"rdma": long}, **own)
    (device,) = valid_devices([returned], DECLARED, {})[0].values()
    texts = [device.health.reason, device.withheld, device.reserved, device.unusable_for["rdma"]]
    assert [len(text) for text in texts] == [MAX_REASON] * 4


@pytest.mark.parametrize("field", ["claims", "part_of"])
def test_a_device_with_a_string_that_is_no_claim_is_refused(field: str) -> None:
    device = bad(**{field: frozenset({"node:/dev/a", "nod:/dev/fuse"})})
    good, (refused,) = valid_devices(
        [device, Device("e", claims=frozenset({"own:1"}))], DECLARED, {}, ("own",)
    )
    assert list(good) == ["e"]
    assert refused.device == "d"
    assert refused.reason.startswith("its claim 'nod:/dev/fuse' is of the unknown kind 'nod'")


def test_any_refused_value_has_a_short_name() -> None:
    class Evil:
        def __repr__(self) -> str:
            raise RuntimeError

    assert name_of(Device("d0")) == "d0"
    assert name_of(Evil()) == "Evil"
    assert len(name_of("x" * 10_000)) == 80
