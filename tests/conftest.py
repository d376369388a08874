"""Time that jumps, waiting with a bound, and calls that hang until the test is over."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest
from kit import waiting

from devhost.backend.threads import NoThread

Virtual = Callable[[Coroutine[Any, Any, None]], None]
Until = Callable[[Callable[[], object]], Awaitable[None]]


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer whenever nothing else is left to do."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now


class _Jump(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every task waits for something that never comes"
            self._loop.now += timeout
        return ready


@pytest.fixture
def virtual() -> Virtual:
    """Runs a coroutine in virtual time: a sleep of an hour takes no time at all."""

    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(coroutine)

    return run


@pytest.fixture
def until() -> Until:
    """Waits for a condition that no event tells of, at most a minute."""
    return waiting.until


@pytest.fixture
def no_thread() -> Callable[..., threading.Thread]:
    """Starts a thread in a process that cannot have another one."""

    def start(*_: object) -> threading.Thread:
        raise NoThread

    return start


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What a hung call waits for; set when the test is over, so that no thread is left behind."""
    over = threading.Event()
    yield over
    over.set()
