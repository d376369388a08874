"""Every call has a deadline, and one that hangs costs a thread, never the worker."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kit.waiting import until

from devhost.backend import threads
from devhost.backend.errors import MORE_OPEN_FILES, BackendTimeout, EnvironmentFailure
from devhost.runtime.worker import MAX_ABANDONED, FileWorker, NotCalled, WorkerThread

LONG = 60.0
"""Seconds no call of these tests really takes."""

SHORT = 0.05


@pytest.fixture
async def worker() -> AsyncIterator[WorkerThread]:
    worker = WorkerThread("card-discover", "backend card", "when looking for devices")
    yield worker
    worker.close()


@pytest.fixture
async def impatient() -> AsyncIterator[WorkerThread]:
    """A worker whose thread ends as soon as it has nothing to do."""
    worker = WorkerThread("card-discover", idle=0.01)
    yield worker
    worker.close()


async def test_a_call_returns_its_result_and_runs_on_a_thread(worker: WorkerThread) -> None:
    def where(first: int, *, second: int) -> tuple[int, str]:
        return first + second, threading.current_thread().name

    assert await worker.call(LONG, where, 1, second=2) == (3, "card-discover")


async def test_calls_run_one_after_another_in_order_on_one_thread(worker: WorkerThread) -> None:
    order: list[tuple[int, int]] = []

    def note(number: int) -> None:
        order.append((number, threading.get_ident()))

    await asyncio.gather(*(worker.call(LONG, note, number) for number in range(20)))
    assert [number for number, _ in order] == list(range(20))
    assert len({thread for _, thread in order}) == 1


async def test_an_exception_of_the_call_is_what_the_caller_gets(worker: WorkerThread) -> None:
    mine = LookupError("no such card")

    def fail() -> None:
        raise mine

    with pytest.raises(LookupError) as caught:
        await worker.call(LONG, fail)
    assert caught.value is mine


async def test_a_timeout_error_raised_by_the_call_itself_is_not_a_hang(worker: WorkerThread) -> None:
    def fail() -> None:
        raise TimeoutError("the card did not answer")

    with pytest.raises(TimeoutError, match="the card did not answer") as caught:
        await worker.call(LONG, fail)
    assert not isinstance(caught.value, BackendTimeout)
    assert worker.abandoned == 0


class Panic(BaseException):
    """What a Rust library raises: no Exception at all."""


@pytest.mark.parametrize(
    "raised",
    [
        StopIteration(3),
        KeyboardInterrupt(),
        SystemExit(4),
        asyncio.CancelledError(),
        GeneratorExit(),
        Panic("x"),
    ],
)
async def test_exceptions_with_a_meaning_for_asyncio_are_ordinary_failures(
    worker: WorkerThread, raised: BaseException
) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(RuntimeError, match=f"it raised {type(raised).__name__}"):
        await worker.call(LONG, fail)
    assert await worker.call(LONG, lambda: "still here") == "still here"


async def test_a_hanging_call_ends_with_a_timeout_and_its_thread_is_counted(
    worker: WorkerThread, hang: threading.Event
) -> None:
    while not worker.abandoned:  # a call may not have begun at its deadline
        with pytest.raises(
            BackendTimeout, match=r"^backend card did not answer within 0\.05 s when looking for devices$"
        ):
            await worker.call(SHORT, hang.wait)
    assert worker.abandoned == 1
    assert await worker.call(LONG, lambda: "served by a fresh thread") == "served by a fresh thread"
    hang.set()
    await until(lambda: worker.abandoned == 0)
    assert await worker.call(LONG, lambda: "and still") == "and still"


async def test_calls_queued_behind_a_hung_one_are_served(worker: WorkerThread, hang: threading.Event) -> None:
    stuck = asyncio.create_task(worker.call(SHORT, hang.wait))
    queued = [asyncio.create_task(worker.call(LONG, int, text)) for text in "123"]
    with pytest.raises(BackendTimeout):
        await stuck
    assert await asyncio.gather(*queued) == [1, 2, 3]


async def test_a_queued_call_whose_deadline_passes_never_runs(
    worker: WorkerThread, hang: threading.Event
) -> None:
    ran: list[bool] = []
    stuck = asyncio.create_task(worker.call(LONG, hang.wait))
    await asyncio.sleep(0)  # it is in the queue now
    with pytest.raises(BackendTimeout):
        await worker.call(SHORT, ran.append, True)
    hang.set()
    assert await stuck
    assert await worker.call(LONG, lambda: ran) == []


async def test_hanging_threads_are_limited_and_the_worker_refuses_more(
    worker: WorkerThread, hang: threading.Event
) -> None:
    while worker.abandoned < MAX_ABANDONED:  # a call may not have begun at its deadline
        with pytest.raises(BackendTimeout, match="did not answer"):
            await worker.call(SHORT, hang.wait)
    with pytest.raises(
        BackendTimeout, match=r"^backend card does not answer when looking .*: 4 earlier calls still hang$"
    ):
        await worker.call(LONG, hang.wait)
    assert worker.abandoned == MAX_ABANDONED


async def test_a_queue_of_hanging_calls_uses_at_most_the_allowed_threads(
    worker: WorkerThread, hang: threading.Event
) -> None:
    calls = [worker.call(SHORT * (1 + number), hang.wait) for number in range(2 * MAX_ABANDONED)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, BackendTimeout) for result in results)
    assert 1 <= worker.abandoned <= MAX_ABANDONED


async def test_a_worker_with_too_many_hanging_threads_works_again_when_one_returns(
    worker: WorkerThread, hang: threading.Event
) -> None:
    first = threading.Event()
    for event in (first, *[hang] * (MAX_ABANDONED - 1)):
        with pytest.raises(BackendTimeout):
            await worker.call(SHORT, event.wait)
    first.set()
    await until(lambda: worker.abandoned < MAX_ABANDONED)
    assert await worker.call(LONG, lambda: "back") == "back"


async def test_a_call_queued_while_the_last_thread_hung_is_served_by_one_that_comes_back(
    worker: WorkerThread, hang: threading.Event
) -> None:
    first = threading.Event()
    for event in (first, *[hang] * (MAX_ABANDONED - 2)):
        with pytest.raises(BackendTimeout):
            await worker.call(SHORT, event.wait)
    last = asyncio.create_task(worker.call(SHORT, hang.wait))
    queued = asyncio.create_task(worker.call(LONG, lambda: "served"))
    with pytest.raises(BackendTimeout):
        await last
    first.set()
    assert await queued == "served"


async def test_a_caller_that_is_cancelled_leaves_the_worker_usable(
    worker: WorkerThread, hang: threading.Event
) -> None:
    began = threading.Event()

    def call() -> None:
        began.set()
        hang.wait()

    task = asyncio.create_task(worker.call(LONG, call))
    await until(began.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert worker.abandoned == 1
    assert await worker.call(LONG, lambda: "next") == "next"
    hang.set()
    await until(lambda: worker.abandoned == 0)


async def test_an_exception_of_a_call_without_a_waiting_caller_is_dropped(
    worker: WorkerThread, hang: threading.Event
) -> None:
    def fail() -> None:
        hang.wait()
        raise OSError("too late")

    with pytest.raises(BackendTimeout):
        await worker.call(SHORT, fail)
    hang.set()
    await until(lambda: worker.abandoned == 0)
    gc.collect()  # an exception that was never retrieved would be reported here, as an error


async def test_an_answer_that_arrives_with_the_deadline_is_an_answer(
    worker: WorkerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, arrived = asyncio.get_running_loop(), threading.Event()
    arrive = loop.call_soon_threadsafe

    def arrives(*args: Any) -> None:
        arrive(*args)
        arrived.set()

    monkeypatch.setattr(loop, "call_soon_threadsafe", arrives)
    task = asyncio.create_task(worker.call(SHORT, lambda: "answer"))
    await asyncio.sleep(0)  # the call is on its way
    arrived.wait()  # the loop is busy: answer and deadline are both there after it
    time.sleep(2 * SHORT)  # noqa: ASYNC251
    assert await task == "answer"
    assert worker.abandoned == 0


async def test_a_closed_worker_finishes_what_runs_and_refuses_the_rest(hang: threading.Event) -> None:
    worker, threads = WorkerThread("closing"), set[threading.Thread]()

    def call() -> str:
        threads.add(threading.current_thread())
        hang.wait()
        return "done"

    running = asyncio.create_task(worker.call(LONG, call))
    await until(lambda: threads)
    worker.close()
    with pytest.raises(BackendTimeout, match=r"^it is shutting down$"):
        await worker.call(LONG, int)
    hang.set()
    assert await running == "done"
    await until(lambda: not any(thread.is_alive() for thread in threads))


def test_a_closed_loop_when_a_call_returns_has_no_effect(hang: threading.Event) -> None:
    worker, threads = WorkerThread("late"), list[threading.Thread]()

    def call() -> None:
        threads.append(threading.current_thread())
        hang.wait()

    async def main() -> None:
        with pytest.raises(BackendTimeout):
            await worker.call(SHORT, call)

    asyncio.run(main())
    worker.close()
    hang.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


async def test_threads_never_keep_the_process_from_ending(worker: WorkerThread) -> None:
    assert await worker.call(LONG, lambda: threading.current_thread().daemon)


async def test_the_last_call_waits_for_the_current_call_and_runs_once(
    worker: WorkerThread, hang: threading.Event
) -> None:
    done = threading.Event()
    order: list[str] = []

    def call() -> None:
        hang.wait()
        order.append("call")

    def last() -> None:
        order.append("last")
        done.set()

    waiting = asyncio.create_task(worker.call(60.0, call))
    await asyncio.sleep(0)
    worker.close(last)
    worker.close(last)
    hang.set()
    await waiting
    await asyncio.to_thread(done.wait, 60)
    assert order == ["call", "last"]


async def test_the_last_call_is_skipped_on_a_worker_without_calls(worker: WorkerThread) -> None:
    before = set(threading.enumerate())  # one of an earlier test may still end
    worker.close(lambda: pytest.fail("nothing was begun"))
    assert set(threading.enumerate()) <= before


async def test_a_worker_without_calls_keeps_no_thread_and_serves_the_next_call(
    impatient: WorkerThread,
) -> None:
    runner = await impatient.call(LONG, threading.current_thread)
    await until(lambda: not runner.is_alive())
    assert await impatient.call(LONG, lambda: threading.current_thread().name) == "card-discover"


async def test_the_last_call_runs_even_if_the_thread_has_ended(impatient: WorkerThread) -> None:
    runner = await impatient.call(LONG, threading.current_thread)
    await until(lambda: not runner.is_alive())
    done = threading.Event()
    impatient.close(done.set)
    await until(done.is_set)


async def test_a_process_that_cannot_have_another_thread_reports_it_and_calls_again_later(
    no_thread: Callable[..., threading.Thread],
) -> None:
    ways, made = [no_thread, threads.start], list[int]()
    worker = WorkerThread(
        "card-discover",
        "backend card",
        "when looking for devices",
        start=lambda *call: ways.pop(0)(*call),
    )
    with pytest.raises(
        NotCalled, match=r"^backend card cannot be called when looking for devices: the process"
    ):
        await worker.call(LONG, made.append, 1)
    await worker.call(LONG, made.append, 2)
    ended = threading.Event()
    worker.close(ended.set)
    assert ended.wait(60) and made == [2]


async def test_a_file_that_no_thread_can_write_is_reported_in_one_line(
    no_thread: Callable[..., threading.Thread],
) -> None:
    worker = FileWorker("files", "it must be writable", start=no_thread)
    with pytest.raises(
        EnvironmentFailure, match=r"^cannot write /a: the process cannot start another thread \(r"
    ):
        await worker.file("write /a", int)


async def test_a_file_that_no_descriptor_is_left_for_is_reported_with_what_helps() -> None:
    def full() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    worker = FileWorker("files", "it must be writable")
    with pytest.raises(EnvironmentFailure, match=r"^cannot write /a: Too many open files") as caught:
        await worker.file("write /a", full)
    assert caught.value.hint == MORE_OPEN_FILES
    worker.close()
