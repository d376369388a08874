"""The backend on a machine with NVIDIA GPUs, its events, and waiting for its asynchronous work."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path

from devhost_gpu import Gpu
from devhost_gpu.environment import STANDARD, Environment, Timings
from devhost_gpu.nvidia.gpus import Nvidia
from devhost_gpu.options import GpuOptions
from devhost_testing.fixtures import BackendFixture
from gpu_nvidia import NvidiaMachine
from gpu_setup import gpu_with
from kit.clock import AheadClock
from kit.waiting import listening, wait_until

from devhost.backend import Device

PATIENCE = 60.0
"""Seconds to wait for what must happen."""


class NvidiaDesk:
    """A backend that has just started, with these durations and a clock that a test can put forward."""

    def __init__(
        self,
        machine: NvidiaMachine,
        options: GpuOptions | None = None,
        environment: Environment = STANDARD,
        held: Callable[[], frozenset[str] | None] = frozenset,
        **seconds: float,
    ) -> None:
        self.machine = machine
        self.clock = AheadClock()
        patient = {"first_answer": PATIENCE, "answer": PATIENCE, "instances": PATIENCE}
        timings = Timings(**(patient | seconds))
        kind = gpu_with(replace(environment, timings=timings, clock=self.clock))
        self._looking = BackendFixture[Gpu](kind)
        self.backend = self._looking(machine.root, options, held=held)

    def look(self) -> dict[str, Device]:
        """Every device there is now, by id."""
        return {device.id: device for device in self.backend.discover()}

    def reasons(self) -> dict[str, str]:
        """Why devices cannot be used; usable ones are missing."""
        all_reasons = (
            (name, device.withheld or device.health.reason or "") for name, device in self.look().items()
        )
        return {name: reason for name, reason in all_reasons if reason}

    def settle(self) -> None:
        """Does what :meth:`watched` does at intervals: destroys partitions that no claim holds."""
        self.nvidia.settle()

    def probe(self) -> dict[str, str]:
        """The faults that a probe finds, by id."""
        verdicts = self.backend.probe(list(self.look().values()))
        return {name: health.reason for name, health in verdicts.items()}

    @property
    def nvidia(self) -> Nvidia:
        """The code for NVIDIA's cards; exists from the first scan on."""
        vendor = self.backend.vendors["nvidia"]
        assert isinstance(vendor, Nvidia)
        return vendor

    @property
    def pid(self) -> int:
        """The process that uses NVML; 0 if there is none."""
        process = self.nvidia.client.process
        return process.pid if process else 0

    def is_open(self) -> bool:
        """Whether any process of this backend's has the driver open."""
        marker = os.fspath(self.machine.nvml.open_marker)
        for pid in [process.pid for process in self.nvidia.client.processes]:
            with suppress(OSError):
                if any(os.path.realpath(entry) == marker for entry in Path(f"/proc/{pid}/fd").iterdir()):
                    return True
        return False

    def outlast_hang(self, *addresses: str) -> None:
        """Waits until NVML hangs at one of these GPUs, and lets that take longer than a call may."""

        def hangs() -> bool:
            self.look()
            process = self.nvidia.client.process
            return process is not None and process.waiting_for in addresses

        self.until(hangs)
        self.clock.ahead += Timings().hung

    def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition."""
        wait_until(condition)

    async def finds(self, changed: asyncio.Event, condition: Callable[[], object]) -> None:
        """Waits for a condition that holds after one of the scans that the backend asks for."""
        async with asyncio.timeout(PATIENCE):
            while True:
                await changed.wait()
                changed.clear()
                if await asyncio.to_thread(condition):
                    return

    def watched(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """Listens to the backend; the event is set whenever it asks for a scan, see :meth:`finds`."""
        return listening(self.backend.watch())

    def close(self) -> None:
        """Ends the backend and its processes."""
        self.backend.close()
        for vendor in self.backend.vendors.values():
            for process in vendor.client.processes if isinstance(vendor, Nvidia) else ():
                process.kill()
                process.wait(PATIENCE)
        self._looking.close()
