"""Waits for the directory of verdicts, and has it read after each change."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from devhost.backend.errors import EnvironmentFailure
from devhost.backend.frozen import frozen
from devhost.backend.model import NOTHING
from devhost.planning.timing import DISCOVERY, DiscoveryTiming
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, Reconciler
from devhost.runtime.watch import DirectoryWatch
from devhost.runtime.worker import FileWorker

from .scanner import Scanner

if TYPE_CHECKING:
    from .verdicts import Flaw, Judge, Verdict

DIRECTORY = "verdicts"
"""The name of the directory, below that for the state of devhost."""

GAP = 0.02
"""Least seconds between two readings, if the directory keeps changing."""


@frozen
class VerdictsNow:
    """The verdicts in force, what has no effect, and cordons that may have been forgotten.

    ``ends`` are the nodes to which links lead that verdicts name.
    """

    directory: Path | None = None
    in_force: Sequence[Verdict] = ()
    flaws: Sequence[Flaw] = ()
    forgotten: Sequence[Verdict] = ()
    ends: Mapping[str, str] = NOTHING


class VerdictFollower:
    """The verdicts on the devices of one machine, whose ``/`` is ``root``.

    ``directory`` is where the files are; it need not exist. ``None`` is for no verdicts. ``replan`` is called
    when other verdicts are in force, with the monotonic time at which that was found; ``changed`` when other
    files have no effect. For ``wall`` see :class:`.verdicts.Judge`.
    """

    def __init__(
        self,
        directory: Path | None,
        root: Path,
        scanners: Mapping[str, Scanner],
        replan: Callable[[float | None], None],
        changed: Callable[[], None] = lambda: None,
        timing: DiscoveryTiming = DISCOVERY,
        clock: Clock = LOOP_CLOCK,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory
        self._root = root
        self._scanners = scanners
        self._replan = replan
        self._changed = changed
        self._timing = timing
        self._clock = clock
        self._wall = wall
        self.judge: Judge | None = None
        """There is one as soon as there is a directory."""
        self._worker = FileWorker("verdicts", "")
        self._passes = Reconciler(self.look, gap=GAP, clock=clock)

    async def run(self, blind: Callable[[str], None] = lambda reason: None) -> None:
        """Reads the directory after each change; for ``blind`` see :class:`.DirectoryWatch`."""
        if self.directory is None:
            return
        watch = DirectoryWatch(self._watched, self._timing.verdicts, self._worker, blind)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._passes.run())
            async for _ in watch.changes():
                self._passes.wake()

    async def look(self) -> float | None:
        """Reads the directory; seconds until something changes without a change of a file."""
        if self.directory is None or (self.judge is None and not await self._is_there(self.directory)):
            return None
        if self.judge is None:
            from .verdicts import Judge  # only on nodes with verdicts

            self.judge = Judge(self.directory, self._root, self._scanners, self._worker, self._wall)
        began = self._clock.time()
        others, flawed, again = await self.judge.read(began)
        if others:
            self._replan(began)
        if flawed:
            self.judge.apply()
            self._changed()
        return again

    def now(self) -> VerdictsNow:
        """The present state, to be shown."""
        if (judge := self.judge) is None:
            return VerdictsNow(self.directory)
        return VerdictsNow(self.directory, judge.in_force, judge.flaws, judge.forgotten(), judge.ends)

    def close(self) -> None:
        """Lets the thread end."""
        self._worker.close()

    async def _is_there(self, directory: Path) -> bool:
        """Whether there is anything: what is no directory, or does not answer, is a problem."""
        try:
            return await self._worker.file(f"find {directory}", os.path.lexists, directory)
        except EnvironmentFailure:
            return True

    def _watched(self) -> list[Path]:
        """The directory; until it exists, the one in which it appears."""
        assert self.directory is not None
        return [self.directory if self.directory.is_dir() else self.directory.parent]
