"""How much of the devices is in use, asked for scrapes of the metrics.

However many scrapers there are, backends are asked at most every :data:`INTERVAL` seconds, and not at all
without a scrape. A scrape waits for :data:`PATIENCE` at most. For a backend that takes longer it has the
previous answer, and none once that is older than :data:`KEPT`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping

from devhost.backend import Usage
from devhost.backend.errors import BackendError
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog
from devhost.runtime.tasks import Failing

from .scanner import Scanner

log = get(__name__)

INTERVAL = 10.0
"""Seconds between two questions to a backend."""

PATIENCE = 2.0
"""Seconds that a scrape waits for answers."""

KEPT = 60.0
"""Seconds for which an answer is shown."""

SCRAPED = 900.0
"""Seconds after the last scrape for which it is shown that a backend did not answer."""

DEADLINE = 5.0
"""Seconds that one call of a backend may take."""


class UsageReader:
    """Asks the backends that know it.

    ``scanners`` are the running ones; for ``patience`` see :data:`PATIENCE`.
    """

    def __init__(
        self,
        scanners: Callable[[], Mapping[str, Scanner]],
        clock: Clock = LOOP_CLOCK,
        patience: float = PATIENCE,
    ) -> None:
        self._scanners = scanners
        self._clock = clock
        self._patience = patience
        self._questions: dict[str, _Question] = {}

    def failing(self) -> Iterator[tuple[str, Failing]]:
        """The backends that did not answer the last question, with the reasons, while there are scrapes."""
        since = self._clock.time() - SCRAPED
        for name, one in self._questions.items():
            if one.failures.failing and one.asked > since:
                yield name, one.failures.failing

    async def read(self) -> Mapping[str, Mapping[str, Usage]]:
        """What is known now: by backend, then by the device's id."""
        scanners = {
            name: scanner
            for name, scanner in self._scanners().items()
            if scanner.runner.abilities.usage and scanner.runner.started
        }
        for name in self._questions.keys() - scanners.keys():
            self._questions.pop(name).cancel()
        now = self._clock.time()
        for name, scanner in scanners.items():
            self._questions.setdefault(name, _Question(name)).ask(scanner, now)
        running = [one.task for one in self._questions.values() if one.task is not None]
        if running:
            await asyncio.wait(running, timeout=self._patience)
        return {name: one.answer for name, one in self._questions.items() if one.began > now - KEPT}


class _Question:
    """What one backend was asked last, and answered."""

    def __init__(self, backend: str) -> None:
        self.task: asyncio.Task[None] | None = None
        self.answer: Mapping[str, Usage] = {}
        self.began = -math.inf
        """When the question was asked that :attr:`answer` answers."""
        self.asked = -math.inf
        self.failures = FailureLog(
            log, "the use of devices is not known", "the use of devices is known again", backend=backend
        )

    def ask(self, scanner: Scanner, now: float) -> None:
        """Asks, unless that was done just now or is still going on."""
        if self.task is None and now >= self.asked + INTERVAL:
            self.asked = now
            self.task = asyncio.create_task(self._ask(scanner, now))

    def cancel(self) -> None:
        """Waits for no answer."""
        if self.task is not None:
            self.task.cancel()

    async def _ask(self, scanner: Scanner, began: float) -> None:
        runner = scanner.runner
        try:
            self.answer = await runner.call("usage", DEADLINE, runner.usage, list(scanner.devices.values()))
            self.began = began
        except BackendError as error:
            self.failures.failed(str(error))
        else:
            self.failures.succeeded()
        finally:
            self.task = None
