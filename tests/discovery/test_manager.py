"""Which backends run, and that one that is left lets go of its threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.backend import Plain
from kit.waiting import until

from devhost.backend import Device, Event
from devhost.backend.errors import BackendTimeout
from devhost.discovery.catalog import Needed
from devhost.discovery.manager import BackendManager
from devhost.planning.timing import DISCOVERY
from devhost.runtime.tasks import Tasks
from devhost.telemetry.metrics import Metrics


class Waiting(Plain):
    """A backend whose event source waits in a call that never returns by itself."""

    name = "toy"
    released: threading.Event
    waiting: threading.Event

    def discover(self) -> Sequence[Device]:
        return [Device("d0")]

    async def watch(self) -> AsyncIterator[Event]:
        def wait() -> None:
            self.waiting.set()
            self.released.wait()

        while True:
            await self.context.run_blocking(wait)
            yield Event()


class Machine:
    """The manager of one backend, whose configuration a test edits."""

    def __init__(self, root: Path, released: Path | None = None, **methods: Callable[[Any], None]) -> None:
        events = {"released": threading.Event(), "waiting": threading.Event()}
        self.kind = type("Scripted", (Waiting,), {**events, **methods})
        self.tasks = Tasks()
        self.manager = BackendManager(
            root,
            self.tasks,
            Metrics(),
            lambda caused_at: None,
            lambda: None,
            lambda: None,
            replace(DISCOVERY, releases=0.05),
            released,
        )

    def follow(self, options: object, *names: str) -> None:
        self.manager.follow(dict.fromkeys(names, Needed(self.kind, options)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.tasks.group:
            try:
                yield
            finally:
                self.tasks.cancel_all()
        self.manager.close()


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("toy-"))


@pytest.mark.parametrize("reason", ["other options", "no longer named", "end of the process"])
async def test_closing_a_backend_ends_its_threads(tmp_path: Path, reason: str) -> None:
    machine = Machine(tmp_path)
    await until(lambda: not threads())
    async with machine.running():
        machine.follow("old options", "toy")
        await until(machine.kind.waiting.is_set)
        left = machine.manager.scanners["toy"].runner
        if reason == "other options":
            machine.follow("new options", "toy")
            assert machine.manager.scanners["toy"].runner is not left
        elif reason == "no longer named":
            machine.follow("old options")
            assert not machine.manager.scanners
    machine.kind.released.set()
    with pytest.raises(BackendTimeout, match="shutting down"):
        await left.context.run_blocking(int)
    await until(lambda: not threads())


async def test_same_options_keep_the_backend_running(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with machine.running():
        machine.follow("options", "toy")
        before = machine.manager.scanners["toy"]
        await asyncio.wait_for(before.answered.wait(), 60)
        machine.follow("options", "toy")
        assert machine.manager.scanners["toy"] is before
    machine.kind.released.set()


async def test_a_release_that_has_ended_is_taken_out_of_its_record_as_soon_as_that_is_possible(
    tmp_path: Path,
) -> None:
    record = tmp_path / "released"
    machine = Machine(tmp_path, record, release=lambda backend: None)
    manager = machine.manager
    async with machine.running():
        machine.tasks.spawn("releases", manager.watch_releases)
        machine.follow("options", "toy")
        await asyncio.wait_for(manager.scanners["toy"].answered.wait(), 60)
        (record / "in the way").mkdir(parents=True)
        await manager.release("toy", 60)
        assert await manager.resume("toy") and manager.releases.unrecorded
        (record / "in the way").rmdir()
        record.rmdir()
        await until(lambda: manager.releases.unrecorded is None)
    machine.kind.released.set()
