"""The messages to systemd, through a real datagram socket."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kit.waiting import background, until
from servicemanager import Listener

from devhost.runtime.systemd import SystemdNotifier, line


@pytest.fixture(params=["path", "abstract"])
def listener(request, tmp_path: Path) -> Iterator[Listener]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@devhost-test-{os.getpid()}"
    listener = Listener(address)
    yield listener
    listener.close()


class Service:
    """The part of a host that :class:`SystemdNotifier` uses."""

    def __init__(self) -> None:
        self.planned = False
        self.line = "1 resource, no problems"
        self.leaving = asyncio.Event()

    async def stopped(self) -> None:
        await self.leaving.wait()


@pytest.fixture
def logged(caplog) -> Callable[[str], list[str]]:
    """The lines of the log with this message."""
    caplog.set_level(logging.INFO, "devhost")
    return lambda message: [text for text in caplog.messages if message in text]


@asynccontextmanager
async def notifying(notify: SystemdNotifier, service: Service) -> AsyncIterator[Service]:
    async with background(notify.run(lambda: service.planned, lambda: service.line, service.stopped)):
        yield service


def notify(listener: Listener, **environment: str) -> SystemdNotifier:
    return SystemdNotifier({"NOTIFY_SOCKET": listener.address, **environment}, pace=0.02)


async def test_ready_is_sent_after_the_first_plan(listener):
    async with notifying(notifier := notify(listener), Service()) as service:
        first = await listener.next()
        assert "READY" not in first
        assert first["STATUS"] == "looking for devices"
        service.planned = True
        notifier.changed()
        assert (await listener.next())["READY"] == "1"


async def test_the_status_line_follows_the_problems(listener):
    async with notifying(notifier := notify(listener), Service()) as service:
        service.planned = True
        notifier.changed()
        await listener.until(STATUS="1 resource, no problems")
        service.line = "1 resource, 1 problem; first: toy:\nREADY=0"
        notifier.changed()
        message = await listener.until(STATUS="1 resource, 1 problem; first: toy: READY=0")
        assert message["READY"] == "1"


async def test_a_reload_sends_reloading_and_then_ready(listener):
    async with notifying(notifier := notify(listener), Service()) as service:
        assert (await listener.next())["STATUS"] == "looking for devices"
        with notifier.reloading():
            pass  # before it is ready nothing may sound like ready
        service.planned = True
        notifier.changed()
        await listener.until(READY="1")
        assert not any("RELOADING" in message for message in listener.received)
        with notifier.reloading():
            message = await listener.next()
            assert message["RELOADING"] == "1"
            assert int(message["MONOTONIC_USEC"]) > 0
            notifier.changed()
            assert "READY" not in await listener.until(WATCHDOG="1")
        assert (await listener.until(READY="1")).keys() <= {"READY", "STATUS", "WATCHDOG"}


async def test_stopping_is_sent_at_once_and_is_final(listener):
    async with notifying(notifier := notify(listener, WATCHDOG_USEC="100000"), Service()) as service:
        service.planned = True
        notifier.changed()
        await listener.until(READY="1")
        service.leaving.set()
        await listener.until(STOPPING="1")
        with notifier.reloading():
            pass
        for _ in range(3):
            message = await listener.next()
            assert message["STOPPING"] == "1"
            assert "READY" not in message


async def test_the_watchdog_is_notified_while_the_event_loop_runs(listener):
    async with notifying(notify(listener, WATCHDOG_USEC="200000", WATCHDOG_PID=str(os.getpid())), Service()):
        for _ in range(3):
            await listener.until(WATCHDOG="1")


@pytest.mark.parametrize(
    ("environment", "beat"),
    [
        ({"WATCHDOG_USEC": "20000000"}, 10.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(os.getpid())}, 10.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"}, 30.0),
        ({"WATCHDOG_USEC": "600000000"}, 30.0),
        ({"WATCHDOG_USEC": "0"}, 30.0),
        ({"WATCHDOG_USEC": "soon"}, 30.0),
        ({"WATCHDOG_USEC": "1"}, 0.05),
        ({"WATCHDOG_USEC": str(2**64 - 1)}, 30.0),
        ({"WATCHDOG_USEC": "9" * 400}, 30.0),
        ({"WATCHDOG_USEC": "9" * 5000}, 30.0),
        ({}, 30.0),
    ],
)
def test_the_heartbeat_is_half_of_the_watchdog_timeout_of_this_process(environment, beat):
    assert SystemdNotifier({"NOTIFY_SOCKET": "/nowhere", **environment}).beat == beat


async def test_child_processes_do_not_inherit_the_socket():
    environment = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "PATH": "/bin"}
    SystemdNotifier(environment)
    assert environment == {"PATH": "/bin"}


async def test_without_systemd_nothing_is_sent():
    async with asyncio.timeout(60):
        await SystemdNotifier({}).run(lambda: True, lambda: "never asked", Service().stopped)


@pytest.mark.parametrize("address", ["vsock:2:9999", "relative"])
async def test_an_unsupported_address_is_logged_and_not_used(address, logged):
    async with asyncio.timeout(60):
        await SystemdNotifier({"NOTIFY_SOCKET": address}).run(lambda: True, lambda: "", Service().stopped)
    assert logged("unsupported address in NOTIFY_SOCKET")


async def test_a_dead_socket_is_logged_once(tmp_path, logged):
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "20000"})
    async with notifying(notifier, Service()) as service:
        service.planned = True
        await until(lambda: logged("cannot notify systemd"))
        back = Listener(str(tmp_path / "gone"))
        try:
            await back.until(READY="1")  # and it goes on trying
        finally:
            back.close()
    assert len(logged("cannot notify systemd")) == 1


async def test_a_socket_that_dies_again_is_logged_again(tmp_path, logged):
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "20000"})
    async with notifying(notifier, Service()) as service, asyncio.timeout(60):
        service.planned = True
        for times in (1, 2):
            await until(lambda times=times: len(logged("cannot notify systemd")) >= times)
            back = Listener(str(tmp_path / "gone"))
            try:
                await back.until(READY="1")
            finally:
                back.close()
                (tmp_path / "gone").unlink(missing_ok=True)


async def test_a_full_socket_blocks_nothing_and_loses_nothing(tmp_path):
    listener = Listener(str(tmp_path / "notify"))
    filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        with pytest.raises(BlockingIOError):
            for _ in range(100_000):
                filler.sendto(b"FULL=1", listener.address)
        async with notifying(
            SystemdNotifier({"NOTIFY_SOCKET": listener.address}, pace=0.02), Service()
        ) as service:
            service.planned = True
            await asyncio.sleep(0)  # the first message finds no room
            await listener.until(READY="1")
    finally:
        filler.close()
        listener.close()


async def test_a_failing_status_line_does_not_stop_the_heartbeat(listener, logged):
    def broken() -> str:
        raise RuntimeError("a bug")

    async with background(notify(listener).run(lambda: True, broken, Service().stopped)):
        assert (await listener.next())["WATCHDOG"] == "1"
        assert logged("cannot build the status line for systemd")


def test_the_line_reports_no_problem_only_after_every_backend_has_scanned():
    assert line(1, 0, "", ["gpu", "udev"]) == "1 resource, waiting for gpu, udev"
    assert line(1, 1, "x: y", ["gpu"]) == "1 resource, 1 problem; first: x: y"


@pytest.mark.parametrize(
    ("resources", "problems", "first", "text"),
    [
        (0, 0, "", "no resources, no problems"),
        (1, 1, "gpu: no driver", "1 resource, 1 problem; first: gpu: no driver"),
        (14, 2, "gpu: no driver", "14 resources, 2 problems; first: gpu: no driver"),
    ],
)
def test_the_line_counts_resources_and_problems_and_names_the_first(resources, problems, first, text):
    assert line(resources, problems, first) == text
