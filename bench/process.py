"""A real ``devhost run`` as a child process with a configuration, measured by the kernel."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from .recorder import PATIENCE, Recorder, recording

BACKENDS = Path(__file__).parent / "backends"
TICKS = os.sysconf("SC_CLK_TCK")

PROGRAM = "DEVHOST_BENCH_PROGRAM"
"""The environment variable with the command that starts another devhost than the one of this environment."""


@dataclass(frozen=True, slots=True)
class Running:
    """A devhost that serves a recorder; ``began`` is the monotonic time just before its start."""

    pid: int
    began: float
    config: Path
    events: Path
    kubelet: Recorder

    def resident(self) -> float:
        """Resident memory in MB (10⁶ bytes)."""
        return resident(Path(f"/proc/{self.pid}/status").read_text(encoding="ascii"))

    def cpu_seconds(self) -> float:
        """CPU time of all threads so far, in seconds."""
        return cpu_seconds(Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii"), TICKS)

    def threads(self) -> int:
        """The number of its threads."""
        return len(os.listdir(f"/proc/{self.pid}/task"))

    async def scrape(self) -> bytes:
        """The answer of ``/metrics``; the process must be started with ``--listen 127.0.0.1:0``."""
        reader, writer = await asyncio.open_connection("127.0.0.1", await self._port())
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: devhost\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert b"devhost_build_info" in answer, answer[:200]
        return answer

    async def _port(self) -> int:
        async with asyncio.timeout(PATIENCE):
            while True:
                text = (self.config.parent / "log").read_text(encoding="utf-8")
                if listening := re.search(r"listening address=127\.0\.0\.1:(\d+)", text):
                    return int(listening[1])
                await asyncio.sleep(0.1)

    def tell(self, *messages: str) -> None:
        """Sends events to the synthetic backend."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
            mouth.connect(os.fspath(self.events))
            for message in messages:
                mouth.send(message.encode())


def resident(status: str) -> float:
    """MB (10⁶ bytes) of ``VmRSS`` in the text of ``/proc/PID/status``."""
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def cpu_seconds(stat: str, ticks: int) -> float:
    """User and system time in seconds from the text of ``/proc/PID/stat`` (fields 14 and 15).

    The second field is the program's name in parentheses and may contain spaces; counting starts after it.
    """
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / ticks


def synthetic(
    directory: Path, *, resources: int, devices: int, fresh: bool = False, replicas: int = 1
) -> str:
    """A configuration: ``resources`` resources of ``devices`` synthetic devices each."""
    lines = [
        "version: 1",
        f"backendPaths: [{BACKENDS}]",
        "backends:",
        f"  synthetic: {{devices: {resources * devices}, slices: {resources},"
        f" socket: {directory / 'events'}, fresh: {str(fresh).lower()}}}",
        "resources:",
    ]
    for number in range(resources):
        lines += [
            f"  - name: {resource(number)}",
            "    backend: synthetic",
            f"    where: {{slice: {number}, model: x100}}",
        ]
        if replicas > 1:
            lines.append(f"    share: {{replicas: {replicas}}}")
    return "\n".join(lines) + "\n"


def resource(number: int) -> str:
    """The name of a resource of :func:`synthetic`."""
    return f"bench.example.com/slice-{number}"


@asynccontextmanager
async def workplace() -> AsyncIterator[tuple[Path, Recorder]]:
    """A temporary directory and a kubelet in it."""
    with tempfile.TemporaryDirectory(prefix="devhost-bench-") as name:
        directory = Path(name)
        (directory / "kubelet").mkdir()
        async with recording(directory / "kubelet") as kubelet:
            yield directory, kubelet


@asynccontextmanager
async def devhost(directory: Path, kubelet: Recorder, config: str, *options: str) -> AsyncIterator[Running]:
    """Runs devhost with this configuration and further options until the end of the block.

    Raises:
        RuntimeError: it ended early or with an error; the text is the end of its log.
    """
    file, log = directory / "devhost.yaml", directory / "log"
    file.write_text(config, encoding="utf-8")
    command = [
        *shlex.split(os.environ.get(PROGRAM, os.fspath(Path(sys.executable).with_name("devhost")))),
        *("run", "--config", os.fspath(file), "--kubelet-dir", os.fspath(kubelet.directory)),
        *("--status-socket", os.fspath(directory / "status.sock")),
        *("--state-dir", os.fspath(directory / "state"), *options),
    ]
    with log.open("ab") as sink:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(*command, stdin=-3, stdout=sink, stderr=sink)
    try:
        yield Running(process.pid, began, file, directory / "events", kubelet)
    except TimeoutError as error:
        raise RuntimeError(f"{error}\n{_tail(log)}") from error
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 15)
    if code:
        raise RuntimeError(f"devhost ended with {code}\n{_tail(log)}")


@asynccontextmanager
async def serving(
    *options: str, resources: int, devices: int, fresh: bool = False, settle: float = 1.0
) -> AsyncIterator[Running]:
    """A devhost with synthetic devices, ``settle`` seconds after all lists arrived."""
    async with workplace() as (directory, kubelet):
        config = synthetic(directory, resources=resources, devices=devices, fresh=fresh)
        async with devhost(directory, kubelet, config, *options) as running:
            await kubelet.all_listed(resources, devices)
            await asyncio.sleep(settle)
            yield running


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
