"""Netlink for backend authors, with the standard library only: messages, requests and subscriptions.

The format is that of include/uapi/linux/netlink.h of the Linux kernel: a header of 16 bytes, then for most
families attributes of type, length and value, everything in native byte order and padded to a multiple of 4.
Decoding stops at malformed data and never raises.

A full netlink library takes 12 MB of memory to import and a third of a millisecond for each message. That is
fine for an occasional dump in a separate process, and too expensive for every message of a burst.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
import socket
import struct
import sys
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial
from typing import NamedTuple, Protocol

from .backoff import Backoff
from .base import Event
from .frozen import frozen, mutable
from .incident import Incident
from .sysfs import Sysfs

NETWORK = "/sys/class/net"
"""The directory of the network interfaces: those of the network namespace in which sysfs was mounted."""

ERROR = 2
"""Type of a message that answers a request with an errno (``NLMSG_ERROR``; 0 is an acknowledgement)."""

ROUTE = 0
"""The protocol of links, addresses and routes (``NETLINK_ROUTE``, include/uapi/linux/netlink.h)."""

GENERIC = 16
"""The protocol that families such as devlink share (``NETLINK_GENERIC``)."""

RDMA = 20
"""The protocol of the RDMA core (``NETLINK_RDMA``). **Opening a socket of it loads the module ib_core**:
the kernel asks for ``net-pf-16-proto-20``, an alias of ib_core (drivers/infiniband/core/netlink.c)."""

DATAGRAM = 64 * 1024
"""Bytes read at once; the kernel sends dumps in parts of at most 32 KiB (af_netlink.c, ``netlink_dump``)."""

RECEIVE_BUFFER = 4 * 1024 * 1024
"""Bytes in the queue of a subscription: thousands of messages, as when hundreds of pods start at once."""

DRAIN_LIMIT = 64
"""Datagrams read at once before the event loop continues."""

IFNAME, OPERSTATE, CARRIER = 3, 16, 33
"""Attributes of a link (``IFLA_IFNAME``, ``_OPERSTATE``, ``_CARRIER``, if_link.h)."""

_NEWLINK, _DELLINK = 16, 17
_IFINFO = struct.Struct("=BxHiII")
"""``struct ifinfomsg``: family, hardware type, index, flags, changed flags."""

_LINK_FLAGS = 0x1 | 0x40 | 0x10000 | 0x20000
"""IFF_UP, IFF_RUNNING, IFF_LOWER_UP, IFF_DORMANT."""

_SO_RCVBUFFORCE = 33
_SOL_NETLINK = 270
_ADD_MEMBERSHIP = 1
_NO_INTERFACES = frozenset({"bonding_masters"})
"""Other files in the directory of interfaces (kernel, drivers/net/bonding/bond_sysfs.c)."""

_SEQUENCE = 1
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERRNO = struct.Struct("=i")
_REQUEST = 0x1
# NLA_F_NESTED and NLA_F_NET_BYTEORDER share the field with the type
_TYPE_MASK = 0x3FFF


@frozen
class Message:
    """One message: its ``kind`` (``nlmsg_type``), the ``sequence`` of the request it answers, its payload."""

    kind: int
    sequence: int
    payload: bytes

    @property
    def errno(self) -> int:
        """The positive errno of an :data:`ERROR` message; 0 for none."""
        if self.kind != ERROR or len(self.payload) < _ERRNO.size:
            return 0
        return abs(int(_ERRNO.unpack_from(self.payload)[0]))


def request(kind: int, sequence: int) -> bytes:
    """A request without arguments."""
    return _HEADER.pack(_HEADER.size, kind, _REQUEST, sequence, 0)


def messages(datagram: bytes) -> Iterator[Message]:
    """The complete messages in one datagram."""
    at = 0
    while at + _HEADER.size <= len(datagram):
        length, kind, _, sequence, _ = _HEADER.unpack_from(datagram, at)
        if length < _HEADER.size or at + length > len(datagram):
            return
        yield Message(kind, sequence, datagram[at + _HEADER.size : at + length])
        at += _aligned(length)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each complete attribute; a type may occur more than once."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)


def number(value: bytes | None) -> int | None:
    """An unsigned number of 1, 2, 4 or 8 bytes; ``None`` without a value or for another length."""
    if value is None or len(value) not in (1, 2, 4, 8):
        return None
    return int.from_bytes(value, sys.byteorder)


def text(value: bytes | None) -> str:
    """A string up to its NUL; empty without a value, or if it is not printable text."""
    if value is None:
        return ""
    try:
        found = value.split(b"\0", 1)[0].decode()
    except UnicodeDecodeError:
        return ""
    return found if found.isprintable() else ""


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def connect(protocol: int) -> socket.socket:
    """An unbound blocking netlink socket.

    Raises:
        OSError: the protocol is not available (EPROTONOSUPPORT), or permission is denied.
    """
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)


def ask(
    protocol: int, kind: int, *, timeout: float, connect: Callable[[int], socket.socket] = connect
) -> Message | None:
    """Sends one request without arguments; returns the kernel's answer, or ``None`` for an acknowledgement.

    The kernel does its work during ``send``, so ``timeout``, in seconds, does not limit a driver that hangs
    there: call this on a thread that may block.

    Raises:
        TimeoutError: there is no answer in time.
        OSError: the protocol is not available (EPROTONOSUPPORT), or the kernel refuses the request.
    """
    deadline = time.monotonic() + timeout
    with connect(protocol) as link:
        link.settimeout(timeout)
        link.bind((0, 0))
        link.sendto(request(kind, _SEQUENCE), (0, 0))
        while (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            datagram, sender = link.recvfrom(DATAGRAM)
            if sender[0] != 0:
                continue  # any process may send to a netlink socket; only port 0 is the kernel
            for message in messages(datagram):
                if message.sequence != _SEQUENCE:
                    continue
                if message.errno:
                    raise OSError(message.errno, os.strerror(message.errno))
                return None if message.kind == ERROR else message
    raise TimeoutError("the kernel does not answer")


def subscribe(protocol: int, groups: int, members: Sequence[int] = ()) -> socket.socket:
    """A non-blocking socket that receives the messages of multicast groups.

    Args:
        protocol: :data:`ROUTE`, :data:`GENERIC` or :data:`RDMA`.
        groups: the bit mask of groups below 32.
        members: further groups by number, as generic netlink assigns them.

    Raises:
        OSError: the protocol is not available, or listening to it is not allowed.
    """
    link = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol
    )
    try:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        with contextlib.suppress(OSError):
            # past net.core.rmem_max only with CAP_NET_ADMIN; an overflow is noticed in any case
            link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER)
        link.bind((0, groups))
        for group in members:
            link.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
    except OSError:
        link.close()
        raise
    return link


class Listener:
    """Reads a subscription in the running event loop until it is closed, by its owner or by an error.

    Args:
        link: the result of :func:`subscribe`; it is closed with the listener.
        take: called with each datagram.
        lost: called with an error. ``ENOBUFS`` means that messages were lost and the listener continues;
            after any other error the listener has closed itself.
    """

    def __init__(
        self, link: socket.socket, take: Callable[[bytes], None], lost: Callable[[OSError], None]
    ) -> None:
        self._link = link
        self._take = take
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(link.fileno(), self._drain)

    def close(self) -> None:
        """Stops reading. May be called more than once."""
        if self._link.fileno() >= 0:
            self._loop.remove_reader(self._link.fileno())
            self._link.close()

    def _drain(self) -> None:
        for _ in range(DRAIN_LIMIT):
            try:
                datagram = self._link.recv(DATAGRAM)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    self.close()
                self._lost(error)
                return
            self._take(datagram)


def shares_network_namespace(sysfs: Sysfs) -> bool:
    """Whether this process receives rtnetlink messages about the network interfaces that ``sysfs`` shows.

    rtnetlink reports those of the process's own network namespace. sysfs shows those of the process that
    mounted it, which differ in a pod with a separate network namespace. A recorded tree differs, too.
    """
    try:
        own = {name for _, name in socket.if_nameindex()}
    except OSError:
        return False
    return own == set(sysfs.names(NETWORK)) - _NO_INTERFACES


class LinkStates:
    """The last state of network links, by the messages that rtnetlink sends about them.

    The kernel also sends them for what rarely matters (wireless events, promiscuous mode, queue lengths).
    Numbers: rtnetlink.h, if_link.h and if.h in include/uapi/linux of the Linux kernel.

    Args:
        compared: the attributes (``IFLA_…``) whose changes count, besides the flags of state and carrier.
        optional: those of them that a message omits if a link has none; others that it omits are unchanged.
        concerns: whether a link counts, by its index.
    """

    def __init__(
        self,
        compared: Collection[int],
        optional: Collection[int] = (),
        concerns: Callable[[int], bool] = lambda index: True,
    ) -> None:
        self._compared = compared
        self._optional = optional
        self._concerns = concerns
        self._known: dict[int, dict[int, bytes]] = {}

    def forget(self) -> None:
        """Forgets every link: the next message about each counts as a change."""
        self._known.clear()

    def changed(self, message: Message) -> str | None:
        """The name of the link that a message reports as new, removed or changed; ``None`` for any other."""
        if message.kind not in (_NEWLINK, _DELLINK) or len(message.payload) < _IFINFO.size:
            return None
        family, _, index, flags, _ = _IFINFO.unpack_from(message.payload)
        if family != 0 or not self._concerns(index):
            return None  # a bridge reports its ports in its own family; links have separate messages
        found = attributes(message.payload[_IFINFO.size :])
        now = {kind: value for kind, value in found if kind in self._compared}
        before = self._known.pop(index, None)
        if message.kind == _NEWLINK:
            kept = {kind: value for kind, value in (before or {}).items() if kind not in self._optional}
            self._known[index] = now = kept | now | {0: (flags & _LINK_FLAGS).to_bytes(4, "little")}
            if now == before:
                return None
        return text(now.get(IFNAME))


class Groups(NamedTuple):
    """Multicast groups, as arguments of :func:`subscribe`."""

    mask: int = 0
    members: tuple[int, ...] = ()


class NetlinkSource(Protocol):
    """One subscription of a :class:`NetlinkWatcher`, and what its messages mean. No method may block."""

    @property
    def name(self) -> str:
        """Its name in the log: ``link changes``."""

    @property
    def protocol(self) -> int:
        """:data:`ROUTE`, :data:`GENERIC` or :data:`RDMA`."""

    def groups(self) -> Groups | None:
        """The groups to listen to; ``None`` while there are none, for example before a module is loaded."""

    def events(self, datagram: bytes) -> Iterable[Event]:
        """The events for a datagram. Most datagrams on a busy node should cause none."""

    def lost(self) -> None:
        """Messages were lost: drop what was concluded from earlier ones."""


@mutable
class _Subscription:
    source: NetlinkSource
    retry: Backoff
    listener: Listener | None = None
    not_before: float = float("-inf")
    incident: Incident = field(default_factory=Incident)


class NetlinkWatcher:
    """Turns netlink messages into events for :meth:`devhost.backend.Backend.watch`.

    A burst of messages becomes one batch, in which each event occurs once. Lost messages cause the event
    ``Event()``: anything may have changed. A subscription that fails, or cannot be opened, is retried with
    back-off. The log has one message about the failure and one when it works again. Only messages of this
    process's network namespace arrive: see :func:`shares_network_namespace`. Do not use a watcher for a
    recorded tree (:func:`devhost.backend.sysfs.is_live`).

    Args:
        settle: seconds between the first message of a burst and its events: one change causes several
            messages, some of them before the driver is ready.
        pause: least seconds between two batches.
        most: the number of different events in one batch; more become the single event ``Event()``.
        repeat: seconds after the last change of a burst at which its event is repeated once, for hardware
            that is ready later; ``None`` for never.
        recheck: seconds between two checks of subscriptions that are not open, with 20 % jitter.
        retry: the shortest and the longest delay until a failed subscription is retried, in seconds.
        subscribe: opens a subscription.
    """

    def __init__(
        self,
        sources: Iterable[NetlinkSource],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        *,
        settle: float = 0.05,
        pause: float = 0.25,
        most: int = 256,
        repeat: float | None = None,
        recheck: float = 5.0,
        retry: tuple[float, float] = (5.0, 300.0),
        subscribe: Callable[[int, int, Sequence[int]], socket.socket] = subscribe,
    ) -> None:
        self._subscriptions = [_Subscription(source, Backoff(*retry)) for source in sources]
        self._log = log
        self._settle = settle
        self._pause = pause
        self._most = most
        self._repeat = repeat
        self._recheck = recheck
        self._subscribe = subscribe
        self._pending: dict[Event, None] = {}
        self._wake = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yields events until it is closed, and never raises. May be called once."""
        self._open()
        reopening = asyncio.create_task(self._keep_open())
        try:
            while True:
                await self._wake.wait()
                await asyncio.sleep(self._settle)
                self._wake.clear()
                batch, self._pending = list(self._pending), {}
                for event in [Event()] if Event() in batch else batch:
                    yield event
                await asyncio.sleep(self._pause)
        finally:
            reopening.cancel()
            if self._again is not None:
                self._again.cancel()
            for one in self._subscriptions:
                if one.listener is not None:
                    one.listener.close()
                    one.listener = None

    def add(self, event: Event) -> None:
        """Adds an event from another source to the next batch. Only in the event loop."""
        if len(self._pending) < self._most or event in self._pending:
            self._pending[event] = None
        else:
            self._pending[Event()] = None
        self._wake.set()

    def _changed(self, event: Event) -> None:
        self.add(event)
        if self._repeat is not None:
            if self._again is not None:
                self._again.cancel()
            self._again = asyncio.get_running_loop().call_later(self._repeat, self.add, event)

    async def _keep_open(self) -> None:
        while True:
            await asyncio.sleep(self._recheck * random.uniform(0.8, 1.2))
            self._open()

    def _open(self) -> None:
        now = asyncio.get_running_loop().time()
        for one in self._subscriptions:
            if one.listener is not None or now < one.not_before or (groups := one.source.groups()) is None:
                continue
            try:
                link = self._subscribe(one.source.protocol, groups.mask, groups.members)
            except OSError as error:
                one.not_before = now + one.retry.delay()
                if one.incident.news(f"open: {error}"):
                    self._log.warning(
                        "cannot listen to %s (%s): changes are seen at the resync",
                        one.source.name,
                        error.strerror or error,
                    )
            else:
                one.listener = Listener(link, partial(self._take, one), partial(self._lost, one))

    def _take(self, one: _Subscription, datagram: bytes) -> None:
        one.retry.reset()
        if one.incident.over():
            self._log.info("listening to %s again", one.source.name)
        for event in one.source.events(datagram):
            self._changed(event)

    def _lost(self, one: _Subscription, error: OSError) -> None:
        one.source.lost()
        self._changed(Event())
        if error.errno == errno.ENOBUFS:
            return
        one.listener = None
        one.not_before = asyncio.get_running_loop().time() + one.retry.delay()
        if one.incident.news(f"read: {error}"):
            self._log.warning("listening to %s failed: %s", one.source.name, error.strerror or error)
