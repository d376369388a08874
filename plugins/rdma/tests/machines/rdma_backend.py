"""What to ask of the backend on a modelled machine."""

from __future__ import annotations

from devhost_rdma import Rdma
from devhost_rdma.backend import RdmaOptions
from devhost_rdma.netlink import NetnsMode, RdmaCore
from devhost_testing.fixtures import request

from devhost.backend import Context, Device


class Core(RdmaCore):
    """An RDMA core whose namespace mode a test sets: no tree can show it."""

    def __init__(self, mode: NetnsMode = "exclusive") -> None:
        super().__init__()
        self.mode = mode
        self.asked = 0

    def netns_mode(self) -> NetnsMode:
        self.asked += 1
        return self.mode


class Exclusive(Rdma):
    """The backend on a node with ``rdma system set netns exclusive``."""

    def __init__(self, options: RdmaOptions, context: Context) -> None:
        self.core = Core()
        super().__init__(options, context, core=self.core)


def nodes(backend: Rdma, *devices: Device) -> str:
    """What a container gets, by name, in the order of the alphabet."""
    edits = backend.allocate(request(backend, devices))
    assert {node.permissions for node in edits.nodes} == {"rw"}
    assert all(node.path.startswith("/dev/infiniband/") and not node.container_path for node in edits.nodes)
    return " ".join(sorted(node.path.rpartition("/")[2] for node in edits.nodes))
