"""The backend on a modelled machine, and what to ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devhost_rdma import Rdma
from devhost_rdma.options import RdmaOptions
from rdma_tree import RdmaTree

from devhost.backend import Device
from devhost.source import ServiceContext

Looking = Callable[..., Rdma]
"""Makes a backend: ``looking(machine, options, kind)``; the last two may be left out."""


class Exclusive(Rdma):
    """The backend on a node with ``rdma system set netns exclusive``, which no tree can show."""

    def _ask_netns_mode(self) -> str | None:
        return "exclusive"


@contextmanager
def lookers() -> Iterator[Looking]:
    """Makes backends as if each had just started, and ends what they began."""
    contexts: list[ServiceContext] = []

    def make(machine: RdmaTree | Path, options: RdmaOptions | None = None, kind: type[Rdma] = Rdma) -> Rdma:
        root = machine if isinstance(machine, Path) else machine.root
        contexts.append(ServiceContext("rdma", root, ("*",)))
        return kind(options or RdmaOptions(), contexts[-1])

    yield make
    for context in contexts:
        context.close()


def by_id(backend: Rdma) -> dict[str, Device]:
    """Every device there is now."""
    return {device.id: device for device in backend.discover()}


def nodes(backend: Rdma, *devices: Device) -> str:
    """What a container gets, by name, in the order of the alphabet."""
    edits = backend.allocate(devices)
    assert {node.permissions for node in edits.nodes} == {"rw"}
    assert all(node.path.startswith("/dev/infiniband/") and not node.container_path for node in edits.nodes)
    return " ".join(sorted(node.path.rpartition("/")[2] for node in edits.nodes))
