"""Events that udev does not carry: links, routes, addresses and embedded switches, from netlink.

Messages are read as bytes in the event loop; what they mean is asked anew when the backend looks. Both
sources stay within one network namespace: in a pod without the host's they tell nothing of the node.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial

from devhost.backend import Context, Event
from devhost.backend.netlink import GENERIC, ROUTE, Listener, subscribe
from devhost.backend.sysfs import is_live

from .network import Network
from .news import GROUPS, RouteNews, devlink_events

ANYTHING = Event()
"""Messages were lost."""

SETTLE = 0.05
"""Seconds between a message and its event: one cause makes several messages."""

PAUSE = 0.25
"""Seconds at least between two batches of events while messages keep coming."""

MOST_EVENTS = 256
"""Different events of one batch; with more, anything may have changed."""

REOPEN = 5.0
"""Seconds, a fifth more or less, between two tries to open what is closed or was not there yet."""


async def network_events(context: Context, network: Network) -> AsyncIterator[Event]:
    """Yields an event whenever functions, or the facts about them, should be looked at again.

    Never ends and never raises; what cannot be listened to is said once in the log. In a recorded tree
    nothing is listened to.
    """
    if not is_live(context.root):
        context.log.info("%s is a recorded tree: its network cannot be listened to", context.root)
        await asyncio.Event().wait()
    watch = _Watch(context, network)
    ticker = asyncio.create_task(watch.keep_open())
    try:
        while True:
            for event in await watch.events():
                yield event
            await asyncio.sleep(PAUSE)
    finally:
        ticker.cancel()
        watch.close()


class _Watch:
    """Both subscriptions together."""

    def __init__(self, context: Context, network: Network) -> None:
        self._context = context
        self._network = network
        self._news = RouteNews(lambda: network.interest)
        self._pending: dict[Event, None] = {}
        self._wake = asyncio.Event()
        self._listeners: dict[str, Listener] = {}
        self._refused: set[str] = set()
        self._broken: set[str] = set()

    async def keep_open(self) -> None:
        """Opens what is not open, now and every few seconds."""
        while True:
            self._open("links and routes", ROUTE, GROUPS, (), self._news.take)
            if (group := self._network.interest.group) is not None:
                self._open("devlink", GENERIC, 0, (group,), self._devlink)
            await asyncio.sleep(REOPEN * random.uniform(0.8, 1.2))

    async def events(self) -> list[Event]:
        """Waits for something to happen and gives back what did, each event once."""
        await self._wake.wait()
        await asyncio.sleep(SETTLE)
        self._wake.clear()
        events, self._pending = list(self._pending), {}
        return [ANYTHING] if len(events) > MOST_EVENTS or ANYTHING in events else events

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()

    def _open(
        self,
        name: str,
        protocol: int,
        groups: int,
        members: Sequence[int],
        read: Callable[[bytes], Iterable[Event]],
    ) -> None:
        if name in self._listeners or name in self._refused:
            return
        try:
            link = subscribe(protocol, groups, members)
        except OSError as error:
            self._refused.add(name)
            self._context.log.warning(
                "cannot listen to %s (%s): changes are seen at the resync", name, error.strerror or error
            )
            return
        self._listeners[name] = Listener(link, partial(self._take, name, read), partial(self._lost, name))

    def _devlink(self, datagram: bytes) -> Iterable[Event]:
        return devlink_events(datagram, self._network.interest)

    def _take(self, name: str, read: Callable[[bytes], Iterable[Event]], datagram: bytes) -> None:
        if name in self._broken:
            self._broken.discard(name)
            self._context.log.info("listening to %s again", name)
        for event in read(datagram):
            self._tell(event)

    def _lost(self, name: str, error: OSError) -> None:
        self._news.forget()
        self._tell(ANYTHING)
        if error.errno != errno.ENOBUFS:
            if name not in self._broken:
                self._broken.add(name)
                self._context.log.warning("listening to %s failed: %s", name, error.strerror)
            del self._listeners[name]  # opened again by keep_open

    def _tell(self, event: Event) -> None:
        if len(self._pending) <= MOST_EVENTS:
            self._pending[event] = None
        else:
            self._pending[ANYTHING] = None
        self._wake.set()
