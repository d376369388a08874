"""Checks that devhost's own plugin sockets answer, by calling them as a kubelet would.

A kubelet that is connected does not notice that no further connection can be made: because another process
owns the socket's file, or because no connection is accepted. So a liveness probe calls
GetDevicePluginOptions, which changes nothing and opens no list stream, through the sockets themselves.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio

from devhost.backend.threads import NoThread, answered, elsewhere
from devhost.planning.timing import KUBELET, KubeletTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler
from devhost.runtime.rpc import channel
from devhost.runtime.sockets import peer

from .api import api_pb2 as pb

log = get(__name__)

MOST = 32
"""Most sockets that are asked at a time; if there are more, the others are asked next time."""


Ask = Callable[[Path, float], Awaitable[str]]
Look = Callable[[Sequence[Path]], object]


def look_at(paths: Sequence[Path]) -> None:
    """Hangs if one of the paths is on a file system that hangs."""
    for path in paths:
        os.path.exists(path)  # noqa: PTH110 - never raises


class SelfCheck:
    """Asks the sockets on which resources are served now.

    Each pass asks them. A caller of :meth:`answer` causes a pass; while a socket is silent, so does time.
    ``serving`` gives the sockets by resource, of those that are registered. ``changed`` is called when
    :attr:`failures` have changed. ``ask`` calls a socket, with a deadline in seconds; it returns what is
    wrong with it, or an empty text. ``look`` is called before, on a thread, with the sockets to ask.
    """

    def __init__(
        self,
        serving: Callable[[], Mapping[str, Path]],
        changed: Callable[[], None] = lambda: None,
        *,
        ask: Ask | None = None,
        look: Look = look_at,
        timing: KubeletTiming = KUBELET,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self.failures = FailureLog(
            log, "own sockets do not answer", "own sockets answer again", level="error", changed=changed
        )
        self._serving = serving
        self._ask = ask or ask_options
        self._look = look
        self._looking: asyncio.Future[object] | None = None
        """The last look at the sockets; while it has not ended, no other one begins."""
        self._timing = timing
        self._clock = clock
        self._loop = Reconciler(self._check, first=None, clock=clock)
        self._checked: asyncio.Future[None] | None = None
        """See :meth:`_shared`."""
        self._until = -math.inf
        """Until when the last result holds."""
        self._last = ""
        self._silent: frozenset[str] = frozenset()

    async def run(self) -> None:
        await self._loop.run()

    async def answer(self) -> tuple[bool, str]:
        """Whether all sockets that were asked have answered; if not, which have not, and why.

        Callers at the same time share one result. It needs :meth:`run`.
        """
        if self._clock.time() >= self._until:
            if self._checked is None:
                self._loop.wake()
            await asyncio.shield(self._shared())
        return not self.failures.reason, self.failures.reason

    async def _check(self) -> float | None:
        """One pass; returns the seconds until the next one without a caller."""
        shared, turn = self._shared(), self._turn(self._serving())
        reasons = await self._asked([*turn.values()])
        now = self._serving()
        # a resource that registered again meanwhile is served on another socket, and asked there next time
        wrong = {
            name: reason
            for (name, path), reason in zip(turn.items(), reasons, strict=True)
            if reason and now.get(name) == path
        }
        self._silent = frozenset(wrong)
        self._until = self._clock.time() + self._timing.result_holds
        if wrong:
            listed = ", ".join(f"{name} ({reason})" for name, reason in wrong.items())
            self.failures.failed(f"own socket does not answer: {listed}")
        else:
            self.failures.succeeded()
        self._checked = None
        shared.set_result(None)
        return self._timing.self_check_again if wrong else None

    async def _asked(self, paths: Sequence[Path]) -> Sequence[str]:
        """What is wrong with each of these sockets.

        gRPC loses a thread to each connection whose path hangs, so the paths are looked at first.
        """
        deadline = self._timing.self_check
        try:
            if self._looking is None or self._looking.done():
                self._looking = answered("look at own sockets", self._look, paths)
            await asyncio.wait_for(asyncio.shield(self._looking), deadline)
        except NoThread:
            pass  # the connections need none
        except TimeoutError:
            return [_no_answer(deadline)] * len(paths)
        return await asyncio.gather(*(self._ask(path, deadline) for path in paths))

    def _shared(self) -> asyncio.Future[None]:
        """Ends with the pass that runs now, or with the next one."""
        if self._checked is None:
            self._checked = asyncio.get_running_loop().create_future()
        return self._checked

    def _turn(self, serving: Mapping[str, Path]) -> dict[str, Path]:
        """The sockets to ask now: all that did not answer last time, and the next ones by name."""
        names = sorted(serving)
        if len(names) > MOST:
            again = [name for name in names if name in self._silent][:MOST]
            later = [name for name in names if name > self._last]
            turn = [*later, *names][: MOST - len(again)]
            self._last = turn[-1] if turn else self._last
            names = sorted({*again, *turn})
        return {name: serving[name] for name in names}


async def ask_options(path: Path, deadline: float) -> str:
    """What is wrong with a socket; empty if it answers GetDevicePluginOptions within the deadline."""
    async with channel(path) as connection:
        call = connection.unary_unary(
            "/v1beta1.DevicePlugin/GetDevicePluginOptions",
            pb.Empty.SerializeToString,
            pb.DevicePluginOptions.FromString,
        )
        try:
            await call(pb.Empty(), timeout=deadline)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return _no_answer(deadline)
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                with suppress(TimeoutError):
                    return await asyncio.wait_for(elsewhere(_refused, path), deadline)
                return _no_answer(deadline)
            return error.code().name
    return ""


def _no_answer(deadline: float) -> str:
    return f"no answer within {deadline:g} s"


def _refused(path: Path) -> str:
    """Why a socket accepts no connection; empty if this process listens and all its connections are in use.

    gRPC then closes each new connection at once. The kubelet keeps its connection, and nothing hangs.
    """
    try:
        process = peer(path)
    except OSError:
        return "no process listens on it"
    return "" if process == os.getpid() else "another process listens on it"
