"""A node whose devices are published at a simulated API server, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from devhost_testing.dra import ApiServer
from devhost_testing.dra.api_objects import SLICES, Object

from devhost.backend.model import HEALTHY, Device, Health
from devhost.dra.credentials import Access, Credentials
from devhost.dra.kube import KubeApi
from devhost.dra.publisher import Publisher
from devhost.dra.record import SliceRecord
from devhost.dra.slices import Offered
from devhost.planning.claims import Key
from devhost.planning.sides import NO_UNITS, Sides
from devhost.telemetry.metrics import Metrics
from kit.clock import FakeClock

DRIVER = "devhost.example.com"
NODE = "n1"
RESOURCE = "example.com/gpu"

STEP = 0.2
"""Seconds that pass at least before either side can answer."""


def offered(name: str, replicas: int = 1, health: Health = HEALTHY, **attributes: str) -> Offered:
    return Offered(Device(name, attributes), health, replicas)


def offers(count: int) -> list[Offered]:
    return [offered(f"d{number:03}") for number in range(count)]


class InFlight:
    """How many calls have begun and not ended."""

    def __init__(self) -> None:
        self.calls = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1


class CountedApi(KubeApi):
    """Counts the calls that wait for an answer, and the watches that wait to be accepted.

    Attributes:
        watches: how many watches are open.
        received: how many changes came over them.
    """

    def __init__(self, in_flight: InFlight, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_flight = in_flight
        self.watches = 0
        self.received = 0

    async def get(self, path: str) -> Object:
        with self._in_flight():
            return await super().get(path)

    async def list(self, *args: Any, **options: Any) -> AsyncGenerator[Object, None]:
        async with aclosing(super().list(*args, **options)) as pages:
            while True:
                with self._in_flight():
                    page = await anext(pages, None)
                if page is None:
                    return
                yield page

    async def watch(
        self, *args: Any, opened: Callable[[], None], **options: Any
    ) -> AsyncGenerator[tuple[str, Object], None]:
        with ExitStack() as waiting:
            waiting.enter_context(self._in_flight())

            def accepted() -> None:
                waiting.close()
                waiting.callback(self._ended)
                self.watches += 1
                opened()

            async with aclosing(super().watch(*args, opened=accepted, **options)) as changes:
                async for change in changes:
                    self.received += 1
                    yield change

    def _ended(self) -> None:
        self.watches, self.received = 0, 0

    async def create(self, path: str, body: Object) -> Object:
        with self._in_flight():
            return await super().create(path, body)

    async def update(self, path: str, body: Object) -> Object:
        with self._in_flight():
            return await super().update(path, body)

    async def patch(self, path: str, body: Object) -> Object:
        with self._in_flight():
            return await super().patch(path, body)

    async def apply(self, *args: Any, **options: Any) -> Object:
        with self._in_flight():
            return await super().apply(*args, **options)

    async def delete(self, path: str, **conditions: str) -> None:
        with self._in_flight():
            await super().delete(path, **conditions)


class CountedRecord(SliceRecord):
    """Counts the writes that have not ended."""

    def __init__(self, in_flight: InFlight, path: Path) -> None:
        super().__init__(path)
        self._in_flight = in_flight

    async def write(self, devices: Mapping[Key, str], units: Mapping[Key, str] = NO_UNITS) -> None:
        with self._in_flight():
            await super().write(devices, units)


class Talking:
    """Something that talks to an API server, with a clock that the test moves."""

    def __init__(self, server: ApiServer, clock: FakeClock) -> None:
        self.server = server
        self.clock = clock
        self.in_flight = InFlight()
        self.api: CountedApi

    def connect(self, **options: Any) -> CountedApi:
        """Another client of the API server."""
        url = self.server.url
        self.api = CountedApi(self.in_flight, Access(lambda _: Credentials(url, None)), **options)
        return self.api

    async def passes(self, seconds: float) -> None:
        """Time passes, from timer to timer, between which each side can answer the other."""
        end = self.clock.now + seconds
        while (now := self.clock.now) < end:
            await self._quiet()
            due = min(self.clock.timers, default=end)
            await self.clock.advance(min(max(due, now + STEP), end) - now)
        await self._quiet()

    async def _quiet(self) -> None:
        """Lets requests be answered until nothing happens any more."""
        while True:
            before = self._progress()
            for _ in range(5):
                await asyncio.sleep(0)
            await self.clock.settle()
            if self._progress() == before and not self._busy():
                return
            await asyncio.sleep(0.001 if self._busy() else 0)  # a thread or the kernel is at work

    def _progress(self) -> tuple[object, ...]:
        return len(self.server.requests), len(self.server.writes), self.server.watches

    def _busy(self) -> bool:
        """Whether a call waits for its answer, or what one side did to a watch has not reached the other."""
        came = self.api.watches, self.api.received
        return (
            self.in_flight.calls > 0 or self.server.sending or came != (self.server.watches, self.server.sent)
        )


class Node(Talking):
    """The publisher of a node, and its API server."""

    def __init__(self, place: Path) -> None:
        clock = FakeClock()
        super().__init__(ApiServer(clock=clock.time), clock)
        self._place = place
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.server.__aenter__()
        self.uid = self.server.node(NODE)["metadata"]["uid"]
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        await self.server.stop()

    def _start(self) -> None:
        self.connect(timeout=60.0, first_try=60.0, idle=600.0, sleep=self._slept)
        self.record = CountedRecord(self.in_flight, self._place / "driver" / "published.json")
        self.sides = Sides(self.clock.time)
        self.sides.start(self.record.load(), DRIVER)
        self.publisher = Publisher(
            self.api,
            DRIVER,
            NODE,
            self.record,
            self.sides,
            replan=self._note,
            changed=self._note,
            metrics=Metrics(),
            clock=self.clock,
        )
        self._task = asyncio.create_task(self.publisher.run())

    async def _stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.api.close()

    def _note(self) -> None:
        pass

    async def _slept(self, seconds: float) -> None:
        pass

    async def restarts(self) -> None:
        """The publisher ends and starts again, without knowing yet what to publish."""
        await self._stop()
        self._start()
        await self.passes(3)

    async def publishes(self, wanted: Sequence[Offered], resource: str = RESOURCE) -> None:
        """The devices change; enough time passes for their slices."""
        self.publisher.follow({resource: ("gpu", wanted)})
        await self.passes(12)

    def slices(self) -> list[Object]:
        return self.server.stored(SLICES)

    def names(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.slices()]
