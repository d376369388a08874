"""The backend on a modelled machine, and what to ask of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from devhost_sriov import Sriov
from devhost_sriov.options import SriovOptions
from sriov_tree import SriovTree

from devhost.backend import Device
from devhost.source import ServiceContext

Looking = Callable[..., Sriov]
"""Makes a backend: ``looking(machine, options, wanted)``; the last two may be left out."""


@contextmanager
def lookers() -> Iterator[Looking]:
    """Makes backends as if each had just started, and ends what they began."""
    contexts: list[ServiceContext] = []

    def make(
        machine: SriovTree | Path, options: SriovOptions | None = None, wanted: Collection[str] = ("*",)
    ) -> Sriov:
        root = machine if isinstance(machine, Path) else machine.root
        contexts.append(ServiceContext("sriov", root, wanted))
        return Sriov(options or SriovOptions(), contexts[-1])

    yield make
    for context in contexts:
        context.close()


def by_id(backend: Sriov) -> dict[str, Device]:
    """Every device there is now."""
    return {device.id: device for device in backend.discover()}
