"""Whether devhost's own plugin sockets answer, asked as a kubelet would ask them.

A kubelet that has its connection does not notice when no other could be opened: because another process owns
the socket's file, or because no connection is accepted. So a liveness probe calls
GetDevicePluginOptions, which changes nothing and opens no list stream, through the sockets themselves.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
import grpc.aio

from devhost.backend.incident import Incident
from devhost.telemetry.log import get

from .api import api_pb2 as pb
from .api import api_pb2_grpc
from .sockets import channel
from .timing import NODE, Timing

log = get(__name__)

MOST = 32
"""Sockets that are asked at one time; where there are more, the others' turn comes next time."""


class SelfCheck:
    """Asks the sockets on which resources are served now.

    Args:
        serving: the sockets by resource, of those that are registered.
        changed: called when :attr:`failure` is another than before.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        serving: Callable[[], Mapping[str, Path]],
        changed: Callable[[], None] = lambda: None,
        *,
        timing: Timing = NODE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failure = ""
        """Which sockets did not answer when they were last asked, and what came instead; empty if all did."""
        self.since = 0.0
        """Wall-clock seconds at which that began."""
        self._serving = serving
        self._changed = changed
        self._timing = timing
        self._clock = clock
        self._asking: asyncio.Future[tuple[bool, str]] | None = None
        self._until = 0.0
        self._last = ""
        self._silent: frozenset[str] = frozenset()
        self._silence = Incident()
        self._again: asyncio.TimerHandle | None = None

    async def answer(self) -> tuple[bool, str]:
        """Whether all that were asked have answered; else which have not, and what came instead.

        All callers meanwhile get the same verdict.
        """
        # no Reconciler: its passes have no result to share, and a check is due only while a probe asks
        if self._asking is None or (self._asking.done() and self._clock() >= self._until):
            self._asking = asyncio.ensure_future(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> tuple[bool, str]:
        turn = self._turn(self._serving())
        reasons = await asyncio.gather(*(self._call(path) for path in turn.values()))
        now = self._serving()
        # a resource that registered again meanwhile is served on another socket, and asked there next time
        wrong = {
            name: reason
            for (name, path), reason in zip(turn.items(), reasons, strict=True)
            if reason and now.get(name) == path
        }
        self._silent = frozenset(wrong)
        self._until = self._clock() + self._timing.verdict_holds
        said = ", ".join(f"{name} ({reason})" for name, reason in wrong.items())
        self._note(f"own socket does not answer: {said}" if wrong else "")
        return not wrong, self.failure

    def _note(self, failure: str) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if failure:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(
                self._timing.self_check_again, lambda: asyncio.ensure_future(self.answer())
            )
            if not self._silence:
                self.since = time.time()
            if self._silence.news(failure):
                log.error("own sockets do not answer", reason=failure)
        elif self._silence.over():
            log.info("own sockets answer again")
        changed, self.failure = failure != self.failure, failure
        if changed:
            self._changed()

    def _turn(self, serving: Mapping[str, Path]) -> dict[str, Path]:
        """Those whose turn it is: all that were silent last time, and the next ones by name."""
        names = sorted(serving)
        if len(names) > MOST:
            again = [name for name in names if name in self._silent][:MOST]
            later = [name for name in names if name > self._last]
            turn = [*later, *names][: MOST - len(again)]
            self._last = turn[-1] if turn else self._last
            names = sorted({*again, *turn})
        return {name: serving[name] for name in names}

    async def _call(self, path: Path) -> str:
        """What is wrong with a socket; empty if it answers."""
        async with channel(path) as connection:
            stub = api_pb2_grpc.DevicePluginStub(connection)
            try:
                await stub.GetDevicePluginOptions(pb.Empty(), timeout=self._timing.self_check)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return f"no answer within {self._timing.self_check:g} s"
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    return _refused(path)
                return error.code().name
        return ""


def _refused(path: Path) -> str:
    """Why a socket takes no connection; empty where this process listens and all its connections are in use.

    gRPC then closes each new connection at once. The kubelet has its own connection, and nothing hangs.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.setblocking(False)
            peer.connect(os.fsencode(path))
            # struct ucred of the process that called listen(): pid, uid, gid (unix(7))
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return "no process listens on it"
    return "" if struct.unpack("3i", credentials)[0] == os.getpid() else "another process listens on it"
