"""The kubelet in a measurement: it accepts registrations and records when each list arrives.

It behaves towards a plugin like :class:`devhost_testing.kubelet.KubeletSimulator`, with the same connections,
but keeps no state, because the simulator's work on a long list would count as time of devhost.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from devhost_testing.api import api_pb2_grpc
from devhost_testing.kubelet.wire import CallError, PluginConnection, listen, socket_path

from devhost.kubelet.api import HEALTHY, RECEIVE_LIMIT, api_pb2

PATIENCE = 20.0
"""The timeout for expected events, in seconds."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A received list; ``at`` is monotonic seconds before it is processed."""

    at: float
    message: api_pb2.ListAndWatchResponse

    def healthy(self) -> set[str]:
        """Ids of the devices that a pod could get."""
        return {device.ID for device in self.message.devices if device.health == HEALTHY}

    def is_healthy(self, device: str) -> bool:
        """Whether a pod could get this device."""
        return device in self.healthy()


@dataclass(slots=True)
class Lists:
    """The lists of one resource: their number, and the latest one."""

    socket: str
    count: int = 0
    latest: deque[Listing] = field(default_factory=lambda: deque(maxlen=64))


class Recorder(api_pb2_grpc.RegistrationServicer):
    """Serves Register in ``directory`` and reads every list stream. One event loop, no threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.resources: dict[str, Lists] = defaultdict(lambda: Lists(""))
        self._server = grpc.aio.server()
        self._streams: set[asyncio.Task[None]] = set()
        self._news = asyncio.Condition()
        self._failures: set[str] = set()

    async def start(self) -> None:
        """Listens like a kubelet."""
        api_pb2_grpc.add_RegistrationServicer_to_server(self, self._server)
        listen(self._server, socket_path(self.directory))
        await self._server.start()

    async def stop(self) -> None:
        """Ends all streams."""
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        await self._server.stop(None)

    async def Register(self, request: api_pb2.RegisterRequest, _context: Any) -> api_pb2.Empty:
        """Dials back, gets the options, opens the stream: in this order, within the call."""
        path = self.directory / request.endpoint
        connection = PluginConnection(request.resource_name, request.endpoint, str(path), RECEIVE_LIMIT)
        await connection.dial(10.0)
        await connection.options()
        self.resources[request.resource_name].socket = str(path)
        stream = asyncio.create_task(self._follow(connection))
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)
        return api_pb2.Empty()

    async def _follow(self, connection: PluginConnection) -> None:
        lists = self.resources[connection.resource]
        try:
            async for message in connection.lists():
                lists.latest.append(Listing(time.monotonic(), message))
                lists.count += 1
                async with self._news:
                    self._news.notify_all()
        except CallError as error:  # also at the end of each measurement, for every resource
            if str(error) not in self._failures:
                print(f"{connection.resource}: the stream ended: {error}", file=sys.stderr)
            self._failures.add(str(error))
        finally:
            await connection.close()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition on :attr:`resources`, which is checked after each list.

        Raises:
            TimeoutError: it was not true within :data:`PATIENCE`; the text names ``what``.
        """
        try:
            async with asyncio.timeout(PATIENCE), self._news:
                await self._news.wait_for(condition)
        except TimeoutError:
            raise TimeoutError(f"{what}: not within {PATIENCE:g} s") from None

    async def all_listed(self, count: int, devices: int = 0) -> float:
        """The time when the last of ``count`` resources got a first list of at least ``devices`` devices."""

        def listed() -> bool:
            with_lists = [lists for lists in self.resources.values() if lists.latest]
            return len(with_lists) == count and all(
                len(lists.latest[-1].message.devices) >= devices for lists in with_lists
            )

        await self.until(listed, f"{count} resources with a first list")
        return max(lists.latest[-1].at for lists in self.resources.values())

    async def first(self, resource: str, since: float, fits: Callable[[Listing], bool]) -> Listing:
        """The first matching list of a resource after ``since`` (monotonic seconds)."""

        def found() -> Listing | None:
            lists = self.resources[resource].latest
            return next((listing for listing in lists if listing.at >= since and fits(listing)), None)

        await self.until(lambda: found() is not None, f"{resource}: a list that shows the change")
        listing = found()
        assert listing is not None
        return listing

    async def quiet(self, seconds: float, resource: str = "") -> None:
        """Waits until no list has arrived for some time (of one resource, if it is named)."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            chosen = [self.resources[resource]] if resource else self.resources.values()
            last = max((lists.latest[-1].at for lists in chosen if lists.latest), default=0.0)
            left = last + seconds - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(left)
        raise TimeoutError(f"lists keep arriving: no pause of {seconds:g} s within {PATIENCE:g} s")


@asynccontextmanager
async def recording(directory: Path) -> AsyncIterator[Recorder]:
    """A recorder that listens in ``directory`` until the end of the block."""
    recorder = Recorder(directory)
    await recorder.start()
    try:
        yield recorder
    finally:
        await recorder.stop()
