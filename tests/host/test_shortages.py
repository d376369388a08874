"""The lines about what the file asks for and the node lacks: a function of two moments."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from moments import ENTRY, TOY, Steps, backend, now

from devhost.backend import MissingDriver
from devhost.backend.model import Device
from devhost.backend.where import Block, Range, Term, Text
from devhost.discovery.scanner import BackendCondition, BackendNow, BackendState
from devhost.host.shown import shortages
from devhost.host.shown.publication import nothing
from devhost.host.shown.shortages import QUIET
from devhost.planning.plan import Offer, Plan, PlannedResource, Refusal, RefusalKind
from devhost.planning.planner import make_plan
from devhost.planning.settings import ResourceSettings, Settings, Share

SERVED = Plan({TOY: PlannedResource(TOY, ENTRY, (Offer(Device("d0")),))})


class Log(Steps):
    """What is logged from one moment to the next."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "devhost.host.shown.shortages")
        self._caplog = caplog
        self._clock = 100.0
        super().__init__(shortages.write, nothing(now()))

    def plan(self, **others: Any) -> list[str]:
        """There is a new plan."""
        return self.after(0.01, plans=self.shown.plans + 1, **others)

    def after(self, seconds: float, **others: Any) -> list[str]:
        self._clock += seconds
        same = {name: getattr(self.shown, name) for name in ("plans", "plan", "backends", "settings")}
        self.step(clock=self._clock, **{**same, **others})
        lines = [(one.getMessage(), vars(one)["fields"].get("reason")) for one in self._caplog.records]
        self._caplog.clear()
        return [f"{message}: {reason}" if reason else message for message, reason in lines]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


def degraded(reason: str) -> dict[str, Any]:
    return {"backends": {"toy": backend(state=BackendState.DEGRADED, reason=reason)}}


def no_devices(reason: str) -> list[str]:
    return [f"entry has no devices: 0 devices; the backend is degraded: {reason}"]


def test_an_entry_that_begins_to_lack_devices_is_logged_at_once_and_so_is_its_end(log: Log) -> None:
    assert log.plan(**degraded("hot"), plan=Plan()) == no_devices("hot")
    assert log.plan(backends={"toy": backend("d0")}, plan=SERVED) == ["entry has devices"]
    assert log.plan() == []
    assert log.plan(**degraded("hot"), plan=Plan()) == no_devices("hot")


def test_another_reason_is_logged_once_the_plans_are_quiet(log: Log) -> None:
    log.plan(**degraded("hot"), plan=Plan())
    assert log.plan(**degraded("lost")) == []
    assert log.after(0.01) == []
    assert log.after(QUIET) == no_devices("lost")
    assert log.after(QUIET) == []


def test_a_reason_that_comes_back_is_not_logged_again(log: Log) -> None:
    log.plan(**degraded("hot"), plan=Plan())
    for reason, lines in (("lost", no_devices("lost")), ("hot", []), ("lost", [])):
        assert log.plan(**degraded(reason)) == []
        assert log.after(QUIET) == lines


def test_an_edited_entry_has_its_reason_logged_again(log: Log) -> None:
    log.plan(**degraded("hot"), plan=Plan())
    log.plan(**degraded("lost"))
    assert log.after(QUIET) == no_devices("lost")
    edited = Settings((replace(ENTRY, permissions="r"),))
    assert log.plan(settings=edited) == no_devices("lost")
    log.plan(**degraded("hot"))
    assert log.after(QUIET) == no_devices("hot"), "no reason counts as logged for the entry as it is now"


NOTHING = (Block((Term("model", (Text("none"),)),)),)
OTHER = "example.com/other"
Logged = Callable[..., list[Any]]


class Node(Steps):
    """A node whose devices, drivers and file a test sets, and whose plans are made from them."""

    def __init__(self, *entries: ResourceSettings) -> None:
        self.settings = Settings(entries)
        self.devices = [Device(f"d{n}", {"model": "x"}) for n in range(2)]
        self.lacks: tuple[MissingDriver, ...] = ()
        super().__init__(shortages.write, nothing(now(settings=self.settings)))

    def plan(self, *entries: ResourceSettings, refusals: tuple[Refusal, ...] = ()) -> None:
        """There is a plan, for these entries if there are any, and with these refusals if there are any."""
        if entries:
            self.settings = Settings(entries)
        condition = BackendCondition(BackendState.OK, missing_drivers=self.lacks)
        found = BackendNow(condition, True, {one.id: one for one in self.devices})
        plan = make_plan({"toy": self.devices}, self.settings)
        if refusals:
            plan = Plan(plan.resources, refusals)
        later = {"at": self.shown.at + 1, "plans": self.shown.plans + 1}
        self.step(**later, settings=self.settings, plan=plan, backends={"toy": found})


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """One field of each line with a message, in order."""
    caplog.set_level(logging.INFO, "devhost")

    def read(message: str, field: str = "resource") -> list[Any]:
        return [vars(one)["fields"][field] for one in caplog.records if one.getMessage() == message]

    return read


def test_an_edit_that_leaves_an_entry_without_devices_is_answered_at_once(logged: Logged) -> None:
    node = Node(replace(ENTRY, where=NOTHING))
    node.plan()
    since = node.shown.shortages.since
    node.plan()
    assert logged("entry has no devices") == [TOY]
    node.plan(replace(ENTRY, where=NOTHING, share=Share(2)))
    assert logged("entry has no devices") == [TOY, TOY]
    assert node.shown.shortages.since == since, "it has had none for as long"


def test_a_number_of_devices_is_logged_until_it_is_what_the_file_expects(logged: Logged) -> None:
    node = Node(replace(ENTRY, expect=(Range(3, 3),)))
    node.plan()
    assert logged("entry has an unexpected number of devices") == [TOY]
    assert logged("entry has devices") == []
    node.devices.append(Device("d2"))
    node.plan()
    assert logged("entry has devices", "devices") == [3]


def test_an_entry_that_moves_in_the_file_is_not_logged_again(logged: Logged) -> None:
    empty = replace(ENTRY, where=NOTHING)
    node = Node(empty)
    node.plan()
    node.plan(ResourceSettings(0, OTHER, "toy"), replace(empty, index=1))
    assert logged("entry has no devices") == [TOY]
    node.plan(ResourceSettings(0, OTHER, "toy"), replace(ENTRY, index=1, exclusive=False, where=NOTHING))
    assert logged("entry has no devices", "entry") == ["resources[0]", "resources[1]"]


@pytest.mark.parametrize(
    ("entry", "level"),
    [(ENTRY, "WARNING"), (replace(ENTRY, optional=True), "INFO")],
    ids=["required", "optional"],
)
def test_an_entry_that_may_be_empty_is_no_warning(
    entry: ResourceSettings, level: str, logged: Logged, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(replace(entry, where=NOTHING))
    node.plan()
    assert logged("entry has no devices") == [TOY]
    assert caplog.records[-1].levelname == level


def test_an_earlier_entry_is_logged_once_and_only_if_the_later_one_has_other_devices(
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


def test_hardware_without_its_driver_is_logged_for_each_reason_until_it_has_one(logged: Logged) -> None:
    node = Node(ENTRY)
    for reason in ("no driver", "no driver", "another driver"):
        node.lacks = (MissingDriver("card 1", reason, {}),)
        node.plan()
    assert logged("hardware lacks its driver", "reason") == ["no driver", "another driver"]
    assert logged("hardware no longer lacks its driver", "hardware") == []
    node.lacks = ()
    node.plan()
    assert logged("hardware no longer lacks its driver", "hardware") == ["card 1"]


def test_a_refused_device_is_logged_for_each_reason_until_it_is_not_refused(logged: Logged) -> None:
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


def test_devices_that_change_sides_are_no_shortage(logged: Logged) -> None:
    node = Node(ENTRY)
    node.devices = []
    node.plan(refusals=(Refusal("toy", "d0", 0, RefusalKind.MOVING, "it is moving"),))
    assert logged("entry has no devices") == []
