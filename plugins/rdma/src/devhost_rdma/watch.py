"""Port changes that make no uevent: network links, notifications of the RDMA core, and polled files.

A link that goes down takes the RDMA port on it down without any uevent. rtnetlink reports links; the RDMA
core reports which netdev belongs to which port (kernel 6.12 and later). An InfiniBand port without IPoIB has
no netdev, and the verbs events that would report it need an open context, which blocks the removal of the
device; so the state files of such ports are read every few seconds.

Both netlink sources stay within one network namespace: in a pod without the host's they are silent.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from devhost.backend import Context, Event
from devhost.backend.incident import Incident
from devhost.backend.netlink import NetlinkSource, NetlinkWatcher, subscribe
from devhost.backend.sysfs import is_live, prefix_of, read_line

from .model import ETHERNET
from .netlink import PORT, Links, Notifications, RdmaCore
from .scan import Unit


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that the watch waits.

    ``settle``: between a message and its event. rtnetlink reports a change before the RDMA driver has noticed
    it (net/core/dev.c, ``__dev_notify_flags``).
    ``pause``: between two batches of events.
    ``repeat``: after the last change, when ports are read once more; firmware takes its time to train a port.
    ``poll``, ``poll_after_failure``: between two readings of the state files, a fifth more or less.
    ``recheck``: between two attempts to open what is closed.
    ``retry``: the shortest and the longest time until a failed subscription is tried again.
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
    """The state files of those ports of a function whose changes no network interface reports.

    Args:
        unit: the function.
        hears_links: the answer of :func:`devhost.backend.netlink.shares_network_namespace`.
    """
    has_interface = hears_links and bool(unit.function.interfaces or unit.main.netdev)
    for port in unit.main.ports:
        # IP over InfiniBand is down while nobody set it up, whatever the port does; EFA has no interface
        if port.link_layer != ETHERNET or not has_interface:
            yield f"{unit.main.path}/ports/{port.number}/state"


class PortWatch:
    """Reports when ports should be read again.

    In a recorded tree (see :func:`devhost.backend.sysfs.is_live`) only the polled files are read.

    Args:
        context: of the backend.
        times: how long it waits.
        core: the RDMA core.
        subscribe: opens a netlink subscription.
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
        # Replaced whole: discover() sets it on its thread, the event loop reads it.
        self._files: tuple[str, ...] = ()

    def follow(self, files: Sequence[str]) -> None:
        """Sets the state files to poll: ``/sys/class/infiniband/mlx5_0/ports/1/state``."""
        self._files = tuple(files)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yields an event whenever ports should be read again. Never ends and never raises."""
        sources: tuple[NetlinkSource, ...] = (Links(), Notifications(self._core))
        if not is_live(self._context.root):
            sources = ()
            self._context.log.info(
                "%s is a recorded tree: its links cannot be listened to", self._context.root
            )
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
                    self._context.log.warning("reading the state of RDMA ports failed: %s", error)
            else:
                if failure.over():
                    self._context.log.info("the state of RDMA ports can be read again")
                # a port that is new or gone has had its uevent; here only the state counts
                if any(states.get(path, state) != state for path, state in now.items()):
                    watcher.add(PORT)
                states = now
            period = self._times.poll_after_failure if failure else self._times.poll
            await asyncio.sleep(period * random.uniform(0.8, 1.2))


def _read(prefix: str, paths: Sequence[str]) -> dict[str, str]:
    return {path: read_line(prefix + path) for path in paths}
