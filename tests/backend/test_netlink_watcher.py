"""A watcher of netlink groups: bursts, lost messages, and subscriptions that fail."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, closing
from typing import Any

import pytest
from descriptors import open_descriptors
from kit.clock import in_virtual_time
from kit.netlink import Netlink
from kit.waiting import background, until

from devhost.backend import Event
from devhost.backend.netlink import GENERIC, ROUTE, Groups, NetlinkWatcher

DEADLINE = 60.0
LOG = logging.getLogger("devhost.backend.links")
LINKS = Groups(1)


class Words:
    """A source whose datagrams are words; each but ``noise`` is an event."""

    name = "words"

    def __init__(self, protocol: int = ROUTE, groups: Groups | None = LINKS) -> None:
        self.protocol = protocol
        self.wanted = groups
        self.losses = 0

    def groups(self) -> Groups | None:
        return self.wanted

    def events(self, datagram: bytes) -> Iterable[Event]:
        return [Event("net", word) for word in datagram.decode().split() if word != "noise"]

    def lost(self) -> None:
        self.losses += 1


@pytest.fixture
def kernel() -> Iterator[Netlink]:
    with closing(Netlink()) as found:
        yield found


class Listening:
    """A watcher whose events are kept."""

    def __init__(self, watcher: NetlinkWatcher) -> None:
        self.watcher = watcher
        self.seen: asyncio.Queue[Event] = asyncio.Queue()

    async def next(self) -> str:
        """The action of the next event; empty for the one that says that anything may have changed."""
        async with asyncio.timeout(DEADLINE):
            return (await self.seen.get()).action

    async def follow(self) -> None:
        async with aclosing(self.watcher.events()) as events:
            async for event in events:
                self.seen.put_nowait(event)


@asynccontextmanager
async def listening(kernel: Netlink, *sources: Words, **options: Any) -> AsyncIterator[Listening]:
    """Follows a watcher with pauses that are short enough for a test."""
    quick = {"settle": 0.001, "pause": 0.001, "recheck": 0.005, "retry": (0.005, 0.005)}
    found = Listening(NetlinkWatcher(sources, LOG, subscribe=kernel.subscribe, **(quick | options)))
    async with background(found.follow()):
        await until(lambda: bool(kernel.opened) or not any(source.wanted for source in sources))
        yield found


async def test_a_relevant_message_is_an_event_and_others_are_not(kernel: Netlink) -> None:
    async with listening(kernel, Words()) as heard:
        kernel.send(b"noise")
        kernel.send(b"up")
        assert await heard.next() == "up"
        kernel.send(b"down")
        assert await heard.next() == "down"
        assert heard.seen.empty()
    assert kernel.opened == [(ROUTE, 1, ())]


async def test_a_burst_is_one_batch_with_each_event_once(kernel: Netlink) -> None:
    async with listening(kernel, Words(), settle=0.2) as heard:
        for _ in range(8):  # as many as the socket holds: they are read at once
            kernel.send(b"up down")
        assert [await heard.next(), await heard.next()] == ["up", "down"]
        kernel.send(b"last")
        assert await heard.next() == "last"


async def test_too_many_different_events_mean_that_anything_may_have_changed(kernel: Netlink) -> None:
    async with listening(kernel, Words(), settle=0.1, most=3) as heard:
        kernel.send(b"a b c")
        assert [await heard.next() for _ in range(3)] == ["a", "b", "c"]
        kernel.send(b"a b c d")
        assert await heard.next() == ""
        kernel.send(b"last")
        assert await heard.next() == "last"


async def test_lost_messages_are_a_resync_and_the_socket_stays(
    kernel: Netlink, caplog: pytest.LogCaptureFixture
) -> None:
    source = Words()
    async with listening(kernel, source) as heard:
        kernel.fail(errno.ENOBUFS)
        assert await heard.next() == ""
        kernel.send(b"up")
        assert await heard.next() == "up"
    assert source.losses == 1
    assert len(kernel.opened) == 1
    assert not caplog.records


async def test_a_socket_that_fails_is_reopened_and_logged_once(
    kernel: Netlink, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with listening(kernel, Words()) as heard:
        for count in (2, 3):
            kernel.fail(errno.EIO)
            assert await heard.next() == ""
            await until(lambda count=count: len(kernel.opened) == count)  # type: ignore[misc]
        kernel.send(b"up")
        assert await heard.next() == "up"
    assert caplog.messages == [
        "listening to words failed: Input/output error",
        "listening to words again",
    ]


async def test_a_refused_subscription_is_tried_again_with_back_off_and_logged_once(
    kernel: Netlink, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kernel.refuses[ROUTE] = 4
    async with listening(kernel, Words()) as heard:
        await until(lambda: len(kernel.opened) == 5)
        kernel.send(b"up")
        assert await heard.next() == "up"
    assert caplog.messages == [
        "cannot listen to words (Operation not permitted): changes are seen at the resync",
        "listening to words again",
    ]


async def test_back_off_is_longer_than_the_interval_of_checks(kernel: Netlink) -> None:
    kernel.refuses[ROUTE] = 1000
    looked = []

    class Watched(Words):
        def groups(self) -> Groups | None:
            looked.append(True)
            return super().groups()

    waiting = Words(GENERIC, None)
    async with listening(kernel, Watched(), waiting, retry=(3600.0, 3600.0)):
        await asyncio.sleep(0)
        waiting.wanted = Groups()
        await until(lambda: (GENERIC, 0, ()) in kernel.opened)
    assert len(looked) == 1


async def test_groups_that_appear_later_are_joined_then(kernel: Netlink) -> None:
    later = Words(GENERIC, None)
    async with listening(kernel, Words(), later) as heard:
        assert kernel.opened == [(ROUTE, 1, ())]
        later.wanted = Groups(0, (7,))
        await until(lambda: (GENERIC, 0, (7,)) in kernel.opened)
        kernel.send(b"switch", GENERIC)
        assert await heard.next() == "switch"


@in_virtual_time
async def test_the_last_change_of_a_burst_is_repeated_once(kernel: Netlink) -> None:
    async with listening(kernel, Words(), repeat=0.3) as heard:
        kernel.send(b"down")
        assert [await heard.next(), await heard.next()] == ["down", "down"]
        with pytest.raises(TimeoutError):
            await heard.next()


async def test_an_event_from_elsewhere_joins_the_batch(kernel: Netlink) -> None:
    async with listening(kernel, Words()) as heard:
        heard.watcher.add(Event("infiniband", "polled"))
        assert await heard.next() == "polled"


async def test_nothing_stays_open_after_the_end(kernel: Netlink) -> None:
    before = open_descriptors()
    async with listening(kernel, Words()):
        assert open_descriptors() - before
    kernel.close()
    assert open_descriptors() <= before
