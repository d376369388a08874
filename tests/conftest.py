"""The event loop of tests, waiting with a bound, and calls that hang until the test is over."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from kit import waiting
from kit.clock import QuietLoop

from devhost.backend.threads import NoThread

Until = Callable[[Callable[[], object]], Awaitable[None]]


@pytest.hookimpl(optionalhook=True)  # earlier pytest-asyncio has none
def pytest_asyncio_loop_factories() -> dict[str, type[QuietLoop]]:
    """The event loop of every test reports when nothing is left to do."""
    return {"quiet": QuietLoop}


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
