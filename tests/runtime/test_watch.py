"""A watch of directories wakes after every change in them, and polls where inotify does not work."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncinotify
import pytest
from descriptors import open_descriptors
from kit.clock import in_virtual_time
from kit.files import AtOnce
from kit.waiting import background, until

from devhost.runtime import watch
from devhost.runtime.watch import DirectoryWatch
from devhost.runtime.worker import FileWorker

NEVER = 3600.0
"""Seconds between polls where a test must see that inotify alone is enough."""

OFTEN = 0.01
"""The same where a test is about polling."""


class Wakes:
    """Counts the wakes of a watch."""

    def __init__(self) -> None:
        self.count = 0
        self._news = asyncio.Condition()

    async def follow(self, watch: DirectoryWatch) -> None:
        async for _ in watch.changes():
            async with self._news:
                self.count += 1
                self._news.notify_all()

    async def after(self, change: Callable[[], Any]) -> None:
        """Makes a change and waits for a wake that follows it, at most 20 s."""
        before = self.count
        change()
        async with asyncio.timeout(60), self._news:
            await self._news.wait_for(lambda: self.count > before)


@asynccontextmanager
async def woken(watch: DirectoryWatch) -> AsyncIterator[Wakes]:
    wakes = Wakes()
    async with background(wakes.follow(watch)):
        yield wakes


@asynccontextmanager
async def watching(*paths: Path, poll: float = NEVER) -> AsyncIterator[Wakes]:
    with closing(FileWorker("watch", "")) as worker:
        async with woken(DirectoryWatch(lambda: list(paths), poll, worker)) as wakes:
            await wakes.after(lambda: None)  # the first comes at once: the state before any change
            yield wakes


async def keeps_waking(wakes: Wakes, directory: Path) -> None:
    """Every change in a directory wakes: more of them than earlier changes could have left over."""
    for number in range(20):
        await wakes.after((directory / f"file-{number}").touch)


async def test_a_new_file_a_rename_and_a_removal_wake(tmp_path: Path) -> None:
    file, other = tmp_path / "kubelet.sock", tmp_path / "other.sock"
    async with watching(tmp_path) as wakes:
        await keeps_waking(wakes, tmp_path)
        await wakes.after(file.touch)
        await wakes.after(lambda: file.rename(other))
        await wakes.after(other.unlink)


async def test_an_overwritten_file_and_its_permissions_wake(tmp_path: Path) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text("version: 1")
    async with watching(tmp_path) as wakes:
        await wakes.after(lambda: file.write_text("version: 2"))
        await wakes.after(lambda: file.chmod(0o600))


async def test_the_swap_of_a_config_maps_data_directory_wakes(tmp_path: Path) -> None:
    for generation in ("one", "two"):
        (tmp_path / generation).mkdir()
        (tmp_path / generation / "devhost.yaml").write_text(generation)
    (tmp_path / "..data").symlink_to("one")
    config = tmp_path / "devhost.yaml"
    config.symlink_to("..data/devhost.yaml")
    async with watching(tmp_path) as wakes:
        (tmp_path / "..data_tmp").symlink_to("two")
        await wakes.after(lambda: (tmp_path / "..data_tmp").rename(tmp_path / "..data"))
        assert config.read_text() == "two"


async def test_a_burst_causes_few_wakes(tmp_path: Path) -> None:
    def burst() -> None:
        for number in range(500):
            (tmp_path / str(number)).touch()

    async with watching(tmp_path) as wakes:
        await wakes.after(burst)
        await asyncio.sleep(0.1)
        assert wakes.count < 50


async def test_a_recreated_directory_is_watched_again_even_with_the_same_inode(tmp_path: Path) -> None:
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    async with watching(tmp_path, directory) as wakes:
        for _ in range(3):
            for file in directory.iterdir():
                file.unlink()
            directory.rmdir()
            await wakes.after(directory.mkdir)  # many file systems give it the inode just freed
            await keeps_waking(wakes, directory)


async def test_a_replaced_directory_is_watched(tmp_path: Path) -> None:
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    async with watching(tmp_path, directory) as wakes:
        directory.rename(tmp_path / "old")
        await wakes.after(directory.mkdir)
        await keeps_waking(wakes, directory)


async def test_a_directory_that_appears_later_is_watched(tmp_path: Path) -> None:
    directory = tmp_path / "device-plugins"
    async with watching(tmp_path, directory) as wakes:
        await wakes.after(directory.mkdir)
        await keeps_waking(wakes, directory)


async def test_where_nothing_can_be_watched_yet_it_polls_until_there_is(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "yet"
    async with watching(directory, poll=OFTEN) as wakes:
        await wakes.after(lambda: None)
        directory.mkdir(parents=True)
        await keeps_waking(wakes, directory)


async def test_two_names_of_one_directory_are_both_watched_to_the_end(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to("real")
    async with watching(tmp_path, real, link) as wakes:
        await keeps_waking(wakes, real)
        await wakes.after(link.unlink)
        await keeps_waking(wakes, real / "..")
        for number in range(20):
            await wakes.after((real / f"after-{number}").touch)


@pytest.mark.parametrize(("call", "number"), [("Inotify", errno.EMFILE), ("add_watch", errno.ENOSPC)])
async def test_if_inotify_is_exhausted_the_watch_polls_and_logs_it_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    number: int,
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncinotify if call == "Inotify" else asyncinotify.Inotify, call, refuse)
    async with watching(tmp_path, poll=OFTEN) as wakes:
        for _ in range(5):
            await wakes.after(lambda: None)
        monkeypatch.undo()
        await keeps_waking(wakes, tmp_path)
    (record,) = (record for record in caplog.records if record.name == watch.__name__)
    assert "no inotify, polling instead" in record.getMessage()


async def test_a_watch_reports_that_inotify_is_exhausted_and_that_it_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    reasons: list[str] = []
    monkeypatch.setattr(asyncinotify, "Inotify", refuse)
    async with woken(DirectoryWatch(lambda: [tmp_path], OFTEN, AtOnce("watch", ""), reasons.append)):
        await until(lambda: reasons)
        monkeypatch.undo()
        await until(lambda: len(reasons) == 2)
    first, last = reasons
    assert "fs.inotify.max_user_instances" in first
    assert last == ""


async def test_a_directory_that_hangs_as_it_is_watched_stops_nothing_else_and_is_watched_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hang: threading.Event
) -> None:
    add, hung = asyncinotify.Inotify.add_watch, threading.Event()

    def add_watch(self: asyncinotify.Inotify, path: Path, mask: asyncinotify.Mask) -> asyncinotify.Watch:
        if not hung.is_set():
            hung.set()
            hang.wait(60)
        return add(self, path, mask)

    monkeypatch.setattr(asyncinotify.Inotify, "add_watch", add_watch)
    with closing(FileWorker("watch", "", 0.05)) as worker:
        async with woken(DirectoryWatch(lambda: [tmp_path], OFTEN, worker)) as wakes:
            await wakes.after(lambda: None)
            assert hung.is_set() and not hang.is_set()
            await keeps_waking(wakes, tmp_path)
            hang.set()
            await keeps_waking(wakes, tmp_path)


async def test_a_directory_without_changes_wakes_at_intervals(tmp_path: Path) -> None:
    async with watching(tmp_path, poll=OFTEN) as wakes:
        for _ in range(5):
            await wakes.after(lambda: None)


async def test_a_watch_that_ends_closes_its_descriptor(tmp_path: Path) -> None:
    before = open_descriptors()
    for _ in range(10):
        async with watching(tmp_path):
            pass
    assert len(open_descriptors() - before) <= 1


@in_virtual_time
async def test_watches_that_began_at_different_times_wake_at_the_same_moments(tmp_path: Path) -> None:
    loop, moments = asyncio.get_running_loop(), Counter[float]()

    async def follow(path: Path, after: float) -> None:
        await asyncio.sleep(after)
        async for _ in DirectoryWatch(lambda: [path], 5.0, AtOnce("watch", "")).changes():
            moments[loop.time()] += 1

    paths = [tmp_path, tmp_path, tmp_path / "missing"]
    began = loop.time()
    tasks = [
        asyncio.create_task(follow(path, after)) for path, after in zip(paths, (0.3, 1.7, 4.1), strict=True)
    ]
    await asyncio.sleep(61)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    later = sorted({round(one, 3) for one in moments if one > began + 4.9})
    assert len(later) == 12 and moments.total() >= 3 * 12
    assert all(b - a == pytest.approx(5) for a, b in pairwise(later))
