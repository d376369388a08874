"""More nodes beside that of the control plane, each with a runtime, kubelet, directories and cgroup."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from . import cgroups
from .cluster import Cluster
from .node import Node
from .settings import Place
from .waiting import until


class Worker(Node):
    """One more node of a cluster while entered, with another address in the network of the first one.

    Args:
        number: from 1.
    """

    def __init__(self, cluster: Cluster, number: int) -> None:
        place = Place(f"worker-{number}", number + 1)
        super().__init__(cluster.settings(place), cluster.namespaces)
        self._cgroup = place.cgroup
        self._stack = ExitStack()

    def __enter__(self) -> Worker:
        """Starts the runtime, without waiting until it answers."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.callback(self.api.delete, f"/api/v1/nodes/{self.name}")
            stack.enter_context(cgroups.made(self._cgroup))
            stack.enter_context(self.namespaces)
            self._settings.write()
            self.start("containerd")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class Workers:
    """Several nodes, ready while entered.

    Args:
        archives: images that their runtimes have.
    """

    def __init__(self, cluster: Cluster, count: int, archives: Sequence[Path]) -> None:
        self._nodes = [Worker(cluster, number) for number in range(1, count + 1)]
        self._archives = archives
        self._stack = ExitStack()

    def __enter__(self) -> Sequence[Worker]:
        with ExitStack() as stack:
            for node in self._nodes:
                stack.enter_context(node)
            for node in self._nodes:
                node.import_(*self._archives)
                node.start("kubelet")
            for node in self._nodes:
                until(f"{node.name} is ready", node.schedulable, limit=300, seen=node.said("kubelet"))
            self._stack = stack.pop_all()
        return self._nodes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
