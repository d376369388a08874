"""A device that its backend withholds: in no resource, in nobody's way, and the reason where it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from devhost.allocation.inventory import Inventory
from devhost.backend import Attribute
from devhost.backend.model import Device
from devhost.backend.where import Block, Term, Text
from devhost.discovery.validation import flaw_of
from devhost.planning.claims import Reason
from devhost.planning.plan import Plan, RefusalKind, explain, units
from devhost.planning.planner import make_plan
from devhost.planning.settings import Of, ResourceSettings, Settings, Share, WhenEmpty

REASON = "the node's default route leads over it"
PF = frozenset({"pci:0000:3b:00.0"})
NET = ResourceSettings(0, "example.com/net", "nic")


def plan_of(*devices: Device, entries: tuple[ResourceSettings, ...] = (NET,)) -> Plan:
    return make_plan({"nic": devices}, Settings(entries))


def test_a_withheld_device_is_in_no_resource_and_the_plan_has_the_reason() -> None:
    made = plan_of(Device("pf", withheld=REASON), Device("vf"))
    assert [offer.device.id for offer in made.resources["example.com/net"].offers] == ["vf"]
    (refusal,) = made.refusals
    assert (refusal.device, refusal.kind, refusal.reason) == ("pf", RefusalKind.WITHHELD, REASON)


def test_explain_gives_the_reason_for_every_entry_that_selects_it() -> None:
    other = ResourceSettings(1, "example.com/x", "nic", (Block((Term("model", (Text("x"),)),)),))
    device = Device("pf", {"model": "y"}, withheld=REASON)
    settings = Settings((NET, other))
    verdicts = explain(make_plan({"nic": [device]}, settings), settings, "nic", device)
    assert [verdict.reason for verdict in verdicts] == [REASON, "model must be x, it is y"]


def test_a_withheld_whole_blocks_none_of_its_parts() -> None:
    made = plan_of(
        Device("a-pf", claims=PF, withheld="it has virtual functions"),
        Device("b-vf", claims=frozenset({"pci:0000:3b:00.1"}), part_of=PF),
    )
    assert [offer.device.id for offer in made.resources["example.com/net"].offers] == ["b-vf"]


def test_a_withheld_device_neither_makes_nor_breaks_a_name() -> None:
    template = ResourceSettings(0, "example.com/{model}", "nic")
    devices = Device("a", {"model": "x"}, withheld=REASON), Device("b", withheld=REASON)
    made = plan_of(*devices, entries=(template,))
    assert not made.resources
    assert {refusal.kind for refusal in made.refusals} == {RefusalKind.WITHHELD}


def test_a_resource_of_withheld_devices_alone_is_registered_only_on_request() -> None:
    asked = ResourceSettings(0, "example.com/net", "nic", when_empty=WhenEmpty.REGISTER)
    assert not plan_of(Device("pf", withheld=REASON)).resources
    assert plan_of(Device("pf", withheld=REASON), entries=(asked,)).resources["example.com/net"].offers == ()


@pytest.mark.parametrize("of", Of)
def test_a_device_that_becomes_withheld_stays_with_its_pod_unhealthy_with_the_reason(of: Of) -> None:
    entry = ResourceSettings(0, "example.com/net", "nic", share=Share(of=of))
    inventory = Inventory(lambda: 0.0, lambda: 0.0)

    def show(device: Device) -> None:
        planned = plan_of(device, entries=(entry,)).resources.get("example.com/net")
        tokens = units(of, planned.offers if planned else ())
        inventory.update(tokens, lambda device: device.health, lambda _: Reason(device.withheld or ""))

    show(Device("vf"))
    (token,) = inventory.snapshot.entries
    inventory.allocated([token])
    show(Device("vf", withheld=REASON))
    (entry_now,) = inventory.snapshot.entries.values()
    assert (entry_now.token, entry_now.health.reason) == (token, REASON)


@pytest.mark.parametrize("value", [7, True, ("a",)])
def test_what_is_no_text_is_not_taken_for_a_reason(value: Any) -> None:
    declared: Mapping[str, Attribute] = {}
    assert flaw_of(Device("vf", withheld=value), declared) == "its withheld is neither a string nor None"
