"""The events of several vendors' code, joined into one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from devhost.backend import Event

from .card import CanWatch

NEW_VENDORS = 5.0
"""Seconds until the code of a vendor whose first card has just appeared is listened to."""


class Following:
    """Hears every vendor's ``watch``; one that fails ends the stream, which the core begins again."""

    def __init__(self) -> None:
        self._sources: Mapping[str, object] = {}

    def begin(self, sources: Mapping[str, object]) -> None:
        """Takes note of the vendors there are now. May be called from any thread."""
        self._sources = sources

    async def events(self) -> AsyncGenerator[Event, None]:
        """Events of all vendors, also of those that appear later."""
        queue: asyncio.Queue[Event] = asyncio.Queue(maxsize=100)
        heard: dict[str, asyncio.Future[None]] = {}
        try:
            while True:
                for vendor, family in self._sources.items():
                    if isinstance(family, CanWatch) and vendor not in heard:
                        heard[vendor] = asyncio.ensure_future(_pass_on(family, queue))
                for task in heard.values():
                    if task.done():
                        task.result()
                        return
                if (event := await _next(queue)) is not None:
                    yield event
        finally:
            for task in heard.values():
                task.cancel()
            await asyncio.gather(*heard.values(), return_exceptions=True)


async def _pass_on(family: CanWatch, queue: asyncio.Queue[Event]) -> None:
    events = family.watch()
    try:
        async for event in events:
            await queue.put(event)
    finally:
        # at once, and not when the generator is collected: what it ends with lets go of the hardware
        if isinstance(events, AsyncGenerator):
            await events.aclose()


async def _next(queue: asyncio.Queue[Event]) -> Event | None:
    try:
        async with asyncio.timeout(NEW_VENDORS):
            return await queue.get()
    except TimeoutError:
        return None
