"""Waiting with a bound, and calls that hang until the test is over."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from kit import waiting

from devhost.backend.threads import NoThread

Until = Callable[[Callable[[], object]], Awaitable[None]]


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
