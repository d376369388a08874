"""Port changes that make no uevent: network links, notifications of the RDMA core, and polled files.

A link that goes down takes the RDMA port on it down without any uevent. rtnetlink tells of links; the RDMA
core tells which netdev belongs to which port (kernel 6.12 and later). An InfiniBand port without IPoIB has no
netdev, and the verbs events that would tell of it need an open context, which blocks the removal of the
device; so the state files of such ports are read every few seconds.

Both netlink sources stay within one network namespace: in a pod without the host's they are silent.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial

from devhost.backend import Context, Event
from devhost.backend.netlink import RDMA, ROUTE, Listener, subscribe
from devhost.backend.sysfs import is_live, prefix_of, read_line

from .model import ETHERNET
from .netlink import CORE, LINK_GROUPS, NOTIFY_GROUPS, Links, is_notification
from .scan import Unit


def silent_ports(unit: Unit, *, hears: bool) -> Iterator[str]:
    """The state files of those ports of a function that no network interface tells of.

    Args:
        unit: the function.
        hears: the answer of :func:`devhost.backend.netlink.hears_links`.
    """
    is_told = hears and bool(unit.function.interfaces or unit.main.netdev)
    for port in unit.main.ports:
        # IP over InfiniBand is down while nobody set it up, whatever the port does; EFA has no interface
        if port.link_layer != ETHERNET or not is_told:
            yield f"{unit.main.path}/ports/{port.number}/state"


LINK = Event(subsystem="net", action="change")
"""A network link came, went, or changed its state."""

PORT = Event(subsystem="infiniband", action="change")
"""The RDMA core told of a change, or the state of a polled port is another."""

ANYTHING = Event()
"""Messages were lost."""

SETTLE = 0.05
"""Seconds between a message and its event. rtnetlink speaks before the RDMA driver has heard of the change
(net/core/dev.c, ``__dev_notify_flags``), and one cause makes several messages."""

PAUSE = 0.25
"""Seconds at least between two events while messages keep coming."""

LATE = 1.0
"""Seconds after the last change at which to look once more: firmware takes its time to train a port."""

POLL = 5.0
"""Seconds between two readings of the state files, a fifth more or less."""

POLL_AFTER_FAILURE = 60.0
"""The same after a reading failed or hung."""


def _no_files() -> Sequence[str]:
    return ()


async def link_events(
    context: Context, state_files: Callable[[], Sequence[str]] = _no_files
) -> AsyncIterator[Event]:
    """Yields :data:`LINK`, :data:`PORT` or :data:`ANYTHING` whenever ports should be looked at again.

    Never ends and never raises; what cannot be listened to is said once in the log. In a recorded tree
    (see :func:`devhost.backend.sysfs.is_live`) nothing is listened to, and only the files are read.

    Args:
        state_files: gives the port state files to poll, ``/sys/class/infiniband/mlx5_0/ports/1/state``;
            asked in the event loop before each reading, so it must not block.
    """
    watch = _Watch(context, state_files)
    watch.start()
    try:
        while True:
            for event in await watch.changes():
                yield event
            await asyncio.sleep(PAUSE)
    finally:
        watch.close()


class _Watch:
    """The sources together: whatever one hears becomes a pending event."""

    def __init__(self, context: Context, state_files: Callable[[], Sequence[str]]) -> None:
        self._context = context
        self._prefix = prefix_of(context.root)
        self._live = is_live(context.root)
        self._state_files = state_files
        self._loop = asyncio.get_running_loop()
        self._pending: dict[Event, None] = {}
        self._wake = asyncio.Event()
        self._late: asyncio.TimerHandle | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._poll_failed = False
        links = Links()
        self._sources = (
            _Source("link changes", ROUTE, LINK_GROUPS, links.take, links.forget, LINK),
            _Source("RDMA notifications", RDMA, NOTIFY_GROUPS, is_notification, _nothing, PORT, needs=CORE),
        )

    def start(self) -> None:
        if not self._live:
            self._context.log.info(
                "%s is a recorded tree: its links cannot be listened to", self._context.root
            )
        self._open()
        self._ticker = self._loop.create_task(self._tick())

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        if self._late is not None:
            self._late.cancel()
        for source in self._sources:
            self._shut(source)

    async def changes(self) -> list[Event]:
        """Waits for something to happen and gives back what did, each event once."""
        await self._wake.wait()
        await asyncio.sleep(SETTLE)
        self._wake.clear()
        events, self._pending = list(self._pending), {}
        return events

    def _changed(self, event: Event) -> None:
        self._tell(event)
        if self._late is not None:
            self._late.cancel()
        self._late = self._loop.call_later(LATE, self._tell, event)

    def _tell(self, event: Event) -> None:
        self._pending[event] = None
        self._wake.set()

    def _open(self) -> None:
        """Opens the sources that are not open, as far as they can be."""
        for source in self._sources:
            if not self._live or source.listener is not None or source.refused or not source.there:
                continue
            try:
                link = subscribe(source.protocol, source.groups)
            except OSError as error:
                source.refused = True
                self._context.log.warning(
                    "cannot listen to %s (%s): what they tell of is seen at the resync",
                    source.name,
                    error.strerror or error,
                )
            else:
                source.listener = Listener(link, partial(self._take, source), partial(self._lost, source))

    def _shut(self, source: _Source) -> None:
        if source.listener is not None:
            source.listener.close()
            source.listener = None

    def _take(self, source: _Source, datagram: bytes) -> None:
        if source.broken:
            source.broken = False
            self._context.log.info("listening to %s again", source.name)
        if source.matters(datagram):
            self._changed(source.event)

    def _lost(self, source: _Source, error: OSError) -> None:
        source.lost()
        self._changed(ANYTHING)
        if error.errno != errno.ENOBUFS:
            if not source.broken:
                self._context.log.warning("listening to %s failed: %s", source.name, error.strerror)
            source.broken = True
            source.listener = None  # opened again at the next tick

    async def _tick(self) -> None:
        """Now and then: opens what is closed or was not there yet, and reads the polled files."""
        states: Mapping[str, str] = {}
        while True:
            try:
                paths = tuple(self._state_files())
                now = await self._context.run_blocking(_read, self._prefix, paths) if paths else {}
            except Exception as error:  # noqa: BLE001 - a hung device must not end the other sources
                if not self._poll_failed:
                    self._context.log.warning("reading the state of RDMA ports failed: %s", error)
                self._poll_failed = True
            else:
                if self._poll_failed:
                    self._context.log.info("the state of RDMA ports can be read again")
                self._poll_failed = False
                # a port that is new or gone has had its uevent; here only the state counts
                if any(states.get(path, state) != state for path, state in now.items()):
                    self._tell(PORT)
                states = now
            period = POLL_AFTER_FAILURE if self._poll_failed else POLL
            await asyncio.sleep(period * random.uniform(0.8, 1.2))
            self._open()


class _Source:
    """One netlink subscription; ``needs`` is a directory without which there is nothing to hear."""

    def __init__(
        self,
        name: str,
        protocol: int,
        groups: int,
        matters: Callable[[bytes], bool],
        lost: Callable[[], None],
        event: Event,
        *,
        needs: str = "",
    ) -> None:
        self.name = name
        self.protocol = protocol
        self.groups = groups
        self.matters = matters
        self.lost = lost
        self.event = event
        self.needs = needs
        self.listener: Listener | None = None
        self.refused = False
        self.broken = False

    @property
    def there(self) -> bool:
        return not self.needs or os.path.isdir(self.needs)  # noqa: PTH112 - a plain string path


def _nothing() -> None:
    """A source that remembers nothing loses nothing."""


def _read(prefix: str, paths: Sequence[str]) -> dict[str, str]:
    return {path: read_line(prefix + path) for path in paths}
