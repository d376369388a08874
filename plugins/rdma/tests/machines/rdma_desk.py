"""What to ask of the backend on a modelled machine."""

from __future__ import annotations

from devhost_rdma import Rdma

from devhost.backend import Device
from devhost.testing.fixtures import request


class Exclusive(Rdma):
    """The backend on a node with ``rdma system set netns exclusive``, which no tree can show."""

    def _ask_netns_mode(self) -> str | None:
        return "exclusive"


def nodes(backend: Rdma, *devices: Device) -> str:
    """What a container gets, by name, in the order of the alphabet."""
    edits = backend.allocate(request(backend, devices))
    assert {node.permissions for node in edits.nodes} == {"rw"}
    assert all(node.path.startswith("/dev/infiniband/") and not node.container_path for node in edits.nodes)
    return " ".join(sorted(node.path.rpartition("/")[2] for node in edits.nodes))
