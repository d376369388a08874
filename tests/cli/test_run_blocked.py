"""``devhost run`` whose log has no reader, or that gets stray signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from devhost_testing.kubelet import KubeletSimulator

from devhost.host.startup_signals import HARMLESS

TOY = "example.com/toy"


@contextmanager
def running(toys: Any, kubelet: KubeletSimulator, log: int) -> Iterator[subprocess.Popen[str]]:
    (toys.root / "dev").mkdir(exist_ok=True)
    (toys.root / "dev/null").touch()
    options = ("--log-level", "debug")
    with toys.running(kubelet.directory, *options, log=log, runtime=toys.root / "run") as process:
        yield process


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes nothing more: its reader, and its writer."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (4096, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(writer, b"#" * size)
    os.set_blocking(writer, True)
    yield reader, writer
    os.close(reader)
    os.close(writer)


async def test_a_log_without_a_reader_delays_neither_a_start_nor_a_pod_nor_the_end(
    toys: Any, tmp_path: Any, full_pipe: tuple[int, int]
) -> None:
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        with running(toys, kubelet, full_pipe[1]) as process:
            await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 2)
            await kubelet.admit("train", "main", TOY, 1)
            process.terminate()
            assert await asyncio.to_thread(process.wait, 60) == 0


async def test_stray_signals_do_not_end_devhost(toys: Any, tmp_path: Any) -> None:
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        with running(toys, kubelet, subprocess.DEVNULL) as process:
            await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 2)
            for number in (*HARMLESS, signal.SIGALRM):
                process.send_signal(number)
            await kubelet.admit("train", "main", TOY, 1)
            process.terminate()
            assert await asyncio.to_thread(process.wait, 60) == 0


def test_a_bug_at_the_start_keeps_its_traceback_and_ends_without_a_reader(
    toys: Any, full_pipe: tuple[int, int]
) -> None:
    fault = "import devhost.telemetry.ending as ending\nending.ended = lambda _: 1 / 0\n"
    code = f"{fault}from devhost.cli import main\nmain()"
    command = [sys.executable, "-c", code, "run"]
    assert subprocess.run(command, stderr=full_pipe[1], timeout=120, check=False).returncode == 1
    shown = subprocess.run(command, stderr=subprocess.PIPE, timeout=120, check=False)
    assert b"ZeroDivisionError" in shown.stderr
