"""Changes of links, routes and embedded switches, which make no uevent.

On a busy node most messages are of pods: their interfaces, addresses and routes come and go all the time.
Only those of :class:`~.network.Interest` count, and of these only what changed. Numbers: rtnetlink.h,
if_link.h, if_addr.h and genetlink.h in include/uapi/linux of the Linux kernel.

Messages are read as bytes in the event loop; what they mean is asked anew when the backend looks. Both
sources stay within one network namespace: in a pod without the host's they tell nothing of the node.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import random
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial

from devhost.backend import Context, Event
from devhost.backend.netlink import GENERIC, NETWORK, ROUTE, Listener, attributes, messages, subscribe, text
from devhost.backend.sysfs import is_live

from .in_use import WIDEST, normal
from .netlink import BUS_NAME, CHANGES, DEV_NAME
from .network import Interest, Network

GROUPS = 1 << 0 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10
"""Bit mask of the groups of links, and of addresses and routes of IPv4 and IPv6."""

ROUTES = Event(subsystem="net", action="change", sys_path=f"{NETWORK}/lo")
"""Routes or addresses are others: no function needs to be read again, for none has this interface."""

_NEWLINK, _DELLINK, _NEWADDR, _DELADDR, _NEWROUTE, _DELROUTE = 16, 17, 20, 21, 24, 25
_UNICAST = 1
_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_GENERIC = struct.Struct("=BBH")
_FLAGS = 0x1 | 0x40 | 0x10000 | 0x20000
"""IFF_UP, IFF_RUNNING, IFF_LOWER_UP, IFF_DORMANT."""

_ADDRESS, _IFNAME, _MTU, _MASTER, _OPERSTATE, _CARRIER = 1, 3, 4, 10, 16, 33
_TOLD = frozenset({_ADDRESS, _IFNAME, _MTU, _MASTER, _OPERSTATE, _CARRIER})
_IFA_ADDRESS, _IFA_LOCAL = 1, 2


class RouteNews:
    """Turns datagrams of rtnetlink into events.

    Args:
        interest: gives what counts now.
    """

    def __init__(self, interest: Callable[[], Interest]) -> None:
        self._interest = interest
        self._links: dict[int, dict[int, bytes]] = {}

    def forget(self) -> None:
        """Knows no link any more, as after messages were lost."""
        self._links.clear()

    def take(self, datagram: bytes) -> Iterator[Event]:
        """The events that a datagram stands for."""
        for message in messages(datagram):
            data = message.payload
            if message.kind in (_NEWLINK, _DELLINK) and len(data) >= _IFINFO.size:
                yield from self._link(message.kind == _NEWLINK, data)
            elif message.kind in (_NEWADDR, _DELADDR) and len(data) >= _IFADDR.size:
                yield from self._address(data)
            elif message.kind in (_NEWROUTE, _DELROUTE) and len(data) >= _RTMSG.size:
                _, length, _, _, _, _, _, kind, _ = _RTMSG.unpack_from(data)
                if length <= WIDEST and kind == _UNICAST:
                    yield ROUTES

    def _link(self, is_there: bool, data: bytes) -> Iterator[Event]:
        family, _, index, flags, _ = _IFINFO.unpack_from(data)
        if family != 0 or index not in self._interest().interfaces:
            return  # a bridge speaks of its ports in its own family; the link is told of besides
        now = {kind: value for kind, value in attributes(data[_IFINFO.size :]) if kind in _TOLD}
        before = self._links.pop(index, None)
        if is_there:
            # a message may leave attributes out, which then have not changed; but no master is none
            kept = {kind: value for kind, value in (before or {}).items() if kind != _MASTER}
            self._links[index] = now = kept | now | {0: (flags & _FLAGS).to_bytes(4, "little")}
        if not is_there or now != before:
            yield Event("net", "change", f"{NETWORK}/{text(now.get(_IFNAME))}")

    def _address(self, data: bytes) -> Iterator[Event]:
        wanted = {normal(address) for address in self._interest().addresses}
        found = dict(attributes(data[_IFADDR.size :])) if wanted else {}
        for kind in (_IFA_LOCAL, _IFA_ADDRESS):
            value = found.get(kind, b"")
            if len(value) in (4, 16) and str(ipaddress.ip_address(value)) in wanted:
                yield ROUTES
                return


def devlink_events(datagram: bytes, interest: Interest) -> Iterator[Event]:
    """The events that a devlink notification stands for: functions whose switch may have changed."""
    for message in messages(datagram):
        data = message.payload
        if len(data) < _GENERIC.size or _GENERIC.unpack_from(data)[0] not in CHANGES:
            continue  # traps, parameters, health reports
        named = dict(attributes(data[_GENERIC.size :]))
        place = interest.places.get(text(named.get(DEV_NAME)))
        if place is not None and text(named.get(BUS_NAME)) in ("pci", "auxiliary"):
            yield Event("devlink", "change", place)


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
