"""A device made of parts has attributes of a part; they count only for entries that name the whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import pytest
from kit.backend import Plain

from devhost.backend import Attribute, Device
from devhost.backend.errors import ConfigError
from devhost.config import loads
from devhost.discovery.catalog import Catalog, Installed
from devhost.discovery.validation import flaw_of
from devhost.planning.plan import Plan, explain
from devhost.planning.planner import make_plan
from devhost.planning.settings import Settings

SINGLE = Device("video0", {"driver": "codec", "numaNode": 0}, claims=frozenset({"node:/dev/video0"}))
WHOLE = Device(
    "dec-video0",
    {"set": "dec", "numaNode": 0, "driver": "codec", "model": "x1"},
    part_of=frozenset({"node:/dev/video0"}),
    inherited=frozenset({"driver", "model"}),
)


class Parts(Plain):
    name = "parts"
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "set": Attribute(str, "set of parts", "dec", reveals=True),
        "driver": Attribute(str, "driver", "codec"),
        "model": Attribute(str, "model", "x1"),
        "numaNode": Attribute(int, "NUMA node", 0),
    }

    def discover(self) -> Iterable[Device]:
        return (SINGLE, WHOLE)


def read(*entries: str) -> Settings:
    catalog = Catalog({"parts": Installed(Parts, "this test", "", ())})
    lines = "".join(f"- {{backend: parts, {entry}}}\n" for entry in entries)
    return loads(f"version: 1\nresources:\n{lines}", "f.yaml", lambda paths, names: catalog)


def plan_of(*entries: str) -> tuple[Plan, dict[str, list[str]]]:
    plan = make_plan({"parts": [SINGLE, WHOLE]}, read(*entries))
    return plan, {name: [offer.device.id for offer in one.offers] for name, one in plan.resources.items()}


@pytest.mark.parametrize(
    ("entry", "devices"),
    [
        ("where: {driver: codec}", ["video0"]),
        ("where: {set: dec, driver: codec}", ["dec-video0"]),
        ("where: {set: '*', model: x1}", ["dec-video0"]),
        ("where: {set: dec, not: {driver: codec}}", []),
        ("where: {set: dec, driver: other}", []),
        ("where: {not: {model: x1}}", ["dec-video0"]),
        ("where: [{set: dec, driver: other}, {driver: codec}]", ["video0"]),
    ],
)
def test_what_a_device_inherited_counts_only_for_a_block_that_names_the_whole(
    entry: str, devices: list[str]
) -> None:
    assert plan_of(f"name: e.x/a, {entry}")[1].get("e.x/a", []) == devices


def test_a_name_is_made_of_what_was_inherited_only_where_the_entry_sees_it() -> None:
    assert plan_of('name: "e.x/{driver}-{model}", where: {set: dec}')[1] == {"e.x/codec-x1": ["dec-video0"]}
    plan, resources = plan_of('name: "e.x/{model}"')
    assert resources == {}
    assert "it has no model, which the name e.x/{model} needs" in {one.reason for one in plan.refusals}


def test_an_override_sees_what_its_entry_sees() -> None:
    text = "name: e.x/a, where: {set: dec}, share: {overrides: [{where: {driver: codec}, replicas: 3}]}"
    plan, _ = plan_of(text)
    assert [offer.replicas for offer in plan.resources["e.x/a"].offers] == [3]


def test_explain_names_the_attribute_that_is_needed() -> None:
    settings = read("name: e.x/a, where: {driver: codec}")
    (verdict,) = explain(make_plan({"parts": [WHOLE]}, settings), settings, "parts", WHOLE)
    assert verdict.reason == "driver of this device counts only in a block that names set"


def test_an_entry_for_wholes_below_one_for_parts_is_not_refused_as_hidden() -> None:
    _, resources = plan_of(
        "name: e.x/a, where: {driver: codec}", "name: e.x/b, where: {set: dec, driver: codec}"
    )
    assert resources["e.x/a"] == ["video0"]
    assert read('name: "e.x/{model}"', "name: e.x/b, where: {set: dec, model: x1}")
    with pytest.raises(ConfigError, match="can never get a device"):
        read("name: e.x/a", "name: e.x/b, where: {set: dec, driver: codec}")
    with pytest.raises(ConfigError, match="can never get a device"):
        read("name: e.x/a, where: {set: dec}", "name: e.x/b, where: {set: dec, driver: codec}")


@pytest.mark.parametrize("inherited", [frozenset({"nope"}), {"driver"}, None])
def test_only_names_of_own_attributes_can_be_inherited(inherited: Any) -> None:
    flaw = flaw_of(Device("a", {"driver": "x"}, inherited=inherited), Parts.attributes)
    assert flaw == "its inherited is not a frozenset of names of its attributes"
