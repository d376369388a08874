"""When a CDI specification goes that no resource of the configuration has: late rather than too early."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kit.clock import FakeClock
from kit.waiting import background, until

from devhost.allocation.allocations import Allocations
from devhost.allocation.cdi.files import AGAIN, CdiGarbageCollector, SpecFiles
from devhost.planning.settings import Inject, ResourceSettings, Settings

OLD, NEW = "example.com/old", "example.com/new"


class Lists(Allocations):
    """What is held is what the test says."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.names: frozenset[str] | None = frozenset()
        self.asked = 0
        self.followed: list[str] = []

    def resources(self) -> frozenset[str] | None:
        self.asked += 1
        return self.names

    def follow(self, resource: str) -> None:
        self.followed.append(resource)


class Scene:
    """A directory with the files of two resources, one of them configured."""

    def __init__(self, place: Path) -> None:
        self.files = SpecFiles(place)
        self.lists = Lists()
        self.clock = FakeClock()
        for name in (OLD, NEW):
            self.files.path(name).write_text("{}")

    @property
    def left(self) -> set[str]:
        return {name for name in (OLD, NEW) if self.files.path(name).exists()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CdiGarbageCollector]:
        settings = Settings((ResourceSettings(0, NEW, "card", inject=Inject.CDI),))
        made = CdiGarbageCollector(self.files, settings, self.lists, clock=self.clock)
        async with background(made.run()):
            yield made
        self.files.close()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_a_file_that_no_container_needs_is_removed_at_once(scene):
    async with scene.running():
        await until(lambda: scene.left == {NEW})
    assert scene.lists.followed == []


class Releasing(Lists):
    """The kubelet says that a container has ended while the files are looked at."""

    def follow(self, resource: str) -> None:
        super().follow(resource)
        self.names = frozenset()


async def test_a_release_while_the_files_are_looked_at_is_noticed(scene):
    scene.lists = Releasing()
    scene.lists.names = frozenset({OLD})
    async with scene.running():
        await until(lambda: scene.left == {NEW})


async def test_a_file_stays_while_a_container_has_something_of_the_resource(scene):
    scene.lists.names = frozenset({OLD, NEW, "other.com/device"})
    async with scene.running() as made:
        await until(lambda: scene.lists.followed == [OLD])  # the others have no file, or are configured
        assert scene.left == {OLD, NEW}
        scene.lists.names = frozenset({NEW})
        made.wake()
        await until(lambda: scene.left == {NEW})


async def test_nothing_is_removed_while_it_is_not_known_who_holds_what(scene):
    scene.lists.names = None
    async with scene.running():
        for asked in (1, 2, 3):
            await until(lambda asked=asked: scene.lists.asked == asked and scene.clock.timers)
            await scene.clock.advance(AGAIN)
        assert scene.left == {OLD, NEW}
        scene.lists.names = frozenset()
        await scene.clock.advance(AGAIN)
        await until(lambda: scene.left == {NEW})  # looked again by itself


async def test_a_resource_that_leaves_the_configuration_loses_its_file(scene):
    async with scene.running() as made:
        await until(lambda: scene.left == {NEW})
        made.follow(Settings(cdi_directory=scene.files.directory))
        await until(lambda: scene.left == set())


async def test_a_directory_that_cannot_be_read_is_reported_once_and_tried_again(scene, monkeypatch, caplog):
    scandir = os.scandir

    def refuse(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "scandir", refuse)
    async with scene.running():
        async with asyncio.timeout(60):
            while scene.lists.asked < 4:
                await scene.clock.advance(60.0)  # longer than the longest back-off
                await asyncio.sleep(0.005)  # for the thread
            monkeypatch.setattr(os, "scandir", scandir)
            while scene.left != {NEW}:
                await scene.clock.advance(60.0)
                await asyncio.sleep(0.005)
    assert caplog.messages.count("stale CDI specifications may be left") == 1
