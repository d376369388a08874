"""Changes of nodes without a uevent are seen at once; without inotify the event source says why it fails."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncinotify
import pytest
from devhost_udev.options import Group, GroupMount
from devhost_udev.watch import node_events

from devhost.backend import Event
from devhost.backend.errors import BackendError

DEADLINE = 60.0
QUEUE = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


async def seen(events: Any, act: Callable[[], object], node: str) -> Event:
    """Acts, again and again until the watch is armed, and waits for the event about ``node``."""
    async with asyncio.timeout(DEADLINE):
        waiting = asyncio.ensure_future(anext(events))
        while not waiting.done():
            act()
            await asyncio.wait([waiting], timeout=0.05)
        event = waiting.result()
        while event.dev_node != node:
            event = await anext(events)
        return event


def toggle(file: Path) -> Callable[[], None]:
    """Removes the file if it is there, else makes it."""
    return lambda: file.unlink() if file.exists() else file.touch()


async def test_removing_creating_or_changing_a_node_causes_an_event(machine: Any) -> None:
    machine.misc("fuse", 229)
    file = machine.root / "dev/fuse"
    async with contextlib.aclosing(machine.backend().watch()) as events:
        event = await seen(events, toggle(file), "/dev/fuse")
        assert event == Event(action="node", dev_node="/dev/fuse")
        await seen(events, toggle(file), "/dev/fuse")
        file.touch()
        await seen(events, lambda: file.chmod(0o600), "/dev/fuse")


async def test_a_node_in_a_new_directory_causes_an_event(machine: Any) -> None:
    directory = machine.root / "dev/onload"

    def make() -> None:
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)

    async with contextlib.aclosing(machine.backend().watch()) as events:
        await seen(events, make, "/dev/onload")
        await seen(events, (directory / "a").touch, "/dev/onload/a")


async def test_a_library_of_a_group_causes_an_event_and_other_files_do_not(machine: Any) -> None:
    machine.node("/usr/lib64/libc.so")
    group = Group("g", mounts=(GroupMount("/usr/lib64/libonload*.so"),))

    def act() -> None:
        (machine.root / "usr/lib64/libc.so").touch()
        (machine.root / "usr/lib64/libonload1.so").touch()

    async with contextlib.aclosing(machine.backend(group).watch()) as events:
        event = await seen(events, act, "/usr/lib64/libonload1.so")
        assert event.dev_node == "/usr/lib64/libonload1.so"


async def test_lost_changes_make_every_node_be_read_again(machine: Any) -> None:
    """The kernel drops changes when its queue is full, and adds one event that names no file."""
    act = toggle(machine.root / "dev/fuse")

    def more_than_the_queue_takes() -> None:
        for _ in range(QUEUE + 2):
            act()

    async with contextlib.aclosing(machine.backend().watch()) as events:
        await seen(events, act, "/dev/fuse")
        assert await seen(events, more_than_the_queue_takes, "") == Event(action="node")


@pytest.mark.parametrize(
    ("call", "number", "limit"),
    [
        ("Inotify", errno.EMFILE, "fs.inotify.max_user_instances"),
        ("add_watch", errno.ENOSPC, "fs.inotify.max_user_watches"),
    ],
)
async def test_an_exhausted_inotify_fails_the_event_source_and_names_the_limit(
    machine: Any, monkeypatch: pytest.MonkeyPatch, call: str, number: int, limit: str
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncinotify if call == "Inotify" else asyncinotify.Inotify, call, exhausted)
    with pytest.raises(BackendError) as caught:
        await anext(machine.backend().watch())
    message = str(caught.value)
    assert message.startswith("cannot watch /dev, changes without a uevent are seen once a minute: ")
    assert f"the limit {limit}" in message
    assert f"`sysctl -w {limit}=" in message


async def test_a_machine_without_dev_is_watched_once_it_has_one(machine: Any) -> None:
    (machine.root / "dev").rmdir()
    file = machine.root / "dev/fuse"

    def act() -> None:
        file.parent.mkdir(exist_ok=True)
        file.touch()

    async with contextlib.aclosing(node_events(machine.backend().context, (), rearm=0.01)) as events:
        await seen(events, act, "/dev/fuse")
