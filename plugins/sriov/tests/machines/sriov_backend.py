"""The backend on modelled machines, without waiting, and with answers of the kernel from tests."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from devhost_sriov import Sriov
from devhost_sriov.bursts import BurstWait
from devhost_sriov.netlink import Devlink, Kernel, VfMacs
from devhost_sriov.network import Namespace, Network
from devhost_sriov.options import SriovOptions
from kit.machine import Recording

from devhost.backend import Context
from devhost.backend.sysfs import Sysfs
from devhost.backend.traffic import DefaultRoute, Traffic


class Modelled(Sriov):
    """The backend on a tree, which changes at once."""

    def __init__(self, options: SriovOptions, context: Context) -> None:
        super().__init__(options, context, bursts=without_waiting(options, context))


def without_waiting(options: SriovOptions, context: Context) -> BurstWait:
    """Waits for the end of bursts, but not for long."""
    return BurstWait(Sysfs(context.root), ignore_ports=options.ignore_port_state, quiet=0.0)


class Reader(Recording):
    """Records also which functions are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._functions: list[str] = []

    @property
    def files(self) -> set[str]:
        """The names of the text files that were read."""
        return {path.rpartition("/")[2] for path in self.paths}

    def functions(self) -> list[str]:
        """The ids of the functions that were read since the last call."""
        found, self._functions = sorted(self._functions), []
        return found

    def target(self, path: str) -> str:
        if path.endswith("/physfn"):  # of each PCI function
            self._functions.append(path.split("/")[-2])
        return super().target(path)

    def text(self, path: str) -> str:
        if path.endswith("/sfnum"):  # of each scalable function
            self._functions.append(path.split("/")[-2])
        return super().text(path)


def reading(sysfs: Sysfs) -> type[Sriov]:
    """A backend class that reads its machine through ``sysfs``."""

    class Modelled(Sriov):
        def __init__(self, options: SriovOptions, context: Context) -> None:
            super().__init__(options, context, sysfs=sysfs, bursts=without_waiting(options, context))

    return Modelled


class FakeKernel(Kernel):
    """What the kernel answers, and how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.routes: Traffic | Exception = Traffic(frozenset({DefaultRoute(4, "enp2s0")}))
        self.macs: VfMacs = {}
        self.switches = Devlink()
        self.hears = True
        """Whether netlink describes the interfaces that sysfs shows."""
        self.is_initial = True
        """Whether it answers for the first network namespace."""

    def taken(self) -> list[str]:
        """What was asked since the last call."""
        asked, self.asked = self.asked, []
        return asked

    def traffic(self, names: object) -> Traffic:
        self.asked.append("traffic")
        if isinstance(self.routes, Exception):
            raise self.routes
        return self.routes

    def vf_macs(self) -> VfMacs:
        self.asked.append("macs")
        return self.macs

    def devlink(self, *, profiles: bool) -> Devlink:
        self.asked.append("devlink with profiles" if profiles else "devlink")
        return self.switches

    def close(self) -> None:
        self.asked.append("the end")


class FakeNamespace(Namespace):
    """The network namespace of a modelled machine, as if this process ran there."""

    def __init__(self, root: Path, kernel: FakeKernel) -> None:
        super().__init__(Sysfs(root), root)
        self.is_live = True
        self._kernel = kernel

    def hears_links(self) -> bool:
        return self._kernel.hears

    def is_initial(self) -> bool:
        return self._kernel.is_initial


def network_of(kernel: FakeKernel, context: Context, node_addresses: Collection[str] = ()) -> Network:
    """The facts of this kernel about the machine of a context."""
    namespace = FakeNamespace(context.root, kernel)
    return Network(Sysfs(context.root), context, node_addresses, kernel=kernel, namespace=namespace)


def answered_by(kernel: FakeKernel) -> type[Sriov]:
    """The backend on a machine with this kernel."""

    class Answered(Sriov):
        def __init__(self, options: SriovOptions, context: Context) -> None:
            network = network_of(kernel, context, options.node_addresses)
            super().__init__(options, context, network=network, bursts=without_waiting(options, context))

    return Answered
