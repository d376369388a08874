"""The backend on a modelled machine, and what to ask of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from devhost_gpu import Gpu
from devhost_gpu.options import GpuOptions
from gpu_tree import GpuTree

from devhost.backend import Device, Event
from devhost.source import ServiceContext

Looking = Callable[..., Gpu]
"""Makes a backend: ``looking(machine, options, wanted)``; the last two may be left out."""


@contextmanager
def lookers() -> Iterator[Looking]:
    """Makes backends as if each had just started, and ends what they began."""
    contexts: list[ServiceContext] = []

    def make(
        machine: GpuTree | Path, options: GpuOptions | None = None, wanted: Collection[str] = ("*",)
    ) -> Gpu:
        root = machine if isinstance(machine, Path) else machine.root
        contexts.append(ServiceContext("gpu", root, wanted))
        return Gpu(options or GpuOptions(), contexts[-1])

    yield make
    for context in contexts:
        context.close()


def by_id(backend: Gpu, *events: Event) -> dict[str, Device]:
    """Every device there is now, after the backend has heard the events."""
    for event in events:
        backend.notice(event)
    return {device.id: device for device in backend.discover()}
