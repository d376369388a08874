"""Runs observers: each has its own queue and thread, and none of them delays anything else.

News wait in the observer's queue, newest last. If an observer raises, the news of that call are lost. An
observer that raises repeatedly or hangs is paused; it never has two calls at a time. If a queue grows beyond
:data:`LIMIT`, its oldest news are dropped and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from enum import StrEnum
from pathlib import Path

from devhost.backend.backoff import Backoff
from devhost.backend.errors import BackendTimeout, one_line
from devhost.backend.frozen import frozen, mutable
from devhost.backend.incident import Incident
from devhost.backend.observe import News
from devhost.planning.timing import DISCOVERY, DiscoveryTiming
from devhost.runtime.log import get
from devhost.runtime.tasks import Tasks
from devhost.runtime.worker import NotCalled, WorkerThread
from devhost.telemetry.metrics import Failure, Metrics

from .catalog import Catalog, InstalledObserver, Refusal

log = get(__name__)

MOST = 1000
"""The most news in one call, so that the deadline applies to a similar amount of work on every node."""

LIMIT = 20_000
"""The most news that wait for one observer; the newest batch is always kept whole."""

PATIENCE = 5
"""Failures in a row after which an observer is paused."""

TOO_SLOW = "it is too slow, so news are dropped"


class ObserverState(StrEnum):
    """The state of an observer."""

    OK = "ok"
    PAUSED = "paused"


@frozen
class ObserverCondition:
    """What is known about an observer; ``since`` is wall-clock seconds.

    ``reason`` is why it is paused, or does not get all news; else empty.
    """

    state: ObserverState = ObserverState.OK
    reason: str = ""
    since: float = field(default_factory=time.time)
    calls: int = 0
    failures: int = 0
    dropped: int = 0


class Batch:
    """News of one kind that became known together.

    They are created when the first observer is called with them, on its thread, so that the event loop does
    not have to create a thousand objects when a thousand devices appear at once.
    """

    def __init__(self, kind: type[News], count: int, make: Callable[[], Sequence[News]]) -> None:
        self.kind = kind
        self.count = count
        self._make = make
        self._made: Sequence[News] | None = None

    def news(self) -> Sequence[News]:
        """The news. Two threads that call this at the same time may both create them, with equal results."""
        if self._made is None:
            self._made = tuple(self._make())
        return self._made


@mutable
class _Waiting:
    """A batch in a queue, with the number of its news that were delivered."""

    batch: Batch
    delivered: int = 0

    @property
    def left(self) -> int:
        return self.batch.count - self.delivered


class Observer:
    """One running observer. Calls ``changed`` when its condition changed."""

    def __init__(
        self,
        plugin: InstalledObserver,
        metrics: Metrics,
        changed: Callable[[], None],
        timing: DiscoveryTiming,
        queue: int,
    ) -> None:
        self.plugin = plugin
        self.condition = ObserverCondition()
        self._timing = timing
        self._limit = queue
        self._metrics = metrics
        self._changed = changed
        self._worker = WorkerThread(f"observe-{Path(plugin.name).stem}")
        self._queue: deque[_Waiting] = deque()
        self.waiting = 0
        """News that have not been delivered yet."""
        self._missed = 0
        self._overflowed = False
        self._news = asyncio.Event()
        self.settled = asyncio.Event()
        """Set while all news are delivered or the observer is paused."""
        self.settled.set()
        self._backoff = Backoff(*timing.observer_pauses)
        self._failed_in_a_row = 0
        self._pause = Incident()
        self._logged: set[tuple[str, str]] = set()
        self._failing: dict[str, tuple[int, str]] = {}
        """How often in a row a hook has failed, and why, by hook; others may return meanwhile."""

    @property
    def hung(self) -> bool:
        """Whether a call has passed its deadline and has not returned."""
        return self._worker.abandoned > 0

    def publish(self, batch: Batch) -> None:
        """Puts news into the queue, if there are any and the observer has a hook for their kind."""
        if not batch.count or batch.kind.hook not in self.plugin.hooks:
            return
        self._queue.append(_Waiting(batch))
        self.waiting += batch.count
        if self.waiting > self._limit:
            self._drop()
        if self.condition.state is ObserverState.OK:
            self.settled.clear()
        self._news.set()

    def count(self, failure: Failure | None) -> None:
        """Counts a call of a hook, with how it failed, if it did."""
        now = self.condition
        self.condition = replace(now, calls=now.calls + 1, failures=now.failures + (failure is not None))
        if failure is not None:
            self._metrics.add("observer_failures_total", self.plugin.name, failure)

    async def run(self) -> None:
        """Delivers news; never returns by itself."""
        while True:
            if self.condition.state is ObserverState.PAUSED:
                await asyncio.sleep(self._backoff.delay())
                if self.hung:
                    continue
            if not self._queue:
                self.settled.set()
                if self._overflowed:
                    log.info(
                        "observer has caught up", observer=self.plugin.name, dropped=self.condition.dropped
                    )
                    self._overflowed = False
                    self._show()
                self._news.clear()
                await self._news.wait()
            await self._call()

    def close(self) -> None:
        """Drops news that were not delivered and ends the thread; does not wait for it."""
        self._queue.clear()
        self.waiting = 0
        self.settled.set()
        self._worker.close()

    async def _call(self) -> None:
        first = self._queue[0]
        batch, start = first.batch, first.delivered
        count = min(MOST, first.left)
        first.delivered += count
        self.waiting -= count
        if not first.left:
            self._queue.popleft()
        missed, self._missed = self._missed, 0

        def call() -> BaseException | None:
            try:
                self.plugin.call(hook, news=batch.news()[start : start + count], missed=missed)
            except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
                return error
            return None

        hook = batch.kind.hook
        try:
            error = await self._worker.call(self._timing.observer, call)
        except NotCalled as refused:
            self._failed(Failure.ERROR, hook, "", f"{hook} is not called: {refused.reason}")
        except BackendTimeout:
            reason = f"{hook} did not return within {self._timing.observer:g} s"
            self._failed(Failure.TIMEOUT, hook, "", reason)
        else:
            if error is None:
                self._succeeded(hook)
            else:
                self._failed(Failure.ERROR, hook, type(error).__name__, f"{hook}: {one_line(error)}")

    def _succeeded(self, hook: str) -> None:
        self.count(None)
        self._failed_in_a_row = 0
        self._failing.pop(hook, None)
        if self.condition.state is ObserverState.OK:
            self._show()
            return
        self._backoff.reset()
        self._logged.clear()
        self._pause.over()
        if self._queue:
            self.settled.clear()
        self._set(ObserverState.OK, self._trouble)
        log.info("observer is back", observer=self.plugin.name, dropped=self.condition.dropped)

    def _failed(self, failure: Failure, hook: str, sort: str, reason: str) -> None:
        self.count(failure)
        self._failed_in_a_row += 1
        self._failing[hook] = self._failing.get(hook, (0, ""))[0] + 1, reason
        if (hook, sort) not in self._logged:
            self._logged.add((hook, sort))
            log.warning("observer failed", observer=self.plugin.name, reason=reason)
        if self.condition.state is ObserverState.OK:
            if failure is Failure.ERROR and self._failed_in_a_row < PATIENCE:
                self._show()
                return
            log.error("observer is paused", observer=self.plugin.name, reason=reason)
            self._pause.news(reason)
        elif self._pause.news(reason):
            log.error("observer is still paused", observer=self.plugin.name, reason=reason)
        self._set(ObserverState.PAUSED, reason)
        self.settled.set()

    def _drop(self) -> None:
        dropped = 0
        while self.waiting > self._limit and len(self._queue) > 1:
            left = self._queue.popleft().left
            self.waiting -= left
            dropped += left
        if not dropped:
            return
        if not self._overflowed:
            self._overflowed = True
            log.warning(
                "observer is too slow, news are dropped", observer=self.plugin.name, limit=self._limit
            )
            self._show()
        self._missed += dropped
        self.condition = replace(self.condition, dropped=self.condition.dropped + dropped)
        self._metrics.add("observer_dropped_total", self.plugin.name, by=dropped)

    @property
    def _trouble(self) -> str:
        """Why it does not get all news, although it is not paused."""
        lasting = (reason for count, reason in self._failing.values() if count >= PATIENCE)
        return next(lasting, TOO_SLOW if self._overflowed else "")

    def _show(self) -> None:
        if self.condition.state is ObserverState.OK:
            self._set(ObserverState.OK, self._trouble)

    def _set(self, state: ObserverState, reason: str) -> None:
        if state is not self.condition.state:
            self.condition = replace(self.condition, since=time.time())
        if (state, reason) != (self.condition.state, self.condition.reason):
            self.condition = replace(self.condition, state=state, reason=reason)
            self._changed()


class Observers:
    """All observers of this process. At most ``queue`` news wait for one of them."""

    def __init__(
        self,
        tasks: Tasks,
        metrics: Metrics,
        changed: Callable[[], None],
        timing: DiscoveryTiming = DISCOVERY,
        queue: int = LIMIT,
    ) -> None:
        self._timing = timing
        self._limit = queue
        self._tasks = tasks
        self._metrics = metrics
        self._changed = changed
        self._running: dict[str, Observer] = {}
        self._refused: frozenset[Refusal] = frozenset()

    def __bool__(self) -> bool:
        """Whether there are any: otherwise no news need to be made."""
        return bool(self._running)

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._running.values())

    def publish(self, batch: Batch) -> None:
        """Puts news into the queue of each of them."""
        for observer in self._running.values():
            observer.publish(batch)

    def count(self, plugin: str, failure: Failure | None) -> None:
        """Counts a call of a hook before or after a container, which never pauses the observer."""
        if (observer := self._running.get(plugin)) is not None:
            observer.count(failure)

    def follow(self, catalog: Catalog, present: Callable[[], Iterable[Batch]]) -> None:
        """Starts and stops observers so that those of the catalog run.

        One that runs already is not affected. One that is stopped gets none of its waiting news. New ones get
        what ``present`` returns: news of what exists already.
        """
        wanted = {plugin.name: plugin for plugin in catalog.observers}
        for name, observer in list(self._running.items()):
            if name not in wanted or not _same(wanted[name], observer.plugin):
                self._remove(name)
        new = [plugin for name, plugin in wanted.items() if name not in self._running]
        known = list(present()) if new else []
        for plugin in new:
            self._add(plugin, known)
        for refusal in sorted(set(catalog.refused) - self._refused, key=lambda refusal: refusal.origin):
            # A missing backend is a configuration error; a missing observer would not be noticed otherwise.
            log.warning("plugin refused", origin=refusal.origin, reason=refusal.reason)
        self._refused = frozenset(catalog.refused)

    async def flush(self, within: float) -> None:
        """Waits until all news are delivered, for at most this many seconds; ignores paused observers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                for observer in list(self._running.values()):
                    await observer.settled.wait()

    def close(self) -> None:
        """Ends their threads; does not wait for them."""
        for observer in self._running.values():
            observer.close()

    def _add(self, plugin: InstalledObserver, known: Iterable[Batch]) -> None:
        self._metrics.begin("observer", plugin.name)
        observer = self._running[plugin.name] = Observer(
            plugin, self._metrics, self._changed, self._timing, self._limit
        )
        for batch in known:
            observer.publish(batch)
        self._tasks.spawn(f"observer {plugin.name}", observer.run)
        log.info("observer added", observer=plugin.name, hooks=plugin.hooks)

    def _remove(self, name: str) -> None:
        self._running.pop(name).close()
        self._tasks.cancel(f"observer {name}")
        self._metrics.end("observer", name)
        log.info("observer removed", observer=name)


def _same(one: InstalledObserver, other: InstalledObserver) -> bool:
    """Whether two are the same plugin: a reload also creates new objects for plugins that did not change."""
    return one.plugin is other.plugin and one.hooks == other.hooks
