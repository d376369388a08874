"""Several devhosts of one node take turns: one acts, the next one waits, as while a pod is upgraded.

Three files are locked (flock(2)), so that the end of a process, however it ends, releases what it had:

* ``waiting``: the next one has it, from its start until it serves;
* ``acting``: the one that acts has it;
* ``leaving``: the one that acted before has it, until it ends.

At SIGTERM the one that acts rests: it changes nothing any longer, but answers the kubelet until the next one
serves. So each resource is served throughout, and no two processes write to the same files or hardware.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from devhost.backend.errors import EnvironmentFailure
from devhost.backend.files import make_directory

from .log import get

log = get(__name__)

POLL = 0.05
"""Seconds between two tries to take a lock: a thread that waits in flock(2) cannot be ended."""

LONGEST = 20.0
"""Seconds that a devhost which was stopped answers the kubelet while the next one does not serve yet."""

AGAIN = 5.0
"""Seconds between two rehearsals."""

STANDBY = "another devhost of this node acts; this one waits for its turn"


class Acting(Protocol):
    """What acts when its turn has come."""

    def serves(self) -> bool:
        """Whether it serves everything that it can serve."""
        ...

    def others(self) -> bool:
        """Whether other devhosts serve, also those that do not take turns."""
        ...

    def reload(self) -> None:
        """Reads its configuration again."""
        ...

    def rest(self) -> None:
        """Changes nothing any longer, but goes on answering."""
        ...

    def stop(self) -> None:
        """Ends it."""
        ...

    async def stopped(self) -> None:
        """Waits until it is to end."""
        ...


class Lock:
    """A file that one process has at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: int | None = None

    def take(self) -> bool:
        """Takes it, if no process has it; whether this one has it now.

        Raises ``EnvironmentFailure`` if the file cannot be made.
        """
        if self._held is not None:
            return True
        try:
            make_directory(self._path.parent, 0o700)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot take turns with {self._path}: {error.strerror}", "choose a writable --state-dir"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._held = file
        return True

    def release(self) -> None:
        """Releases it; without effect if this process does not have it."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def free(self) -> bool:
        """Whether no process has it."""
        found = self._held is None and self.take()
        if found:
            self.release()
        return found


class Turns:
    """The turn of one devhost.

    ``directory`` is the state directory, which all devhosts of the node share; ``name`` distinguishes
    kubelets that share it. ``acting`` is what acts. ``quiet`` is called before the turn passes, to free what
    only one can have, such as an address. ``rehearse`` gives why it would not be ready if its turn came.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        acting: Acting,
        quiet: Callable[[], Awaitable[None]],
        rehearse: Callable[[], Awaitable[str]],
    ) -> None:
        self.came = False
        """Whether its turn has come."""
        self.reason = "looking for devices"
        """Why the one that acts must not end yet, while this one waits; empty if it may."""
        self._waiting, self._acting, self._leaving = (
            Lock(directory / f"turn-{name}.{one}") for one in ("waiting", "acting", "leaving")
        )
        self._host = acting
        self._quiet = quiet
        self._rehearse = rehearse
        self._tasks: set[asyncio.Task[None]] = set()

    async def come(self) -> bool:
        """Waits for the turn; false if the process is to end before."""
        waiting = asyncio.create_task(self._wait())
        stopped = asyncio.create_task(self._host.stopped())
        try:
            await asyncio.wait((waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                return False
            await waiting  # raises what failed
        finally:
            waiting.cancel()
            stopped.cancel()
        self.came = True
        self._begin(self._serve())
        return True

    def leave(self) -> None:
        """Ends the process, once the next one serves; at once if none waits."""
        if not self.came or self._waiting.take():  # it is held by this process itself until it serves
            self._host.stop()
        else:
            self._begin(self._pass_on())

    async def alone(self) -> None:
        """Waits until the devhost that acted before has ended."""
        await _until(self._leaving.free)

    async def _wait(self) -> None:
        if not (self._queue() and self._acting.take()):
            log.info("waiting for the turn", reason=STANDBY)
            await self._meanwhile(self._queue)
            await self._meanwhile(self._acting.take)
        # one that does not take turns, such as an older version
        if self._leaving.free() and self._host.others():
            log.warning("waiting for a devhost that does not take turns")
            await self._meanwhile(lambda: not self._host.others())

    def _queue(self) -> bool:
        """Becomes the next one; not while one leaves, which ends when it finds that there is no next one."""
        return self._leaving.free() and self._waiting.take()

    async def _meanwhile(self, condition: Callable[[], bool]) -> None:
        """Waits, and rehearses until that goes well: only then the one that acts may end."""
        rehearsing = asyncio.create_task(self._until_rehearsed())
        try:
            await _until(condition)
        finally:
            rehearsing.cancel()
        self._host.reload()  # the file may have changed

    async def _until_rehearsed(self) -> None:
        while self.reason:
            if reason := await self._rehearsed():
                if reason != self.reason:
                    log.warning("the one that acts must not end yet", reason=reason)
                self.reason = reason
                await asyncio.sleep(AGAIN)
            else:
                log.info("ready for the turn")
                self.reason = ""

    async def _rehearsed(self) -> str:
        try:
            return await self._rehearse()
        except Exception:
            log.exception("the look at the devices failed")
            return "the look at the devices failed, see the log"

    async def _serve(self) -> None:
        with suppress(TimeoutError):  # what has no device on this node is never served
            async with asyncio.timeout(LONGEST):
                await _until(self._host.serves)
        self._waiting.release()

    async def _pass_on(self) -> None:
        log.info("passing the turn on")
        try:
            await self._quiet()
            self._host.rest()
            async with asyncio.timeout(LONGEST):
                await _until(self._leaving.take)
                self._acting.release()
                await _until(self._waiting.free)
        except TimeoutError:
            log.warning("the next devhost does not serve yet", seconds=LONGEST)
        finally:
            self._host.stop()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - other processes change it
        await asyncio.sleep(POLL)
