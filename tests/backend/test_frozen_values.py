"""Values of the plugin API cannot be changed after they were made, and are hashable."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from devhost.backend import AllocateRequest, Device, DeviceNode, Edits, MissingDriver
from devhost.backend.model import FrozenDict

CHANGES: list[Callable[[Any], object]] = [
    lambda mapping: mapping.__setitem__("model", "y"),
    lambda mapping: mapping.__delitem__("model"),
    lambda mapping: mapping.__ior__({"model": "y"}),
    lambda mapping: mapping.update(model="y"),
    lambda mapping: mapping.setdefault("other", "y"),
    lambda mapping: mapping.pop("model"),
    lambda mapping: mapping.popitem(),
    lambda mapping: mapping.clear(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_mapping_of_a_value_cannot_be_changed(change: Callable[[Any], object]) -> None:
    device = Device("d", {"model": "x"})
    with pytest.raises(TypeError, match="cannot be changed"):
        change(device.attributes)
    assert device.attributes == {"model": "x"}


def test_changing_the_dict_of_a_value_does_not_change_the_value() -> None:
    given = {"model": "x"}
    values = (
        Device("d", given, unusable_for=given),
        Edits(env=given, annotations=given),
        MissingDriver("d", "none", given),
        Device("d", counters=(amounts := {"slices": 8}), consumes=amounts),
    )
    before = copy.deepcopy(values)
    given["model"] = "y"
    amounts["slices"] = 9
    assert values == before


def test_equal_values_have_equal_hashes() -> None:
    def made() -> list[object]:
        device = Device("d", {"model": "x", "links": ("a", "b")}, unusable_for={"rdma": "no node"})
        return [
            device,
            Edits((DeviceNode("/dev/a"),), env={"A": "1"}, annotations={"b": "2"}),
            MissingDriver("d", "none", {"model": "x"}),
            AllocateRequest([device], resource="a.b/c", shares={"d": Fraction(1, 2)}),
        ]

    assert made() == made()
    assert [hash(one) for one in made()] == [hash(one) for one in made()]


def test_a_list_becomes_a_tuple() -> None:
    given: Any = [1]
    assert Device("d", numa_nodes=given).numa_nodes == (1,)
    assert Device("d", pcie_path=given, former_ids=given).former_ids == (1,)
    edits = Edits(nodes=given, mounts=given, cdi_devices=given)
    assert (edits.nodes, edits.mounts, edits.cdi_devices) == ((1,), (1,), (1,))
    assert AllocateRequest(given).devices == (1,)


def test_a_frozen_mapping_can_be_read_like_a_dict() -> None:
    mapping: FrozenDict[str, object] = FrozenDict({"a": 1})
    assert mapping == {"a": 1} and {**mapping} == mapping
    assert json.dumps(mapping) == '{"a": 1}'
    for copied in (copy.copy(mapping), copy.deepcopy(mapping), pickle.loads(pickle.dumps(mapping))):
        assert (type(copied), copied) == (FrozenDict, mapping)
    joined = mapping | {"b": 2}
    joined["c"] = 3
    assert joined == {"a": 1, "b": 2, "c": 3}


def test_a_copy_of_a_value_shares_its_mappings() -> None:
    device = Device("d", {"model": "x"})
    assert replace(device, id="e").attributes is device.attributes


def test_a_value_with_an_unhashable_member_cannot_be_hashed() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Device("d", {"links": ["a"]}))  # type: ignore[dict-item]
