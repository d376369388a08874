"""What the log says of entries that lack devices, from one plan to the next."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devhost.backend import MissingDriver
from devhost.backend.model import Device
from devhost.backend.where import Block, Range, Term, Text
from devhost.discovery.scanner import BackendCondition, BackendNow, BackendState
from devhost.host.shown.shortages import Shortages
from devhost.planning.plan import Plan, Refusal, RefusalKind
from devhost.planning.planner import make_plan
from devhost.planning.settings import ResourceSettings, Settings, Share

TOY, OTHER = "example.com/toy", "example.com/other"
ENTRY = ResourceSettings(0, TOY, "toy")
NOTHING = (Block((Term("model", (Text("none"),)),)),)
Logged = Callable[..., list[Any]]


class Node:
    """A node whose devices, drivers and file a test sets."""

    def __init__(self, *entries: ResourceSettings) -> None:
        self.settings = Settings(entries)
        self.devices = [Device(f"d{n}", {"model": "x"}) for n in range(2)]
        self.lacks: tuple[MissingDriver, ...] = ()
        self.shortages = Shortages(self.settings)

    def plan(self, *entries: ResourceSettings, refusals: tuple[Refusal, ...] = ()) -> None:
        """There is a plan, for these entries if there are any, and with these refusals if there are any."""
        if entries:
            self.settings = Settings(entries)
        condition = BackendCondition(BackendState.OK, missing_drivers=self.lacks)
        found = BackendNow(condition, True, {one.id: one for one in self.devices}, Path("/"))
        plan = make_plan({"toy": self.devices}, self.settings)
        if refusals:
            plan = Plan(plan.resources, refusals)
        self.shortages.follow(self.settings, plan, {"toy": found})


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """One field of each line with a message, in order."""
    caplog.set_level(logging.INFO, "devhost")

    def read(message: str, field: str = "resource") -> list[Any]:
        return [vars(one)["fields"][field] for one in caplog.records if one.getMessage() == message]

    return read


async def test_an_edit_that_leaves_an_entry_without_devices_is_answered_at_once(logged: Logged) -> None:
    node = Node(replace(ENTRY, where=NOTHING))
    node.plan()
    since = node.shortages.now().since
    node.plan()
    assert logged("entry has no devices") == [TOY]
    node.plan(replace(ENTRY, where=NOTHING, share=Share(2)))
    assert logged("entry has no devices") == [TOY, TOY]
    assert node.shortages.now().since == since, "it has had none for as long"
    node.shortages.close()


async def test_a_number_of_devices_is_logged_until_it_is_what_the_file_expects(logged: Logged) -> None:
    node = Node(replace(ENTRY, expect=(Range(3, 3),)))
    node.plan()
    assert logged("entry has an unexpected number of devices") == [TOY]
    assert logged("entry has devices") == []
    node.devices.append(Device("d2"))
    node.plan()
    assert logged("entry has devices", "devices") == [3]
    node.shortages.close()


async def test_an_entry_that_moves_in_the_file_is_not_logged_again(logged: Logged) -> None:
    empty = replace(ENTRY, where=NOTHING)
    node = Node(empty)
    node.plan()
    node.plan(ResourceSettings(0, OTHER, "toy"), replace(empty, index=1))
    assert logged("entry has no devices") == [TOY]
    node.plan(ResourceSettings(0, OTHER, "toy"), replace(ENTRY, index=1, exclusive=False, where=NOTHING))
    assert logged("entry has no devices", "entry") == ["resources[0]", "resources[1]"]
    node.shortages.close()


@pytest.mark.parametrize(
    ("entry", "level"),
    [(ENTRY, "WARNING"), (replace(ENTRY, optional=True), "INFO")],
    ids=["required", "optional"],
)
async def test_an_entry_that_may_be_empty_is_no_warning(
    entry: ResourceSettings, level: str, logged: Logged, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(replace(entry, where=NOTHING))
    node.plan()
    assert logged("entry has no devices") == [TOY]
    assert caplog.records[-1].levelname == level
    node.shortages.close()


async def test_an_earlier_entry_is_logged_once_and_only_if_the_later_one_has_other_devices(
    logged: Logged,
) -> None:
    first = replace(ENTRY, where=(Block((Term("model", (Text("x"),)),)),))
    node = Node(first, ResourceSettings(1, OTHER, "toy"))
    node.plan()
    assert logged("an earlier entry takes devices") == []
    assert logged("entry has no devices") == [OTHER]
    node.devices.append(Device("d2", {"model": "y"}))
    node.plan()
    node.plan()
    assert logged("an earlier entry takes devices", "devices") == [2]
    assert logged("entry has devices") == [OTHER]
    node.shortages.close()


async def test_hardware_without_its_driver_is_logged_for_each_reason_until_it_has_one(logged: Logged) -> None:
    node = Node(ENTRY)
    for reason in ("no driver", "no driver", "another driver"):
        node.lacks = (MissingDriver("card 1", reason, {}),)
        node.plan()
    assert logged("hardware lacks its driver", "reason") == ["no driver", "another driver"]
    assert logged("hardware no longer lacks its driver", "hardware") == []
    node.lacks = ()
    node.plan()
    assert logged("hardware no longer lacks its driver", "hardware") == ["card 1"]
    node.shortages.close()


async def test_a_refused_device_is_logged_for_each_reason_until_it_is_not_refused(logged: Logged) -> None:
    node = Node(ENTRY)
    for reason in ("no room", "no room", "no name"):
        node.plan(refusals=(Refusal("toy", "d0", 0, RefusalKind.NAME, reason),))
    assert logged("device refused by the plan", "reason") == [
        "resources[0]: no room",
        "resources[0]: no name",
    ]
    assert logged("device no longer refused by the plan", "device") == []
    node.plan()
    assert logged("device no longer refused by the plan", "device") == ["d0"]
    node.shortages.close()


async def test_devices_that_change_sides_are_no_shortage(logged: Logged) -> None:
    node = Node(ENTRY)
    node.devices = []
    node.plan(refusals=(Refusal("toy", "d0", 0, RefusalKind.MOVING, "it is moving"),))
    assert logged("entry has no devices") == []
    node.shortages.close()
