"""What a host shows, in words that are the same in each run, and the golden files that have them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kit.golden import RENEWS, changes

from devhost.runtime.log import TextFormatter
from devhost.telemetry.metrics import Metrics

EXPECTED = Path(__file__).parent / "expected"
LOOKS = 40
"""So often in a row nothing must have changed before it is written."""

MASKED = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>"),
    (r"\(\w+, pid \d+\)", "(<process>)"),
    (r"\bsource=\w+", "source=<source>"),
    (r"\bdh-[\w-]+\.sock\b", "<socket>"),
    (r"\bdevhost-[0-9a-f]{8}_", "devhost-<tag>_"),
    (r"\b[0-9a-f]{64}\b", "<sha256>"),
    (r'version="[^"]*"', 'version="<version>"'),
)
MEASURED = re.compile(r"_seconds\b|Seconds$|^process_|\.(version|pid)$")
"""What differs from run to run; the files have only that it is there."""


class Log(logging.Handler):
    """Keeps the lines of devhost, without their times."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(TextFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record).partition(" ")[2])

    @contextmanager
    def kept(self) -> Iterator[None]:
        logger = logging.getLogger("devhost")
        before = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(before)


def flat(value: Any, place: str = "status") -> Iterator[tuple[str, str]]:
    """Each value of a document and its place; a list is its length and its items, named as they are."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from flat(one, f"{place}.{key}")
    elif isinstance(value, list):
        yield place, str(len(value))
        for number, one in enumerate(value):
            named = one if isinstance(one, dict) else {}
            yield from flat(one, f"{place}[{named.get('id') or named.get('name') or number}]")
    else:
        yield place, repr(value)


def series(metrics: Metrics) -> Iterator[tuple[str, str]]:
    """Each series of a scrape and its value; of a histogram only the count."""
    for line in "".join(line for metric in metrics.collect() for line in metric.lines).splitlines():
        name, _, value = line.rpartition(" ")
        if not re.search(r"_bucket\b|_seconds_sum\b", name):
            yield name, value


class Golden:
    """What is shown after each step, compared with golden files: the log, and what has changed.

    Lines of the log are in the order of their text, because several threads cause them.

    Args:
        shown: places and values of what is shown now.
        log: the lines of the log.
        hidden: a directory whose name differs from run to run.
        patience: seconds that a step has; none in virtual time, where nothing else is left to do.
    """

    def __init__(
        self, shown: Callable[[], Iterator[tuple[str, str]]], log: Log, hidden: Path, patience: float = 60.0
    ) -> None:
        self._shown, self._log, self._patience = shown, log, patience
        self._masked = ((re.escape(str(hidden)), "<dir>"), *MASKED)
        self._before: dict[str, str] = {}

    async def follows(self, name: str, steps: AsyncIterator[str]) -> tuple[str, str]:
        """Takes steps, up to the first that shows something else than the file of this name.

        Returns what the steps show, and what the file has.
        """
        file = EXPECTED / f"{name}.txt"
        expected = "" if RENEWS else file.read_text(encoding="utf-8")
        found = ""
        async for step in steps:
            wanted = re.match(r"# .*\n([^#].*\n)*|", expected[len(found) :])[0]
            found += await (self._still(step) if RENEWS and self._patience else self._reached(step, wanted))
            self._before = self._now()
            self._log.lines.clear()
            if not (RENEWS or expected.startswith(found)):
                break
        if RENEWS:
            file.write_text(found, encoding="utf-8")
        return found, found if RENEWS else expected

    async def _reached(self, step: str, wanted: str) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                while (text := self._changed(step)) != wanted:
                    await asyncio.sleep(0.02)
        return text

    async def _still(self, step: str) -> str:
        texts = [self._changed(step)]
        while len(texts) < LOOKS or len({*texts[-LOOKS:]}) > 1:
            await asyncio.sleep(0.05)
            texts.append(self._changed(step))
        return texts[-1]

    def _changed(self, step: str) -> str:
        log = (f"log {line}" for line in sorted(map(self._mask, self._log.lines)))
        lines = (f"# {step}", *log, *changes(self._before, self._now()))
        return "".join(f"{line}\n" for line in lines)

    def _now(self) -> dict[str, str]:
        return {
            self._mask(place): "<measured>" if MEASURED.search(place) else self._mask(value)
            for place, value in self._shown()
        }

    def _mask(self, line: str) -> str:
        for pattern, name in self._masked:
            line = re.sub(pattern, name, line)
        return line
