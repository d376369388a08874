"""Noticing that the configuration file changed, in the time of a fake clock."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kit.clock import FakeClock
from kit.files import AtOnce, replace
from kit.waiting import background

from devhost.backend.files import fingerprint
from devhost.host.reload import MAX_CHECKS, ConfigWatch
from devhost.planning.timing import NODE, ConfigTiming
from devhost.runtime.worker import FileWorker

MOMENT = NODE.config.settle / 10
"""A time in which nothing is due."""


class Scene:
    """A watched file, and what was read of it: its text, and whether it counted as changed."""

    def __init__(self, tmp_path: Path) -> None:
        self.file = tmp_path / "devhost.yaml"
        self.write("first")
        self.clock = FakeClock()
        self.reads: list[tuple[str, bool]] = []
        self.refused = False
        self.failure: Exception | None = None
        self.watch = ConfigWatch(
            self.file,
            self._read,
            lambda: self.refused,
            fingerprint(self.file),
            AtOnce("config", ""),
            clock=self.clock,
        )

    def write(self, text: str) -> None:
        """Replaces the file, as an editor does."""
        replace(self.file, text)

    async def _read(self, changed: bool) -> None:
        if self.failure is not None:
            raise self.failure
        self.reads.append((self.file.read_text() if self.file.exists() else "", changed))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async with background(self.watch.run()):
            await self.clock.settle()
            yield


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_an_edit_is_read_once_and_only_when_the_content_stays_the_same(scene: Scene) -> None:
    async with scene.watching():
        scene.write("half")
        await scene.clock.advance(NODE.config.settle - MOMENT)
        scene.write("whole")
        await scene.clock.advance(NODE.config.settle)
        assert scene.reads == [], "it changed less than that ago"
        await scene.clock.advance(MOMENT)
        assert scene.reads == [("whole", True)]
        await scene.clock.advance(10 * NODE.config.poll)
        assert scene.reads == [("whole", True)]


async def test_events_while_the_content_settles_do_not_have_it_read_early(scene: Scene) -> None:
    async with scene.watching():
        scene.write("second")
        for _ in range(9):
            await scene.clock.advance(MOMENT)
            (scene.file.parent / "other").write_text("an event in the same directory")
        await scene.clock.settle()
        assert scene.reads == []
        await scene.clock.advance(2 * MOMENT)
        assert scene.reads == [("second", True)]


async def test_a_file_that_never_settles_is_read_as_it_is(scene: Scene) -> None:
    async with scene.watching():
        for number in range(MAX_CHECKS):
            scene.write(f"edit {number}")
            await scene.clock.advance(NODE.config.settle - MOMENT)
            scene.write(f"more of edit {number}")
            assert scene.reads == []
            await scene.clock.advance(MOMENT)
        assert scene.reads == [(f"more of edit {MAX_CHECKS - 1}", True)]
        scene.write("the last edit")
        await scene.clock.advance(NODE.config.settle)
        assert scene.reads[1:] == [("the last edit", True)]


async def test_a_file_that_was_removed_is_read_too(scene: Scene) -> None:
    async with scene.watching():
        scene.file.unlink()
        await scene.clock.advance(NODE.config.poll + NODE.config.settle)
        assert scene.reads == [("", True)]


async def test_a_refused_file_is_read_again_although_it_is_the_same(scene: Scene) -> None:
    scene.refused = True
    async with scene.watching():
        await scene.clock.advance(NODE.config.retry - MOMENT)
        assert scene.reads == []
        await scene.clock.advance(MOMENT)
        assert scene.reads == [("first", False)]
        await scene.clock.advance(NODE.config.retry)
        assert scene.reads == [("first", False)] * 2
        scene.refused = False
        await scene.clock.advance(10 * NODE.config.retry)
        assert scene.reads == [("first", False)] * 2


async def test_an_edit_whose_reading_failed_unexpectedly_is_read_again(scene: Scene) -> None:
    scene.failure = RuntimeError("a bug")
    with pytest.raises(ExceptionGroup):
        async with scene.watching():
            scene.write("second")
            await scene.clock.advance(NODE.config.poll + NODE.config.settle)
    scene.failure = None
    async with scene.watching():
        await scene.clock.advance(NODE.config.settle)
        assert scene.reads == [("second", True)]


async def test_a_file_system_that_hangs_is_reported_and_stops_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, stat = tmp_path / "devhost.yaml", Path.stat
    file.write_text("first")
    works = threading.Event()
    waited: set[int] = set()

    def hang(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path in (file, tmp_path) and not works.is_set():
            waited.add(threading.get_ident())
            works.wait(60)
        return stat(path, follow_symlinks=follow_symlinks)

    reasons: asyncio.Queue[str] = asyncio.Queue()
    reads: asyncio.Queue[str] = asyncio.Queue()

    async def read(changed: bool) -> None:
        await reads.put(file.read_text())

    seen, worker = fingerprint(file), FileWorker("config", "", 0.1)
    timing = ConfigTiming(poll=0.05, settle=0.01)
    monkeypatch.setattr(Path, "stat", hang)
    watch = ConfigWatch(file, read, lambda: False, seen, worker, reasons.put_nowait, timing=timing)
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(60):
        assert f"cannot read {file}: it did not answer" in await reasons.get()
        file.write_text("second")
        works.set()
        while await reasons.get():
            pass
        assert await reads.get() == "second"
    assert waited and threading.get_ident() not in waited
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    worker.close()
