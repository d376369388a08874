"""Port changes without a uevent, by network links, notifications of the RDMA core, and polled files.

When a link goes down, its RDMA port goes down without a uevent. rtnetlink reports links; the RDMA core
reports which netdev belongs to which port (kernel 6.12 and later). rtnetlink does so before the RDMA driver
handles the change (net/core/dev.c, ``__dev_notify_flags``), so the watcher waits (``settle``). An InfiniBand
port without IPoIB has no netdev, and verbs events need an open context, which blocks the removal of the
device; so the state files of such ports are polled.

Both netlink sources report only their network namespace: in a pod without ``hostNetwork`` they report
nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from devhost.backend import Context, Event
from devhost.backend.incident import Incident
from devhost.backend.netlink import NetlinkSource, NetlinkWatcher
from devhost.backend.sysfs import is_live, prefix_of, read_line

from .model import ETHERNET
from .netlink import PORT, Links, Notifications, RdmaCore
from .scan import Unit

WATCHER = partial(NetlinkWatcher, repeat=1.0)
"""Makes the watcher of netlink. Ports are read once more after a change, since port training takes time."""

POLL, POLL_AFTER_FAILURE = 5.0, 60.0
"""Seconds between two readings of the state files, 20% more or less."""


def unannounced_ports(unit: Unit, *, hears_links: bool) -> Iterator[str]:
    """The state files of ports whose changes no network interface reports."""
    has_interface = hears_links and bool(unit.function.interfaces or unit.main.netdev)
    for port in unit.main.ports:
        # IP over InfiniBand is down until it is configured, unlike its port; EFA has no interface
        if port.link_layer != ETHERNET or not has_interface:
            yield f"{unit.main.path}/ports/{port.number}/state"


class PortWatch:
    """Reports when ports should be read again.

    In a recorded tree (see :func:`devhost.backend.sysfs.is_live`) it only polls files. ``watcher`` makes the
    watcher of netlink, ``poll`` and ``poll_after_failure`` are seconds between two readings of files.
    """

    def __init__(
        self,
        context: Context,
        *,
        core: RdmaCore | None = None,
        watcher: Callable[..., NetlinkWatcher] = WATCHER,
        poll: float = POLL,
        poll_after_failure: float = POLL_AFTER_FAILURE,
    ) -> None:
        self._context = context
        self._core = core or RdmaCore()
        self._watcher = watcher
        self._poll_every, self._poll_after_failure = poll, poll_after_failure
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
        watcher = self._watcher(sources, self._context.log)
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
            period = self._poll_after_failure if failure else self._poll_every
            await asyncio.sleep(period * random.uniform(0.8, 1.2))


def _read(prefix: str, paths: Sequence[str]) -> dict[str, str]:
    return {path: read_line(prefix + path) for path in paths}
