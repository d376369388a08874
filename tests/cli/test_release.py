"""``devhost release`` and ``devhost resume`` as processes, beside a devhost that runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.kubelet import KubeletSimulator
from kit.command import DEVHOST
from kit.waiting import until

RELEASABLE = '''


class Kept(Toy):
    """Toys whose driver is kept in use: the file "open" exists while it is."""

    name = "kept"
    modules = ("kept",)

    def discover(self):
        opened = self.context.root / "open"
        if not self.context.released:
            opened.touch()
        return [replace(device, claims=frozenset()) for device in super().discover()]

    def release(self):
        if (self.context.root / "stuck").exists():
            from devhost.backend.errors import BackendError
            raise BackendError("kept (pid 7) has not ended")
        (self.context.root / "open").unlink(missing_ok=True)

'''


class Desk:
    """Commands beside a devhost with the toys ``example.com/toy`` (kept) and ``example.com/other``."""

    def __init__(self, toys: Any, kubelet: KubeletSimulator) -> None:
        self.toys = toys
        self.kubelet = kubelet
        self.opened: Path = toys.root / "open"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        try:
            with self.toys.running(self.kubelet.directory):
                yield
        finally:
            gone = {"example.com/toy": 0, "example.com/other": 0}
            await self.kubelet.wait_for(lambda: self.kubelet.allocatable() == gone, 60)

    async def call(self, *arguments: str) -> tuple[int, str]:
        """The exit code and the output of a command, which has at most one line."""
        done = await asyncio.to_thread(self.toys.call, *arguments)
        text = str(done.stdout + done.stderr)
        assert text.count("\n") <= 1, text
        return int(done.returncode), text.strip()

    async def offers(self, count: int) -> None:
        wanted = {"example.com/toy": count, "example.com/other": 2}
        await self.kubelet.wait_for(lambda: self.kubelet.allocatable() == wanted, 60)

    async def backend(self) -> dict[str, Any]:
        document = json.loads((await asyncio.to_thread(self.toys.call, "status", "--output=json")).stdout)
        return {one["name"]: one for one in document["backends"]}["kept"]


@pytest.fixture
async def desk(toys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "run"))
    file = toys.config.parent / "backends" / "toy.py"
    file.write_text(file.read_text() + RELEASABLE)
    toys.write("name: example.com/toy, backend: kept", "name: example.com/other, backend: toy")
    async with KubeletSimulator(tmp_path / "kubelet", pod_resources=tmp_path / "pods") as kubelet:
        yield Desk(toys, kubelet)


async def test_a_driver_is_released_until_it_is_resumed_even_over_a_restart(desk: Desk) -> None:
    async with desk.serving():
        await desk.offers(2)
        code, text = await desk.call("release", "kept", "--for", "90s")
        assert not desk.opened.exists()
        assert (code, text[:35]) == (0, "released the driver of kept until 2")
        end = text.split()[-4]
        assert text.endswith(f"{end} at the latest")
        await desk.offers(0)
        found = await desk.backend()
        assert found["state"] == "released"
        reason = f"its driver is released until {end} (to end that: devhost resume kept)"
        assert found["reason"] == reason
        shown = (await asyncio.to_thread(desk.toys.call, "status")).stdout
        assert reason in shown
    async with desk.serving():
        await desk.offers(0)
        assert not desk.opened.exists()
        assert await desk.call("resume", "kept") == (0, "the driver of kept is used again")
        await desk.offers(2)
        await until(desk.opened.exists)  # the next scan opens it
        assert await desk.call("resume", "kept") == (0, "the driver of kept was not released")
    async with desk.serving():
        await desk.offers(2)


async def test_what_cannot_be_released_is_one_line_with_its_exit_code(desk: Desk) -> None:
    code, text = await desk.call("release", "kept")
    assert (code, text[:45]) == (3, "devhost: no devhost is running on this node (")
    async with desk.serving():
        await desk.offers(2)
        able = "(those that release a driver here: kept)"
        assert await desk.call("release", "toy") == (2, f"devhost: backend toy keeps no driver in use {able}")
        assert await desk.call("resume", "gpu") == (2, f"devhost: backend gpu does not run {able}")
        assert await desk.call("release", "kept", "--for", "25h") == (
            2,
            "devhost: a release lasts from 1 to 86400 seconds, not 90000",
        )
        done = await asyncio.to_thread(desk.toys.call, "release", "kept", "--for", "soon")
        assert done.returncode == 2
        assert "'soon' is not a duration: write 90s, 30m or 2h" in done.stderr
        (desk.toys.root / "stuck").touch()
        assert await desk.call("release", "kept") == (1, "devhost: kept (pid 7) has not ended")
        await desk.offers(0)  # so that it opens nothing else meanwhile
        (desk.toys.root / "stuck").unlink()
        assert (await desk.call("release", "kept"))[0] == 0
        assert not desk.opened.exists()


async def test_a_release_ends_when_a_module_of_the_backend_was_loaded(desk: Desk) -> None:
    async with desk.serving():
        await desk.offers(2)
        assert (await desk.call("release", "kept"))[0] == 0
        await desk.offers(0)
        (desk.toys.root / "sys/module/kept").mkdir(parents=True)
        await desk.offers(2)


async def test_when_stopped_resumes_first_and_releases_at_the_end(desk: Desk) -> None:
    command = [*DEVHOST, "release", "kept", "--when-stopped"]
    async with desk.serving():
        await desk.offers(2)
        assert (await desk.call("release", "kept"))[0] == 0
        await desk.offers(0)
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
        )
        await desk.offers(2)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line == b"releases the driver of kept when this command is stopped\n"
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, err) == (0, b"")
        assert out.startswith(b"released the driver of kept until ")
        assert not desk.opened.exists()
        await desk.offers(0)


async def test_when_stopped_needs_no_devhost(desk: Desk) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*DEVHOST, "release", "kept", "--when-stopped"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), 60)
    process.send_signal(signal.SIGTERM)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    assert err.count(b"devhost: no devhost is running on this node") == 2
