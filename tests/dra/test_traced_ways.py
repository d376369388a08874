"""Real work enters the modules that docs/architecture.md lists for its way, and no others."""

from __future__ import annotations

import asyncio
import dis
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from devhost_testing.node import Node
from kit.dra import Cards, DraNode
from ways import also_entered, way
from work import rested

import devhost
from devhost.backend import DeviceNode, Edits
from devhost.planning.timing import NODE

SOURCE = f"{Path(devhost.__file__).parent}/"
CARD = "example.com/card"
UEVENT = Path("/sys/class/tty/tty/uevent")

RUNS = 3
"""What devhost does from time to time falls into one of them, not into all."""

SOMETIMES = {"backend/threads.py"}
"""Entered only if the thread of a worker has ended, which it does after two seconds without a call."""

pytestmark = pytest.mark.slow


class Hearing(Cards):
    """The same cards; uevents say that the file may have changed."""

    subsystems = ("tty",)

    def allocate(self, request: Any) -> Edits:
        return Edits((DeviceNode("/dev/null", shared=True),))


class Trace:
    """The modules of devhost that are entered, in all threads that are started while it is installed."""

    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._first = self._last = ""
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not self._last or not code.co_filename.startswith(SOURCE):
            return
        if event == "call" and (self._modules or code.co_qualname.partition(".<locals>")[0] == self._first):
            self._modules.add(code.co_filename.removeprefix(SOURCE))
        elif event == "return" and self._modules and code.co_qualname == self._last and returned(frame):
            self._last = ""
            self._loop.call_soon_threadsafe(self._ended.set)

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = sys.getprofile()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(before)

    async def of(self, heading: str, cause: Callable[[int], Awaitable[object]]) -> set[str]:
        """What each run enters, from the call of the first step to the return of the last one."""
        steps = way(heading)
        found = []
        for number in range(RUNS):
            await rested()
            self._modules, self._first = set(), steps[0].name
            self._ended.clear()
            self._last = steps[-1].name
            async with asyncio.timeout(60):
                await cause(number)
                await self._ended.wait()
            found.append(self._modules)
        return set.intersection(*found) - SOMETIMES


def returned(frame: FrameType) -> bool:
    """Whether a function has ended: a coroutine that waits leaves its frame as well."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in {"RETURN_VALUE", "RETURN_CONST"}


def listed(heading: str) -> set[str]:
    """What the page says, each module once."""
    steps, also = {step.file for step in way(heading)}, also_entered(heading)
    assert steps.isdisjoint(also), "listed twice"
    return steps | also


@asynccontextmanager
async def offering() -> AsyncIterator[tuple[Trace, Node]]:
    """A node without DRA that offers three cards."""
    trace = Trace()
    with trace.installed(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        async with Node(Path(place), Hearing) as node:
            (node.root / "dev").mkdir(parents=True)
            (node.root / "dev/null").touch()
            (node.root / "cards").write_text("c0\nc1\nc2")
            node.configure(f"resources: [{{name: {CARD}, backend: cards}}]")
            async with node.served({CARD: 3}):
                yield trace, node


@pytest.mark.root
@pytest.mark.skipif(not os.access(UEVENT, os.W_OK), reason=f"cannot write {UEVENT}")
async def test_a_uevent_enters_the_modules_that_the_page_lists() -> None:
    async with offering() as (trace, node):

        async def plug(number: int) -> None:
            (node.root / "cards").write_text("\n".join(f"c{one}" for one in range(4 + number)))
            UEVENT.write_text("change")

        heading = "From a uevent to a list"
        assert await trace.of(heading, plug) == listed(heading)


async def test_allocate_enters_the_modules_that_the_page_lists() -> None:
    async with offering() as (trace, node):

        async def request(number: int) -> None:
            await node.kubelet.admit(f"pod-{number}", "main", CARD, 1)

        assert await trace.of("Allocate", request) == listed("Allocate")


async def test_an_edit_enters_the_modules_that_the_page_lists() -> None:
    async with offering() as (trace, node):

        async def edit(number: int) -> None:
            shared = f"share: {{replicas: {2 + number}}}"
            node.configure(f"resources: [{{name: {CARD}, backend: cards, {shared}}}]")

        heading = "From an edit of the YAML to the services"
        assert await trace.of(heading, edit) == listed(heading)


async def test_a_claim_enters_the_modules_that_the_page_lists() -> None:
    trace = Trace()
    with trace.installed(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        async with DraNode(Path(place), NODE) as node:
            node.cards("c0", "c1", "c2")
            async with node.served(f"{{name: {CARD}, backend: cards, serve: dra}}"):
                await node.register()
                await node.until(lambda: node.published() == {CARD: {"c0", "c1", "c2"}})

                async def prepare(number: int) -> None:
                    claim = node.allocate(f"claim-{number}", node.name_of(f"c{number}"))
                    await node.prepared(claim)

                heading = "From a claim to its container"
                assert await trace.of(heading, prepare) == listed(heading)
