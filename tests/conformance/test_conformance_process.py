"""devhost as a process: it is terminated, killed, stalled, or stopped for a while."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance_node import TOY, WAIT
from devhost_testing.kubelet import events as ev
from kit.drop_in import drop_in
from kit.files import replace

from devhost.planning.timing import NODE
from devhost.runtime import watchdog

DROP_IN = drop_in('''
class Toy(Backend):
    """As many devices as the file "count" says; a file "stall" makes it block the event loop."""

    name = "toy"

    def discover(self):
        return [Device(id=f"d{n}") for n in range(int((self.context.root / "count").read_text()))]

    def allocate(self, request):
        return Edits(nodes=(DeviceNode("/null"),), env={"DEVICES": ",".join(d.id for d in request.devices)})

    async def watch(self):
        while True:
            await asyncio.sleep(0.05)
            if (self.context.root / "stall").exists():
                time.sleep(600)
            yield Event()
''')

PROGRAM = """
import asyncio, functools, pathlib, sys
from devhost.runtime import log
log.configure("json")
from devhost.host import daemon
from devhost.runtime import watchdog
daemon.Watchdog = functools.partial(watchdog.Watchdog, stall=5.0, tick=0.25)
config, kubelet, root, status = map(pathlib.Path, sys.argv[1:])
asyncio.run(daemon.serve(daemon.Options(config, kubelet, root, status_socket=status)))
"""
"""``devhost run`` with a watchdog that loses its patience after five seconds."""


class Node:
    """A configuration with its backend, and ``devhost`` processes on it."""

    def __init__(self, directory: Path, kubelet_dir: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        (directory / "backends").mkdir()
        (self.root / "null").touch()
        (directory / "backends" / "toy.py").write_text(DROP_IN)
        self._config = directory / "process.yaml"
        self._config.write_text(
            f"version: 1\nbackendPaths: [backends]\nresources:\n  - {{name: {TOY}, backend: toy}}\n"
        )
        self._arguments = [self._config, kubelet_dir, self.root, directory / "status"]
        self.plug(2)

    def plug(self, count: int) -> None:
        """Creates so many devices; the file is replaced at once."""
        replace(self.root / "count", str(count))

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-c", PROGRAM, *map(str, self._arguments)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=WAIT)


@pytest.fixture
def node(tmp_path: Path, rig) -> Node:
    return Node(tmp_path, rig.kubelet_dir)


async def served(kubelet, count: int) -> None:
    await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == count, 2 * WAIT)


async def ended(process: subprocess.Popen[str]) -> int:
    return await asyncio.to_thread(process.wait, WAIT)


@pytest.mark.conformance(40)
async def test_sigterm_ends_the_streams_unlinks_the_sockets_and_keeps_the_count(kubelet, node):
    assert NODE.leave < 5
    reasons: list[str] = []
    while "EOF" not in reasons:
        with node.running() as process:
            await served(kubelet, 2)
            before = kubelet.socket.stat().st_ino
            process.terminate()
            assert await ended(process) == 0
            await served(kubelet, 0)
            assert kubelet.capacity() == {TOY: 2}
            assert list(kubelet.directory.glob("dh-*")) == []
            assert kubelet.socket.stat().st_ino == before
            (over,) = kubelet.events.of(ev.StreamEnded)[len(reasons) :]
        reasons.append(over.reason)
        # on a busy machine, the simulator may write to the closed connection before it reads the stream's end
        assert all("Broken pipe" in one for one in reasons[:-1]), reasons
        assert len(reasons) <= 3, reasons


@pytest.mark.conformance(41)
@pytest.mark.field_failure("F9", "F16")
async def test_after_sigkill_the_next_start_cleans_up_and_pods_keep_their_devices(kubelet, node):
    with node.running() as process:
        await served(kubelet, 2)
        held = await kubelet.admit("pod", "main", TOY, 1)
        process.kill()
        await ended(process)
        await served(kubelet, 0)
    (stale,) = kubelet.directory.glob("dh-*")
    await kubelet.restart()
    with node.running():
        await served(kubelet, 2)
        assert not stale.exists()
        assert kubelet.allocations() == (held,)
        assert await kubelet.start_container("pod", "main") == held.response
        other = await kubelet.admit("next", "main", TOY, 1)
        assert set(other.device_ids).isdisjoint(held.device_ids)


@pytest.mark.conformance(43)
@pytest.mark.field_failure("F25", "F26")
async def test_a_stalled_loop_ends_the_process_with_its_stacks_so_that_the_kubelet_notices(kubelet, node):
    with node.running() as process:
        await served(kubelet, 2)
        (node.root / "stall").touch()
        output = (await asyncio.to_thread(process.communicate, timeout=2 * WAIT))[1]
        assert process.returncode == watchdog.EXIT_STALLED
        await served(kubelet, 0)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    messages = [line["message"] for line in lines]
    assert "event loop stalled, exiting" in messages
    (main,) = [line for line in lines if line.get("thread") == "MainThread"]
    assert main["stack"][0].endswith("Toy.watch")
    (node.root / "stall").unlink()
    with node.running():
        await served(kubelet, 2)


@pytest.mark.conformance(43, 59)
@pytest.mark.field_failure("F26")
async def test_a_process_continues_after_it_was_stopped(kubelet, node):
    with node.running() as process:
        await served(kubelet, 2)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(6)  # longer than the watchdog's patience
        process.send_signal(signal.SIGCONT)
        node.plug(3)
        await served(kubelet, 3)
        assert process.poll() is None
    assert len(kubelet.events.of(ev.Registered)) == 1
