"""An entry with counters offers devices that exclude each other, as far as its pool can count them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kit.plan import offered

from devhost.backend.model import ClaimHolder, Device
from devhost.backend.where import Block, Term, Text
from devhost.planning.claims import Held
from devhost.planning.plan import Plan, RefusalKind
from devhost.planning.planner import make_plan
from devhost.planning.settings import DraTerms, ResourceSettings, Serve, Settings

NAME = "example.com/nic"
COUNTED = DraTerms(counters=True)
WHOLE = frozenset({"pci:0"})
PF = Device("pf", {"kind": "pf"}, WHOLE, withheld="it has 2 virtual functions", divided=True)
VF0, VF1 = (Device(f"vf{number}", {"kind": "vf"}, frozenset({f"pci:0.{number}"}), WHOLE) for number in (0, 1))
PARTS = (Block((Term("kind", (Text("vf"),)),)),)
CLAIM = ClaimHolder("team", "one", "uid-1")


def entry(
    index: int = 0, name: str = NAME, serve: Serve = Serve.DRA, dra: DraTerms = COUNTED
) -> ResourceSettings:
    return ResourceSettings(index, name, "nic", serve=serve, dra=dra)


def plan(*entries: ResourceSettings, held: Sequence[Held] = (), backend: str = "nic") -> Plan:
    return make_plan({backend: [PF, VF0, VF1]}, Settings(entries), held)


def hold(device: Device, name: str = NAME, serve: Serve = Serve.DRA, backend: str = "nic") -> Held:
    return Held(name, ("token",), backend, device, True, CLAIM, (serve, ""))


def test_a_device_is_offered_with_its_parts() -> None:
    made = plan(entry())
    assert offered(made, NAME) == ["pf", "vf0", "vf1"] and made.refusals == ()


@pytest.mark.parametrize("one", [entry(serve=Serve.PLUGIN), entry(dra=DraTerms())], ids=["plugin", "off"])
def test_without_counters_only_the_parts_are_offered(one: ResourceSettings) -> None:
    made = plan(one)
    assert offered(made, NAME) == ["vf0", "vf1"]
    assert [(one.device, one.kind) for one in made.refusals] == [("pf", RefusalKind.WITHHELD)]


@pytest.mark.parametrize("device", [PF, VF0])
def test_what_a_claim_of_the_resource_holds_keeps_no_other_device_from_it(device: Device) -> None:
    assert offered(plan(entry(), held=[hold(device)]), NAME) == ["pf", "vf0", "vf1"]


@pytest.mark.parametrize(
    "holding",
    [hold(VF0, "example.com/other"), hold(VF0, serve=Serve.PLUGIN), hold(VF0, backend="rdma")],
    ids=["other", "plugin", "backend"],
)
def test_what_its_pool_does_not_count_keeps_the_whole_from_it(holding: Held) -> None:
    made = plan(entry(), held=[holding])
    assert "pf" not in offered(made, NAME) and "vf1" in offered(made, NAME)
    assert ("pf", RefusalKind.HELD) in [(one.device, one.kind) for one in made.refusals]


def test_what_an_entry_above_has_keeps_the_whole_from_it() -> None:
    above = ResourceSettings(0, "example.com/vf", "nic", PARTS, serve=Serve.DRA)
    made = plan(above, entry(1))
    assert offered(made, "example.com/vf") == ["vf0", "vf1"]
    assert NAME not in made.resources
    assert ("pf", RefusalKind.CLAIMED) in [(one.device, one.kind) for one in made.refusals]


def test_what_it_has_keeps_entries_below_from_it() -> None:
    rdma = Device("mlx5_0", claims=WHOLE)
    below = ResourceSettings(1, "example.com/rdma", "rdma", serve=Serve.DRA)
    made = make_plan({"nic": [PF, VF0, VF1], "rdma": [rdma]}, Settings((entry(), below)))
    assert offered(made, NAME) == ["pf", "vf0", "vf1"] and "example.com/rdma" not in made.resources


def test_a_whole_that_its_backend_withholds_for_another_reason_is_not_offered() -> None:
    used = Device("pf", PF.attributes, WHOLE, withheld="it carries the default route")
    made = make_plan({"nic": [used, VF0]}, Settings((entry(),)))
    assert offered(made, NAME) == ["vf0"]
