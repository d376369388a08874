"""A device with a special purpose goes only to entries whose ``where`` names the purpose."""

from __future__ import annotations

import pytest
from kit.plan import offered

from devhost.backend.model import Device
from devhost.backend.where import Block, Covering, Term, Text, Where, names_purpose
from devhost.planning.plan import Plan, RefusalKind, explain
from devhost.planning.planner import make_plan
from devhost.planning.settings import ResourceSettings, Settings

SCREEN = Device("screen", {"vendor": "nvidia", "purpose": "display"}, reserved="it drives the display")
GPU = Device("gpu", {"vendor": "nvidia"})
WHY = "it drives the display; to offer it, add purpose: display to where"


def block(**terms: str) -> Block:
    return Block(tuple(Term(name, (Text(pattern),)) for name, pattern in terms.items()))


NVIDIA = block(vendor="nvidia")
NAMED = block(purpose="display")
GLOB = block(vendor="nvidia", purpose="*")
OTHER = block(purpose="node-network")
NOT_OTHER = Block(NVIDIA.terms, (OTHER,))


def planned(*entries: Where) -> tuple[Plan, Settings]:
    settings = Settings(tuple(ResourceSettings(n, f"a.b/{n}", "gpu", one) for n, one in enumerate(entries)))
    return make_plan({"gpu": [SCREEN, GPU]}, settings), settings


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ((), ["gpu"]),
        ((NVIDIA,), ["gpu"]),
        ((NOT_OTHER,), ["gpu"]),
        ((NVIDIA, OTHER), ["gpu"]),
        ((NAMED,), ["screen"]),
        ((GLOB,), ["screen"]),
        ((NVIDIA, NAMED), ["gpu", "screen"]),
    ],
)
def test_only_a_condition_on_its_purpose_offers_a_device_that_has_one(
    where: Where, expected: list[str]
) -> None:
    plan, _ = planned(where)
    assert offered(plan, "a.b/0") == expected


def test_the_reason_shows_how_to_offer_it() -> None:
    plan, settings = planned((NVIDIA,), (NAMED,))
    assert [(one.device, one.kind, one.reason) for one in plan.refusals] == [
        ("screen", RefusalKind.WITHHELD, WHY)
    ]
    assert offered(plan, "a.b/1") == ["screen"]
    verdicts = explain(plan, settings, "gpu", SCREEN)
    assert [(one.taken, one.reason) for one in verdicts] == [(False, WHY), (True, "it takes the device")]


def test_a_device_that_its_backend_withholds_is_not_offered_by_its_purpose() -> None:
    whole = Device("whole", SCREEN.attributes, withheld="its parts are offered", reserved=SCREEN.reserved)
    plan = make_plan({"gpu": [whole]}, Settings((ResourceSettings(0, "a.b/0", "gpu", (NAMED,)),)))
    assert [one.reason for one in plan.refusals] == ["its parts are offered"]


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        ((), (NVIDIA,), True),
        ((), (GLOB,), False),
        ((NVIDIA,), (GLOB,), False),
        ((NVIDIA, block(purpose="*")), (GLOB,), True),
        ((GLOB,), (GLOB,), True),
    ],
)
def test_an_entry_gets_what_a_later_one_may_get_only_if_it_names_the_purpose(
    earlier: Where, later: Where, expected: bool
) -> None:
    above: Covering[str] = Covering()
    for one in earlier or (Block(),):
        above.add(one, "earlier")
    assert all(any(above.owners(one, by_purpose=True)) for one in later) is expected


def test_a_condition_counts_only_in_a_block_that_selects_the_device() -> None:
    assert names_purpose((NVIDIA, NAMED), SCREEN.attributes)
    assert not names_purpose((NVIDIA, OTHER), SCREEN.attributes)
