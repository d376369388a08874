"""The backend on a machine with NVIDIA's GPUs, its events, and waiting for what it does by itself."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from devhost_gpu import Gpu
from devhost_gpu.nvidia.gpus import Nvidia
from devhost_gpu.options import GpuOptions
from gpu_nvidia import NvidiaMachine

from devhost.backend import Device
from devhost.testing.fixtures import BackendFixture

PATIENCE = 60.0
"""Seconds to wait for what must happen."""


class NvidiaDesk:
    """A backend that has just started."""

    def __init__(self, machine: NvidiaMachine, options: GpuOptions | None = None) -> None:
        self.machine = machine
        self._looking = BackendFixture(Gpu)
        self.backend = self._looking(machine.root, options)

    def look(self) -> dict[str, Device]:
        """Every device there is now, by id."""
        return {device.id: device for device in self.backend.discover()}

    def reasons(self) -> dict[str, str]:
        """Why devices cannot be used; the others are left out."""
        told = ((name, device.withheld or device.health.reason) for name, device in self.look().items())
        return {name: reason for name, reason in told if reason}

    def probe(self) -> dict[str, str]:
        """What a probe finds wrong, by id."""
        verdicts = self.backend.probe(list(self.look().values()))
        return {name: health.reason for name, health in verdicts.items()}

    @property
    def nvidia(self) -> Nvidia:
        """The code for NVIDIA's cards; there from the first look on."""
        family = self.backend._families["nvidia"]
        assert isinstance(family, Nvidia)
        return family

    @property
    def pid(self) -> int:
        """The process that uses NVML; 0 if there is none."""
        session = self.nvidia._keeper._session
        return session.process.pid if session else 0

    def is_open(self) -> bool:
        """Whether any process of this backend's has the driver open."""
        marker = os.fspath(self.machine.nvml.open_marker)
        keeper = self.nvidia._keeper
        sessions = (keeper._session, *keeper._left, *keeper._alone.values())
        for pid in [one.process.pid for one in sessions if one and not one.is_gone]:
            with suppress(OSError):
                if any(os.path.realpath(entry) == marker for entry in Path(f"/proc/{pid}/fd").iterdir()):
                    return True
        return False

    def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it never came to be"
            time.sleep(0.02)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[asyncio.Event]:
        """Listens to the backend; the event is set whenever it asks for a look."""
        rung = asyncio.Event()

        async def listen() -> None:
            async for _ in self.backend.watch():
                rung.set()

        task = asyncio.create_task(listen())
        try:
            yield rung
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def close(self) -> None:
        """Ends what it began."""
        for family in self.backend._families.values():
            family.close()
        for keeper in [one._keeper for one in self.backend._families.values() if isinstance(one, Nvidia)]:
            for session in (*keeper._left, *keeper._alone.values()):
                session.kill()
                session.wait_gone(PATIENCE)
        self._looking.close()
