"""The changes of lists are a function of two moments."""

from __future__ import annotations

import pytest
from moments import backend, now, served

from devhost.allocation.inventory import Entry, Member, Snapshot
from devhost.backend.model import HEALTHY, Device
from devhost.host.shown.now import GONE, NOT_GIVEN, REMOVED, ResourceNow, changes
from devhost.planning.claims import Reason


def listing(*devices: str) -> Snapshot:
    members = {name: Member(Device(name), HEALTHY) for name in devices}
    return Snapshot(1, {name: Entry(name, name, (one,), (), HEALTHY, 0.0) for name, one in members.items()})


def of(*devices: str, number: int = 1) -> dict[str, ResourceNow]:
    return served(listing(*devices), number=number)


def test_a_resource_that_left_and_came_back_ends_and_begins() -> None:
    ended, begun = changes(now(resources=of("d0", "d1")), now(resources=of("d1", number=2)))
    assert ended.whole and ended.left == {"d0": REMOVED, "d1": REMOVED}
    assert begun.whole and begun.appeared == ["d1"]


def test_a_list_that_is_the_same_value_has_not_changed() -> None:
    same = now(resources=of("d0"))
    assert not list(changes(same, same))


@pytest.mark.parametrize(
    ("refused", "there", "reason"),
    [
        ({}, (), Reason(GONE)),
        ({}, ("d0",), NOT_GIVEN),
        ({"d0": Reason("another entry takes it")}, ("d0",), Reason("another entry takes it")),
    ],
)
def test_why_a_device_left_is_what_is_true_now(
    refused: dict[str, Reason], there: tuple[str, ...], reason: Reason
) -> None:
    later = served(listing(), number=1, refused=refused)
    (one,) = changes(now(resources=of("d0")), now(resources=later, backends={"toy": backend(*there)}))
    assert one.left == {"d0": reason} and not one.whole


def test_a_device_stays_while_one_of_its_tokens_goes_or_comes() -> None:
    member = Member(Device("d0"), HEALTHY)
    tokens = {name: Entry(name, "d0", (member,), (), HEALTHY, 0.0) for name in ("d0::0", "d0::1")}
    gone = {**tokens, "d0::1": Entry("d0::1", "d0", (member,), (), HEALTHY, 0.0, gone_at=1.0)}
    few = {"d0::0": tokens["d0::0"]}
    for before, later in ((tokens, few), (few, tokens), (tokens, gone), (gone, tokens)):
        moments = (now(resources=served(Snapshot(1, entries), number=1)) for entries in (before, later))
        (one,) = changes(*moments)
        assert not (one.left or one.appeared)
