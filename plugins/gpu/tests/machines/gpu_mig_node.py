"""A machine whose GPUs are divided on demand, and what claims hold on it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from devhost_gpu.nvidia.partitions import FILE
from devhost_gpu.options import NO_OPTIONS, GpuOptions
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk

from devhost.backend import AllocateRequest, AllocationError, Device, Edits

A = DGX[0]
DYNAMIC = GpuOptions(mig="dynamic")


class Node:
    """A machine whose GPUs are divided on demand, and what claims hold on it."""

    def __init__(self, machine: NvidiaMachine, at: Callable[..., NvidiaDesk]) -> None:
        self.machine = machine
        self.held: set[str] | None = set()
        self._at = at
        self.start()

    def start(self) -> None:
        """Starts devhost, or starts it again."""
        self.desk = self._at(self.machine, DYNAMIC, held=self._held, check=0.05, first_delay=0.05, kept=0.0)
        self.desk.look()

    def crash(self) -> None:
        """Ends devhost without any cleaning up."""
        self.desk.close()

    def _held(self) -> frozenset[str] | None:
        return None if self.held is None else frozenset(self.held)

    def device(self, name: str, start: int, address: str = A) -> Device:
        """The device of a profile at a place."""
        return self.desk.look()[self.id(name, start, address)]

    def id(self, name: str, start: int, address: str = A) -> str:
        label = name.replace("+", "-").replace(".", "")
        return f"{self.machine.uuids[address].lower()}-{label}-{start}"

    def prepare(self, name: str, start: int, address: str = A) -> Edits:
        """Prepares a claim that got the device."""
        device = self.device(name, start, address)
        assert self.held is not None
        self.held.add(f"device:gpu/{device.id}")
        try:
            return self.desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS))
        except AllocationError:
            self.held.remove(f"device:gpu/{device.id}")
            raise

    def unprepare(self, name: str, start: int, address: str = A) -> None:
        assert self.held is not None
        self.held.remove(f"device:gpu/{self.id(name, start, address)}")

    def settle(self) -> None:
        """Waits until everything is destroyed that no claim holds."""
        self.desk.look()
        self.desk.until(lambda: self._settled())

    def try_to_settle(self) -> None:
        """Waits until what devhost destroys is destroyed, whatever remains."""
        self.desk.settle()
        self.desk.until(lambda: all(one.name != "mig-instances" for one in threading.enumerate()))

    def _settled(self) -> bool:
        self.desk.settle()
        self.desk.look()
        places = {one["device"] for one in self.recorded()}
        return all(f"device:gpu/{place}" in (self.held or ()) for place in places)

    def recorded(self) -> list[dict[str, str]]:
        """What the record has."""
        file = self.machine.root / FILE.lstrip("/")
        try:
            rows = json.loads(file.read_bytes())["made"]
        except FileNotFoundError:  # it has no empty record
            rows = []
        names = {gpu: address for address, gpu in self.machine.uuids.items()}
        return [{"device": self.id(name, start, names[gpu])} for gpu, _, start, _, name in rows]

    def instances(self) -> list[tuple[int, int]]:
        """The places of the instances that the driver has: first memory slice, and how many."""
        found = [one for one in self.machine.nvml.instances() if one["word"] == "gi"]
        return sorted((int(one["start"]), int(one["size"])) for one in found)
