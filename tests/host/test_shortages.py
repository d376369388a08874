"""The lines about what the file asks for and the node lacks: a function of two moments."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from moments import ENTRY, TOY, backend, now

from devhost.backend.model import Device
from devhost.discovery.scanner import BackendState
from devhost.host.shown import shortages
from devhost.host.shown.publication import nothing, step_between
from devhost.host.shown.shortages import QUIET
from devhost.planning.plan import Offer, Plan, PlannedResource
from devhost.planning.settings import Settings

SERVED = Plan({TOY: PlannedResource(TOY, ENTRY, (Offer(Device("d0")),))})


class Log:
    """What is logged from one moment to the next."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "devhost.host.shown.shortages")
        self._caplog = caplog
        self._shown = nothing(now())
        self._clock = 100.0

    def plan(self, **others: Any) -> list[str]:
        """There is a new plan."""
        return self.step(plans=self._shown.plans + 1, **others)

    def step(self, after: float = 0.01, **others: Any) -> list[str]:
        self._clock += after
        same = {name: getattr(self._shown, name) for name in ("plans", "plan", "backends", "settings")}
        memory, known = self._shown.memory, self._shown.shortages
        then = now(clock=self._clock, memory=memory, shortages=known, **{**same, **others})
        step = step_between(self._shown, then)
        self._shown = step.now
        shortages.write(step)
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
    assert log.step() == []
    assert log.step(after=QUIET) == no_devices("lost")
    assert log.step(after=QUIET) == []


def test_a_reason_that_comes_back_is_not_logged_again(log: Log) -> None:
    log.plan(**degraded("hot"), plan=Plan())
    for reason, lines in (("lost", no_devices("lost")), ("hot", []), ("lost", [])):
        assert log.plan(**degraded(reason)) == []
        assert log.step(after=QUIET) == lines


def test_an_edited_entry_has_its_reason_logged_again(log: Log) -> None:
    log.plan(**degraded("hot"), plan=Plan())
    edited = Settings((replace(ENTRY, permissions="r"),))
    assert log.plan(settings=edited) == no_devices("hot")
