"""A backend and its threads on strings, and the discovery that follows it, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from devhost.backend import Attribute, Backend, Event
from devhost.backend.errors import BackendTimeout
from devhost.backend.model import Device, Health
from devhost.discovery.runner import Abilities, BackendRunner, ServiceContext
from devhost.discovery.scanner import BackendState, Scanner
from devhost.runtime.reconciler import LOOP_CLOCK, Clock
from devhost.runtime.worker import MAX_ABANDONED, SILENCE
from devhost.telemetry.metrics import Metrics

LIMIT = 10_000
"""The number of scans after which a test fails because of an endless loop."""


class Toy(Backend):
    name = "toy"
    subsystems: ClassVar[tuple[str, ...]] = ("tty", "block")
    attributes: ClassVar = {"index": Attribute(int, "index", 0)}


class FakeSource:
    """A substitute for the backend and its threads, in the event loop with virtual time."""

    name = "toy"
    backend_class: type[Toy] = Toy
    link_cache = None
    missing_drivers = ()
    started = True

    def __init__(self, *, probes: bool) -> None:
        self.abilities = Abilities(probe=probes)
        self.context = ServiceContext("toy", Path("/"))
        self.devices: list[Any] = [Device("d0"), Device("d1")]
        self.error: Exception | None = None
        self.takes = 0.0
        self.looks: list[tuple[float, list[Event]]] = []
        self.verdicts: dict[str, Health] = {}
        self.probe_error: Exception | None = None
        self.probe_takes = 0.0
        self.probed: list[tuple[float, list[str]]] = []
        self.missing: set[str] = set()
        self.stuck: set[str] = set()
        """The paths that hang."""
        self.silent: frozenset[str] = frozenset()
        self.hung: list[str] = []
        self.path_times: list[float] = []
        """When it was asked which host paths exist."""
        self.existence = self
        self.watches: list[float] = []
        self.watching: Callable[[], AsyncIterator[Event]] | None = None

    @property
    def times(self) -> list[float]:
        """When it was asked what exists, in seconds since the start."""
        return [at for at, _ in self.looks]

    @property
    def probe_times(self) -> list[float]:
        """When it was probed."""
        return [at for at, _ in self.probed]

    async def call(self, lane: str, deadline: float | None, call: Callable[..., Any], *args: object) -> Any:
        return await call(*args)

    async def discover(self, events: Sequence[Event]) -> list[Any]:
        self.looks.append((now(), list(events)))
        assert len(self.looks) < LIMIT
        await asyncio.sleep(self.takes)
        if self.error:
            raise self.error
        return list(self.devices)

    async def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        self.probed.append((now(), [device.id for device in devices]))
        assert len(self.probed) < LIMIT
        verdicts, error = self.verdicts, self.probe_error
        await asyncio.sleep(self.probe_takes)
        if error:
            raise error
        return verdicts

    async def look(self, paths: Iterable[str], found: dict[str, bool]) -> None:
        self.path_times.append(now())
        if len(self.hanging()) >= MAX_ABANDONED:
            raise BackendTimeout("earlier calls still hang")
        for path in paths:
            if path in self.stuck:
                self.hung.append(path)
                await asyncio.sleep(SILENCE)
                raise BackendTimeout("it hangs")
            found[path] = path not in self.missing

    def hanging(self) -> set[str]:
        return self.stuck.intersection(self.hung)

    def watch(self) -> AsyncIterator[Event] | None:
        self.watches.append(now())
        return self.watching() if self.watching else None


class Counts(Metrics):
    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []

    def add(self, metric: str, *labels: str, by: float = 1.0) -> None:
        if metric == "backend_failures_total":
            self.failures.append(labels[1])


def now() -> float:
    """Seconds since the virtual clock started."""
    return asyncio.get_running_loop().time() - 1000.0


class Scene:
    """A running scanner, its source, and the times at which it reported a change."""

    def __init__(self, *, probes: bool = True, clock: Clock = LOOP_CLOCK) -> None:
        self.source = FakeSource(probes=probes)
        self.metrics = Counts()
        self.found: list[tuple[float, float | None]] = []
        self.discovery = Scanner(cast("BackendRunner", self.source), self.metrics, self._found, clock=clock)

    def succeed(self, before: Scene) -> None:
        """Goes on where another one ended; call it before it runs."""
        self.discovery = Scanner(
            cast("BackendRunner", self.source), self.metrics, self._found, before.discovery
        )

    def _found(self, caused_at: float | None) -> None:
        self.found.append((now(), None if caused_at is None else caused_at - 1000.0))

    async def hears(self, *events: Event, then: float) -> None:
        """A scan is requested because of an event, or of nothing; then some time passes."""
        self.discovery.request_scan(*events)
        await asyncio.sleep(then)

    def state(self) -> BackendState:
        return self.discovery.condition.state

    def health(self, device: str) -> Health:
        return self.discovery.health.of(self.discovery.devices[device], now())

    @asynccontextmanager
    async def running(self, *, watch: bool = False) -> AsyncIterator[Scene]:
        tasks = [asyncio.create_task(self.discovery.run())]
        if self.discovery.probing:
            tasks.append(asyncio.create_task(self.discovery.probing.run()))
        tasks.append(asyncio.create_task(self.discovery.paths.run()))
        if watch:
            tasks.append(asyncio.create_task(self.discovery.watch()))
        try:
            await asyncio.sleep(0.01)
            yield self
            assert not tasks[0].done(), "the loop ended"
            assert not (self.discovery.probing and tasks[1].done()), "the loop of probes ended"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def event(number: int) -> Event:
    return Event("tty", "add", f"/sys/devices/virtual/tty/t{number}", f"/dev/t{number}")


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Message and reason, or what else the line is about, of each line in the log."""
    told = []
    for record in caplog.records:
        fields = vars(record)["fields"]
        told.append((record.getMessage(), fields.get("reason", fields.get("devices", ""))))
    return told
