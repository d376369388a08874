"""Log, status document and metrics of ten minutes of random disturbances, word for word, in virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import cast

from kit.clock import in_virtual_time
from kit.scanner import FakeSource, event, now
from kit.waiting import background
from moments import ENTRY, TOY, served
from moments import now as moment
from shown import Golden, Log, flat, series

from devhost.allocation.allocations import Allocations
from devhost.allocation.inventory import Inventory
from devhost.backend.errors import BackendError
from devhost.backend.model import Device, unhealthy
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import Scanner
from devhost.host.shown import device_log, shortages
from devhost.host.shown.entries import EntryOutcomes
from devhost.host.shown.gauges import gauges
from devhost.host.shown.now import GONE, EntriesNow, Memory, Now, Step
from devhost.host.shown.publication import Publication
from devhost.host.shown.status import document
from devhost.planning.claims import Reason
from devhost.planning.plan import units
from devhost.planning.planner import plan_devices
from devhost.planning.settings import Settings
from devhost.telemetry.document import json_line
from devhost.telemetry.metrics import Metrics

SEED = 2
DISTURBANCES = 60
KINDS = ("plugged", "unplugged", "unhealthy", "probe", "fails", "slow", "works")
SETTINGS = Settings((ENTRY,))


class Timed(Log):
    """Each line begins with the virtual time."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self.note(self.lines.pop())

    def note(self, line: str) -> None:
        self.lines.append(f"{now():08.2f} {line}")


class Node:
    """What a host does from a backend to the list, and what it shows, without a kubelet."""

    def __init__(self) -> None:
        self.source = FakeSource(probes=True)
        self.metrics = Metrics()
        self.metrics.begin("backend", "toy")
        self.metrics.name_gauges(lambda: gauges(self.publication.now(), pods=True))
        self.scanner = Scanner(cast("BackendRunner", self.source), self.metrics, self.replan)
        self.allocations = Allocations(now, self.replan)
        self.inventory = Inventory(now, now, self.allocations.of(TOY), "toy")
        self.publication = Publication(self._collected, self._show)
        self.plan = self._plan()
        self.plans = 0
        self._timer: asyncio.TimerHandle | None = None

    def _plan(self):
        return plan_devices({"toy": self.scanner.devices}, SETTINGS, self.allocations)

    def replan(self, caused_at: float | None = None) -> None:
        self.plan, self.plans = self._plan(), self.plans + 1
        planned, health = self.plan.resources.get(TOY), self.scanner.health
        at, health_of = now(), lambda device: health.of(device, at)
        offers = planned.offers if planned else ()
        self.inventory.update(units(ENTRY.share.of, offers), health_of, lambda _: Reason(GONE), caused_at)
        self.publication.soon()
        if self._timer is not None:
            self._timer.cancel()
        waits = [one for one in (self.inventory.next_change(), health.next_change(at, at)) if one is not None]
        self._timer = asyncio.get_running_loop().call_later(min(waits), self.replan) if waits else None

    def _collected(self, memory: Memory) -> Now:
        backends = {"toy": self.scanner.now()}
        first = EntriesNow(EntryOutcomes(SETTINGS, None, backends))
        return moment(
            clock=now(),
            at=now(),
            plan=self.plan,
            plans=self.plans,
            backends=backends,
            resources=served(self.inventory.snapshot),
            shortages=memory.shortages or first,
            memory=memory,
        )

    def _show(self, step: Step) -> None:
        device_log.write(step)
        shortages.write(step)

    def shown(self):
        return chain(flat(json.loads(json_line(document(self.publication.now())()))), series(self.metrics))

    async def run(self) -> None:
        """Never ends."""
        async with asyncio.TaskGroup() as group:
            for loop in (self.scanner.run, self.scanner.probing.run, self.scanner.paths.run):
                group.create_task(loop())


def disturb(source: FakeSource, draw: random.Random) -> str:
    """Changes something about the backend or a device; returns what."""
    name = f"d{draw.randrange(3)}"
    known = {device.id: device for device in source.devices}
    (kind,) = draw.choices(KINDS, (6, 1, 6, 2, 1, 1, 3))
    if kind == "plugged":
        known[name] = Device(name)
    elif kind == "unplugged":
        known.pop(name, None)
    elif kind == "unhealthy" and name in known:
        known[name] = replace(known[name], health=unhealthy("too hot"))
    elif kind == "probe":
        source.verdicts = {} if source.verdicts else {name: unhealthy("link down")}
    elif kind == "fails":
        source.error = BackendError("backend toy failed: the driver is busy")
    elif kind == "slow":
        source.takes = 3.0
    elif kind == "works":
        source.error, source.takes = None, 0.0
    source.devices = list(known.values())
    return f"{kind} {name}"


@in_virtual_time
async def test_what_is_shown_of_random_disturbances(tmp_path: Path) -> None:
    async def life() -> AsyncIterator[str]:
        async with background(node.run()):
            for _ in range(DISTURBANCES):
                await asyncio.sleep(draw.choice((0.02, 0.5, 5.0, 30.0)))
                log.note(f"-- {disturb(node.source, draw)}")
                node.scanner.request_scan(event(1))
            yield f"{DISTURBANCES} disturbances from seed {SEED}"

    draw, before = random.Random(SEED), random.getstate()
    random.seed(SEED)  # the jitter of back-off
    log, node = Timed(), Node()
    try:
        with log.kept():
            found, expected = await Golden(node.shown, log, tmp_path, patience=0.0).follows("soak", life())
    finally:
        random.setstate(before)
    assert found == expected
