"""A node whose devices are published at a simulated API server, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from api_objects import SLICES, Object
from api_server import ApiServer
from fake_clock import FakeClock

from devhost.backend.model import HEALTHY, Device, Health
from devhost.dra.credentials import Credentials
from devhost.dra.kube import KubeApi
from devhost.dra.publisher import Publisher
from devhost.dra.record import SliceRecord
from devhost.dra.slices import Offered
from devhost.planning.sides import Sides
from devhost.telemetry.metrics import Metrics

DRIVER = "devhost.example.com"
NODE = "n1"
RESOURCE = "example.com/gpu"


def offered(name: str, replicas: int = 1, health: Health = HEALTHY, **attributes: str) -> Offered:
    return Offered(Device(name, attributes), health, replicas)


def offers(count: int) -> list[Offered]:
    return [offered(f"d{number:03}") for number in range(count)]


class Node:
    """The publisher of a node, and its API server."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.clock = FakeClock()
        self.server = ApiServer(clock=self.clock.time)
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
        self.api = KubeApi(Credentials(self.server.url, None), timeout=5.0, sleep=self._slept)
        self.record = SliceRecord(self._place / "driver" / "published.json")
        self.sides = Sides(self.clock.time)
        self.sides.start(self.record.load())
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

    async def passes(self, seconds: float) -> None:
        """Time passes, in steps in which each side can answer the other."""
        for _ in range(round(seconds * 5)):
            await self._quiet()
            await self.clock.advance(0.2)
        await self._quiet()

    async def _quiet(self) -> None:
        """Lets requests be answered until nothing happens any more."""
        while True:
            before = self._progress()
            for _ in range(5):
                await asyncio.sleep(0)
            await asyncio.to_thread(lambda: None)  # files are written in a thread
            await self.clock.settle()
            if self._progress() == before and not self._busy():
                return

    def _progress(self) -> tuple[object, ...]:
        return len(self.server.requests), len(self.server.writes), self.server.watches

    def _busy(self) -> bool:
        return False

    def slices(self) -> list[Object]:
        return self.server.stored(SLICES)

    def names(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.slices()]
