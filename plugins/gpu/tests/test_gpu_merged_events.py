"""The events of several vendors' code as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import gpu_others
import pytest
from devhost_gpu.discovery import OTHER, Adapter
from devhost_gpu.environment import Timings
from devhost_gpu.vendor import Card, MergedEvents, Vendor
from devhost_testing.fixtures import BackendFixture
from gpu_setup import gpu_with

from devhost.backend import Event


class Quiet(Vendor):
    """A vendor's code that hears nothing beside uevents."""

    def scan(self, adapters: Sequence[Adapter]) -> list[Card]:
        return []


class Heard(Quiet):
    """One that tells of some events, and then of no more, or fails."""

    def __init__(self, *names: str, fails: bool = False) -> None:
        self.events = [Event(name, "change") for name in names]
        self.fails = fails
        self.begun = asyncio.Event()
        self.has_ended = False

    async def watch(self) -> AsyncIterator[Event]:
        self.begun.set()
        try:
            for event in self.events:
                yield event
            if self.fails:
                raise RuntimeError("the library is gone")
            await asyncio.Event().wait()
        finally:
            self.has_ended = True


SOON = Timings(new_vendor=0.01)


async def heard(stream: AsyncIterator[Event], count: int) -> list[str]:
    """The first events of a stream, by their subsystems in alphabetical order."""
    async with asyncio.timeout(60):
        return sorted([(await anext(stream)).subsystem for _ in range(count)])


async def test_events_of_every_vendor_arrive() -> None:
    joined = MergedEvents(SOON)
    joined.update({"amd": Heard("a", "b"), "nvidia": Heard("c"), "intel": Quiet()})
    stream = joined.events()
    assert await heard(stream, 3) == ["a", "b", "c"]


async def test_events_of_a_vendor_that_appears_later_arrive() -> None:
    joined = MergedEvents(SOON)
    joined.update({"amd": Heard("a")})
    stream = joined.events()
    assert await heard(stream, 1) == ["a"]
    joined.update({"amd": Heard("never"), "nvidia": Heard("c")})
    assert await heard(stream, 1) == ["c"]


async def test_a_source_that_fails_ends_the_stream_and_leaves_nothing_running() -> None:
    working = Heard("a")
    joined = MergedEvents(SOON)
    joined.update({"amd": working, "nvidia": Heard(fails=True)})
    with pytest.raises(RuntimeError, match="the library is gone"):
        await heard(joined.events(), 5)
    assert working.has_ended


async def test_a_source_whose_events_are_not_consumed_is_ended() -> None:
    full = Heard(*(["a"] * 500))
    joined = MergedEvents(SOON)
    joined.update({"amd": full})
    stream = joined.events()
    assert await heard(stream, 1) == ["a"]
    assert isinstance(stream, AsyncGenerator)
    await stream.aclose()
    assert full.has_ended


async def test_a_stream_that_is_closed_leaves_nothing_running() -> None:
    working = Heard("a")
    joined = MergedEvents(SOON)
    joined.update({"amd": working})

    async def follow() -> None:
        async for _ in joined.events():
            pass

    task = asyncio.ensure_future(follow())
    async with asyncio.timeout(60):
        await working.begun.wait()
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.done()
    assert working.has_ended


async def test_the_end_of_watch_ends_every_source(tmp_path: Path, looking: BackendFixture) -> None:
    vendor = Heard("drm")
    backend = looking(gpu_others.virtual_machine(tmp_path), kind=gpu_with(makers={OTHER: lambda *_: vendor}))
    backend.discover()
    async with aclosing(backend.watch()) as events:
        assert (await anext(events)).subsystem == "drm"
    assert vendor.has_ended
