"""Port changes without a uevent, by network links, notifications of the RDMA core, and polled files.

When a link goes down, its RDMA port goes down without a uevent. rtnetlink reports links; the RDMA core
reports which netdev belongs to which port (kernel 6.12 and later). An InfiniBand port without IPoIB has no
netdev, and verbs events need an open context, which blocks the removal of the device; so the state files of
such ports are polled.

Both netlink sources report only their network namespace: in a pod without ``hostNetwork`` they report
nothing.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing

from devhost.backend import Context, Event
from devhost.backend.frozen import frozen
from devhost.backend.incident import Incident
from devhost.backend.netlink import NetlinkSource, NetlinkWatcher, subscribe
from devhost.backend.sysfs import is_live, prefix_of, read_line

from .model import ETHERNET
from .netlink import PORT, Links, Notifications, RdmaCore
from .scan import Unit


@frozen
class Times:
    """Seconds that the watch waits.

    ``settle``: between a message and its event. rtnetlink reports a change before the RDMA driver handles it
    (net/core/dev.c, ``__dev_notify_flags``).
    ``pause``: between two batches of events.
    ``repeat``: from the last change until ports are read once more, since port training takes time.
    ``poll``, ``poll_after_failure``: between two readings of the state files, 20% more or less.
    ``recheck``: between two attempts to open a missing source.
    ``retry``: the shortest and the longest time until a failed subscription is retried.
    """

    settle: float = 0.05
    pause: float = 0.25
    repeat: float = 1.0
    poll: float = 5.0
    poll_after_failure: float = 60.0
    recheck: float = 5.0
    retry: tuple[float, float] = (5.0, 300.0)


TIMES = Times()


def unannounced_ports(unit: Unit, *, hears_links: bool) -> Iterator[str]:
    """The state files of ports whose changes no network interface reports."""
    has_interface = hears_links and bool(unit.function.interfaces or unit.main.netdev)
    for port in unit.main.ports:
        # IP over InfiniBand is down until it is configured, unlike its port; EFA has no interface
        if port.link_layer != ETHERNET or not has_interface:
            yield f"{unit.main.path}/ports/{port.number}/state"


class PortWatch:
    """Reports when ports should be read again.

    In a recorded tree (see :func:`devhost.backend.sysfs.is_live`) it only polls files.
    """

    def __init__(
        self,
        context: Context,
        *,
        times: Times = TIMES,
        core: RdmaCore | None = None,
        subscribe: Callable[[int, int, Sequence[int]], socket.socket] = subscribe,
    ) -> None:
        self._context = context
        self._times = times
        self._core = core or RdmaCore()
        self._subscribe = subscribe
        # Replaced, never modified: discover() sets it on its thread, the event loop reads it.
        self._files: tuple[str, ...] = ()

    def follow(self, files: Sequence[str]) -> None:
        """Sets the state files to poll: ``/sys/class/infiniband/mlx5_0/ports/1/state``."""
        self._files = tuple(files)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yields an event whenever ports should be read again. Never ends and never raises."""
        sources: tuple[NetlinkSource, ...] = (Links(), Notifications(self._core))
        if not is_live(self._context.root):
            sources = ()
            self._context.log.info("%s is a recorded tree: link changes are not watched", self._context.root)
        watcher = NetlinkWatcher(
            sources,
            self._context.log,
            settle=self._times.settle,
            pause=self._times.pause,
            repeat=self._times.repeat,
            recheck=self._times.recheck,
            retry=self._times.retry,
            subscribe=self._subscribe,
        )
        polling = asyncio.create_task(self._poll(watcher))
        try:
            async with aclosing(watcher.events()) as events:
                async for event in events:
                    yield event
        finally:
            polling.cancel()

    async def _poll(self, watcher: NetlinkWatcher) -> None:
        prefix = prefix_of(self._context.root)
        states: Mapping[str, str] = {}
        failure = Incident(most=1)
        while True:
            files = self._files
            try:
                now = await self._context.run_blocking(_read, prefix, files) if files else {}
            except Exception as error:  # noqa: BLE001 - a hung device must not end the other sources
                if failure.news(str(error)):
                    self._context.log.warning("cannot read the state of RDMA ports: %s", error)
            else:
                if failure.over():
                    self._context.log.info("the state of RDMA ports can be read again")
                # new and removed ports cause uevents; only the state counts here
                if any(states.get(path, state) != state for path, state in now.items()):
                    watcher.add(PORT)
                states = now
            period = self._times.poll_after_failure if failure else self._times.poll
            await asyncio.sleep(period * random.uniform(0.8, 1.2))


def _read(prefix: str, paths: Sequence[str]) -> dict[str, str]:
    return {path: read_line(prefix + path) for path in paths}
