"""Work that must not block the event loop: on a thread with a deadline, in pieces, or where a path may hang.

A worker is a thread on which blocking calls run one after another, each with a deadline.

A call that hangs in C cannot be stopped. Its thread is abandoned (it ends if the call ever returns) and a new
one replaces it. The number of abandoned threads is limited: at :data:`MAX_ABANDONED` the worker runs no
further call until one of them returns.

A thread without calls for :data:`IDLE` seconds ends, and the next call starts a new one. So a backend that is
only called at the resync needs no thread in between.

A container may request every token of a list, and ``check`` accepts lists of about 100 000 tokens. No single
request may keep the loop busy for 100 ms: another resource's Allocate, or a probe, would wait as long. So
what is done with each token is done in pieces (:func:`in_pieces`).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from devhost.backend import threads
from devhost.backend.errors import BackendTimeout, EnvironmentFailure, exhausted
from devhost.backend.threads import NoThread

P = ParamSpec("P")
T = TypeVar("T")

MAX_ABANDONED = 4
"""The most hanging threads of one worker: each keeps a stack and the resources of its call."""

IDLE = 2.0
"""Seconds that a thread waits for another call. Starting a thread takes about 0.1 ms."""

FILE_DEADLINE = 4.0
"""Seconds that one file operation may take: the directory may be on a file system that hangs."""

PIECE = 1024
"""Items that are handled in one go: about 10 ms for what Allocate does with each token."""


class NotCalled(BackendTimeout):
    """A call was not made, because no thread could be started; ``reason`` is why not."""

    def __init__(self, what: str, reason: NoThread) -> None:
        super().__init__(f"{what}: {reason}")
        self.reason = reason


class WorkerThread:
    """Runs blocking calls for one purpose. Used in one event loop.

    ``who`` is what is called, as the beginning of error messages: ``backend gpu``. ``work`` is the purpose of
    the calls, as their end: ``when looking for devices``. A thread without calls ends after ``idle`` seconds.
    """

    def __init__(
        self,
        name: str,
        who: str = "it",
        work: str = "",
        *,
        idle: float = IDLE,
        start: threads.Start = threads.start,
    ) -> None:
        self.name = name
        self.start = start
        self._idle = idle
        self._who = who
        self._work = f" {work}" if work else ""
        self._jobs = SimpleQueue[_Job | _Last | None]()  # None wakes a thread to end it
        self._lock = threading.Lock()
        self._thread: _Runner | None = None
        self.abandoned = 0
        """The number of threads that were abandoned in a call that hangs."""
        self._resting = False
        self._closed = False

    async def call(self, deadline: float, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``call`` on the worker's thread; returns what it returns, raises what it raises.

        ``deadline`` is in seconds from now, including the wait for earlier calls. Raises ``BackendTimeout``
        if the deadline passed, too many earlier calls still hang, or no thread can be started.
        """
        if self.abandoned >= MAX_ABANDONED:
            raise BackendTimeout(
                f"{self._who} does not answer{self._work}: {self.abandoned} earlier calls still hang"
            )
        loop = asyncio.get_running_loop()
        job = _Job(partial(call, *args, **kwargs), loop)
        # A timer instead of asyncio.timeout(), which would take a tenth of the time of the whole call.
        timer = loop.call_later(deadline, self._late, job, deadline)
        try:
            with self._lock:
                if self._closed:
                    raise BackendTimeout(f"{self._who} is shutting down")
                if self._thread is None:
                    try:
                        self._thread = _Runner(self)
                    except NoThread as error:
                        raise NotCalled(f"{self._who} cannot be called{self._work}", error) from None
                    self._resting = False
                self._jobs.put(job)
            result: T = await job.future
            return result
        finally:
            timer.cancel()
            if not job.returned:
                self._leave(job)

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Ends the thread once its current call returns; does not wait for it.

        ``last`` is called after that, on the worker's thread, unless nothing was ever called. It must not
        raise.
        """
        with self._lock:
            if last is not None and not self._closed:
                self._jobs.put(_Last(last))
                if self._resting:
                    with suppress(NoThread):
                        self._thread = _Runner(self)
            self._closed = True
            self._jobs.put(None)

    def _late(self, job: _Job, deadline: float) -> None:
        job.finish(None, BackendTimeout(f"{self._who} did not answer within {deadline:g} s{self._work}"))

    def _leave(self, job: _Job) -> None:
        """Handles a call that has not returned, because it hangs or was cancelled: abandons its thread."""
        with self._lock:
            job.left = True
            if self._thread is not None and self._thread.job is job and not job.returned:
                self._thread.given_up = True
                self.abandoned += 1
                self._thread = None
                if not self._jobs.empty() and self.abandoned < MAX_ABANDONED:
                    with suppress(NoThread):  # those jobs run with the next call, if it is soon
                        self._thread = _Runner(self)

    def _run(self, runner: _Runner) -> None:
        while self._goes_on(runner):
            try:
                job = self._jobs.get(timeout=self._idle)
            except Empty:
                if self._rests():
                    return
                continue
            if job is None:
                return
            with self._lock:
                runner.job = None if job.left else job
            if runner.job is not None:
                job.run()

    def _goes_on(self, runner: _Runner) -> bool:
        """Whether the thread serves further jobs, after it has served one."""
        with self._lock:
            runner.job = None
            if runner.given_up:
                self.abandoned -= 1
                if self._thread is not None:
                    return False
                # There is no other thread, perhaps because too many hang: this one continues.
                runner.given_up, self._thread = False, runner
            return True

    def _rests(self) -> bool:
        """Whether the thread ends, because there is no job."""
        with self._lock:
            if not self._jobs.empty():
                return False
            self._thread, self._resting = None, True
            return True


STATE_HINT = "--state-dir must be a directory that devhost may write to"
"""For an error with a record that is needed after a restart."""


class FileWorker(WorkerThread):
    """A worker for the files of one directory that the configuration names.

    ``hint`` is what the directory must be, for an error. One operation may take ``deadline`` seconds.
    """

    def __init__(
        self,
        name: str,
        hint: str,
        deadline: float = FILE_DEADLINE,
        *,
        start: threads.Start = threads.start,
    ) -> None:
        super().__init__(name, start=start)
        self._hint = hint
        self._deadline = deadline

    async def file(self, what: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``call`` as :meth:`call` does, within the deadline.

        ``what`` is the operation, for the error: ``write /a/b``. Raises ``EnvironmentFailure`` if the
        directory hangs, is full, or cannot be written to.
        """
        try:
            return await self.call(self._deadline, call, *args, **kwargs)
        except OSError as error:
            hint = lack.hint if (lack := exhausted(error)) else self._hint
            raise EnvironmentFailure(f"cannot {what}: {error.strerror or error}", hint) from None
        except NotCalled as error:
            raise EnvironmentFailure(f"cannot {what}: {error.reason.message}", error.reason.hint) from None
        except BackendTimeout as error:
            raise EnvironmentFailure(f"cannot {what}: {error.message}") from None


class _Job:
    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.returned = False
        self.left = False
        """Whether nothing waits for its result."""

    def run(self) -> None:
        try:
            value, error = self._call(), None
        except BaseException as caught:  # noqa: BLE001 - third-party code may raise anything
            value, error = None, caught
        self.returned = True  # set before the caller can wake up and check whether the thread hangs
        try:
            self._loop.call_soon_threadsafe(self.finish, value, error)
        except RuntimeError:
            return  # the loop is closed: nothing waits for this answer

    def finish(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            self.future.set_exception(error)
        else:
            # SystemExit, CancelledError and similar exceptions, such as a panic in a Rust library, do not
            # mean "the backend failed" to asyncio and to handlers of Exception.
            self.future.set_exception(RuntimeError(f"it raised {error!r}"))


class _Last:
    """The last call of a worker; nothing waits for it."""

    left = False

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


class _Runner:
    """A thread of a worker. Raises ``NoThread`` if it cannot be started."""

    def __init__(self, worker: WorkerThread) -> None:
        self.job: _Job | _Last | None = None
        self.given_up = False
        worker.start(worker.name, worker._run, self)


async def in_pieces(items: Sequence[T], work: Callable[[Sequence[T]], object]) -> None:
    """Calls ``work`` with slices of the items; other work gets its turn between two of them."""
    if len(items) <= PIECE:  # nothing is copied
        work(items)
        return
    for start in range(0, len(items), PIECE):
        if start:
            await asyncio.sleep(0)
        work(items[start : start + PIECE])


SILENCE = 4.0
"""Seconds after which a look at a path that has not ended counts as: the path does not exist."""


class Existence:
    """Looks at paths of a host whose root directory is ``root``. Its methods are called from any thread.

    Of each path, only looks hang that begin before it is known to be silent.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._began: dict[str, float] = {}
        """When the looks began that have not ended, by path."""
        self.silent: frozenset[str] = frozenset()
        """The paths that did not answer when they were last looked at."""

    def exists(self, path: str) -> bool:
        """Whether the host has this path; false at once if it is silent. May block."""
        return not self.is_silent(path) and self._exists(path)

    def is_silent(self, path: str) -> bool:
        """Whether the path does not answer, as far as that is known. Never blocks."""
        return path in self.silent or self.hangs(path)

    def _exists(self, path: str) -> bool:
        self._began.setdefault(path, time.monotonic())
        try:
            # not pathlib: any error means "no", and creating a Path takes three times as long as the check
            return os.path.exists(os.path.join(self._root, path.lstrip("/")))  # noqa: PTH110, PTH118
        finally:
            self._began.pop(path, None)

    def hangs(self, path: str) -> bool:
        """Whether an earlier look at this path does not end. Never blocks."""
        began = self._began.get(path)
        return began is not None and time.monotonic() - began >= SILENCE

    def hanging(self) -> set[str]:
        """The paths at which an earlier look does not end. Never blocks."""
        return {path for path in self._began.copy() if self.hangs(path)}

    def look(self, paths: Iterable[str], found: MutableMapping[str, bool]) -> None:
        """Stores for each path whether it exists, as soon as that is known. May block."""
        for path in paths:
            found[path] = self._exists(path)
