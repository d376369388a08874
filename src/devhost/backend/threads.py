"""Starting threads, also where the process cannot have another one."""

from __future__ import annotations

import _thread
import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from .errors import EnvironmentFailure

P = ParamSpec("P")
T = TypeVar("T")


Start = Callable[..., threading.Thread]
""":func:`start`, or what takes its place in a test."""


OWN = 7
"""Threads that devhost uses by itself while it starts. Without one of these it goes on."""

STACK = 2 << 20
"""Bytes of the stack of a thread. The default is mostly 8 MiB, which ``ulimit -v`` counts though unused."""


class NoThread(EnvironmentFailure):
    """The process cannot start another thread."""

    def __init__(self, what: str = "the process cannot start another thread") -> None:
        super().__init__(
            what, "raise its limit of memory or processes: of the pod, TasksMax, ulimit -v or ulimit -u"
        )


def of_grpc() -> int:
    """The threads of gRPC 1.60 and later. It hangs, or aborts the process, if it does not get all of them.

    A timer, a poller, one that watches the others, and 4 to 16 for events, by the number of cores.
    """
    return 3 + min(max(os.cpu_count() or 1, 4), 16)


def provide() -> None:
    """Makes sure that this process can start the threads of gRPC and its own, and makes stacks smaller.

    Raises:
        NoThread: it cannot; the message has both numbers.
    """
    over, started, grpc = threading.Event(), 0, of_grpc()
    least = grpc + OWN
    try:
        while started < least:
            threading.stack_size(0 if started < grpc else 2 * STACK)  # leaves something for the heap
            _thread.start_new_thread(over.wait, ())  # does not wait until the thread runs
            started += 1
    except (RuntimeError, MemoryError):
        raise NoThread(f"devhost needs {least} threads, and the process can start {started}") from None
    finally:
        over.set()
        threading.stack_size(STACK)


def start(name: str, call: Callable[..., object], *args: object) -> threading.Thread:
    """Runs ``call`` on a new thread, which does not keep the process from ending.

    Raises:
        NoThread: a limit of the process or of the node does not allow another thread.
    """
    thread = threading.Thread(target=call, args=args, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError):  # Python does not pass on the kernel's reason
        raise NoThread from None
    return thread


def answered(name: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """The result of a call on a new thread, for the running event loop; the call goes on if it is cancelled.

    Raises:
        NoThread: as :func:`start`.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(value: Any, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = call(*args, **kwargs)
        except Exception as caught:  # noqa: BLE001 - it is the caller's
            error = caught
        with suppress(RuntimeError):  # the loop is closed: nothing waits for this answer
            loop.call_soon_threadsafe(finish, value, error)

    start(name, run)
    return future


async def elsewhere(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a computation that is too long for the event loop: on a thread, if one can be started.

    The computation is finite and does not wait for anything. It must not use what the loop changes. It goes
    on if the caller is cancelled.
    """
    try:
        future = answered("computation", call, *args, **kwargs)
    except NoThread:
        return call(*args, **kwargs)  # slower for everybody else, but right
    return await future
