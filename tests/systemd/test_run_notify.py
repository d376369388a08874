"""``devhost run`` as started by systemd: a process, and the socket of a service manager."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kit.command import DEVHOST
from kit.drop_in import drop_in
from kit.files import replace
from servicemanager import Listener

# A backend that writes down whether a program it starts could speak to the service manager.
TOY = drop_in("""
ASK = "import os; print('NOTIFY_SOCKET' in os.environ or 'WATCHDOG_USEC' in os.environ)"


class Toy(Plain):
    name = "toy"
    attributes = {"model": Attribute(str, "model", "x100")}

    def discover(self):
        told = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=240)
        (self.context.root / "inherited").write_text(told.stdout)
        yield Device(id="one", attributes={"model": "x"}, claims=frozenset({"node:/dev/toys/one"}))
""")

RESOURCE = "  - {name: example.com/toy, backend: toy}\n"


class Running:
    """The process, its configuration, and its messages."""

    def __init__(self, directory: Path, listener: Listener) -> None:
        self.listener = listener
        self.directory = directory
        self.config = directory / "devhost.yaml"
        self.write(RESOURCE)
        (directory / "backends").mkdir()
        (directory / "backends" / "toy.py").write_text(TOY)
        self.start()

    def start(self) -> None:
        directory, listener = self.directory, self.listener
        command = [*DEVHOST, "run", "--config", str(self.config)]
        command += ["--root", str(directory), "--kubelet-dir", str(directory / "no kubelet")]
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": listener.address,
            "WATCHDOG_USEC": "2000000",
            "DEVHOST_RUNTIME_DIR": str(directory / "run"),
            "DEVHOST_STATE_DIR": str(directory / "state"),
        }
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)

    def write(self, resources: str) -> None:
        replace(self.config, f"version: 1\nbackendPaths: [backends]\nresources:\n{resources}")


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    listener = Listener(str(tmp_path / "notify"))
    running = Running(tmp_path, listener)
    try:
        yield running
    finally:
        running.process.kill()
        await asyncio.to_thread(running.process.communicate, timeout=240)
        listener.close()


async def test_it_is_ready_without_a_kubelet_and_reports_the_problem(running):
    await running.listener.until(READY="1")
    assert not (running.directory / "no kubelet").exists()
    await running.listener.until("; first: ")
    assert str(running.directory / "no kubelet") in running.listener.received[-1]["STATUS"]


async def test_the_watchdog_is_notified_only_while_the_event_loop_runs(running):
    await running.listener.until(READY="1")
    await running.listener.until(WATCHDOG="1")
    running.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        while True:  # what was sent before may still lie there
            await asyncio.wait_for(running.listener.next(), 3)
    running.process.send_signal(signal.SIGCONT)
    await running.listener.until(WATCHDOG="1")


async def test_a_reload_is_announced_and_ends_even_if_the_file_is_invalid(running):
    await running.listener.until(READY="1")
    running.process.send_signal(signal.SIGHUP)
    await running.listener.until(RELOADING="1")
    await running.listener.until(READY="1")
    running.write("  - {name: example.com/toy, backend: toyy}\n")
    running.process.send_signal(signal.SIGHUP)
    await running.listener.until(RELOADING="1")
    await running.listener.until(READY="1")
    await running.listener.until("devhost.yaml:4")


async def test_a_start_from_the_last_accepted_configuration_is_ready_and_names_the_refused_file(running):
    """Otherwise systemd would stop the service after ``TimeoutStartSec`` and restart it, for ever."""
    await running.listener.until(READY="1")
    running.process.kill()
    await asyncio.to_thread(running.process.communicate, timeout=240)
    running.write("  - {name: example.com/toy, backend: toyy}\n")
    running.start()
    await running.listener.until(f"first: {running.config}: {running.config}:4:", READY="1")
    assert running.listener.received[-1]["STATUS"].startswith("1 resource, ")


async def test_stopping_is_announced_before_the_process_ends_with_0(running):
    await running.listener.until(READY="1")
    running.process.terminate()
    await running.listener.until(STOPPING="1")
    assert await asyncio.to_thread(running.process.wait, 120) == 0


async def test_child_processes_of_a_backend_cannot_notify_systemd(running):
    await running.listener.until(READY="1")
    assert (running.directory / "inherited").read_text().strip() == "False"
