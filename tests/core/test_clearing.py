"""When a CDI specification goes that no resource of the configuration has: late rather than too early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devhost.allocation.cdi import garbage
from devhost.allocation.cdi.files import SpecDirectory
from devhost.allocation.cdi.garbage import CdiGarbageCollector
from devhost.backend.backoff import Backoff

OLD, NEW = "example.com/old", "example.com/new"


class Scene:
    """A directory with the files of two resources, one of them configured."""

    def __init__(self, place: Path) -> None:
        self.directory = SpecDirectory(place)
        self.held: Collection[str] | None = ()
        self.asked = 0
        self.followed: list[str] = []
        for name in (OLD, NEW):
            self.directory.path(name).write_text("{}")

    @property
    def files(self) -> set[str]:
        return {name for name in (OLD, NEW) if self.directory.path(name).exists()}

    def _held(self) -> Collection[str] | None:
        self.asked += 1
        return self.held

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CdiGarbageCollector]:
        made = CdiGarbageCollector(self.directory, lambda: [NEW], self._held, self.followed.append)
        task = asyncio.create_task(made.run())
        yield made
        task.cancel()
        await asyncio.wait([task])
        self.directory.close()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_a_file_that_nobody_needs_goes_at_once(scene, until):
    async with scene.running():
        await until(lambda: scene.files == {NEW})
    assert scene.followed == []


async def test_a_file_stays_while_a_container_has_something_of_the_resource(scene, until):
    scene.held = {OLD, NEW, "other.com/device"}
    async with scene.running() as made:
        await until(lambda: scene.followed == [OLD])  # of the others devhost has no file, or knows already
        assert scene.files == {OLD, NEW}
        scene.held = {NEW}
        made.wake()
        await until(lambda: scene.files == {NEW})


async def test_nothing_goes_while_it_is_not_known_who_holds_what(scene, until, monkeypatch):
    monkeypatch.setattr(garbage, "AGAIN", 0.01)
    scene.held = None
    async with scene.running():
        await until(lambda: scene.asked > 3)
        assert scene.files == {OLD, NEW}
        scene.held = ()
        await until(lambda: scene.files == {NEW})  # looked again by itself


async def test_a_directory_that_does_not_let_it_is_told_once_and_tried_again(
    scene, until, monkeypatch, caplog
):
    monkeypatch.setattr(garbage, "Backoff", lambda first, cap: Backoff(0.01, 0.01))
    real, place = scene.directory.directory, scene.directory
    blocked = real / "file"
    blocked.touch()
    place.directory = blocked
    async with scene.running():
        await until(lambda: scene.asked > 3)
        place.directory = real
        await until(lambda: scene.files == {NEW})
    assert [record.message for record in caplog.records].count("stale CDI specifications may be left") == 1
