"""The event loop of tests, and calls that hang until the test is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from kit.clock import QuietLoop

from devhost.backend.threads import NoThread


@pytest.hookimpl(optionalhook=True)  # earlier pytest-asyncio has none
def pytest_asyncio_loop_factories() -> dict[str, type[QuietLoop]]:
    """The event loop of every test reports when nothing is left to do."""
    return {"quiet": QuietLoop}


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
