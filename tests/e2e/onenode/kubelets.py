"""The real kubelet and the simulated one behind one interface."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from devhost_testing.kubelet import KubeletSimulator, UnexpectedAdmissionError, events

from .cluster import Cluster
from .pods import CONTAINER, Pod, Pods
from .recorder import Recorder
from .settings import PLUGIN_DIRECTORY
from .waiting import LIMIT

Counts = tuple[int, int] | None
"""Capacity and allocatable; ``None`` if the node does not have the resource."""


class Kubelet(ABC):
    """The operations of a scenario on a kubelet, and what it observes."""

    directory: Path
    """The directory of plugins' sockets, for a process outside the node."""

    shown: str
    """The kubelet's path of that directory."""

    @abstractmethod
    async def settle(self, plugins: Sequence[Recorder]) -> None:
        """Waits until the node shows a state from after the call."""

    @abstractmethod
    async def counts(self, resource: str) -> Counts:
        """What the node shows."""

    @abstractmethod
    async def admit(self, pod: str, resource: str, count: int) -> str:
        """Runs a pod; ``running``, or why it was rejected."""

    @abstractmethod
    async def restart_container(self, pod: str) -> None:
        """The pod's container ends and is started again."""

    @abstractmethod
    async def release(self, pod: str) -> None:
        """The pod is deleted."""

    @abstractmethod
    async def restart(self) -> None:
        """The kubelet is killed and another one started."""


class Simulated(Kubelet):
    """devhost's own simulator."""

    def __init__(self, simulator: KubeletSimulator) -> None:
        self._simulator = simulator
        self.directory = simulator.directory
        self.shown = str(simulator.directory)

    async def settle(self, plugins: Sequence[Recorder]) -> None:
        await self._simulator.wait_for(lambda: all(map(self._has_all_of, plugins)), LIMIT)

    def _has_all_of(self, plugin: Recorder) -> bool:
        """Whether everything that the plugin has sent or closed has arrived."""
        log = self._simulator.events
        opened = [event for event in log.of(events.StreamOpened) if event.endpoint == plugin.name]
        lists = [event for event in log.of(events.ListReceived) if event.endpoint == plugin.name]
        open_now = plugin.name in self._simulator.endpoints(plugin.resource)
        return (
            len(opened) == plugin.opened == plugin.registered
            and plugin.up_to_date
            and len(lists) == plugin.sent
            and (plugin.serves or not open_now)
        )

    async def counts(self, resource: str) -> Counts:
        capacity = self._simulator.capacity().get(resource)
        return None if capacity is None else (capacity, self._simulator.allocatable()[resource])

    async def admit(self, pod: str, resource: str, count: int) -> str:
        try:
            await self._simulator.admit(pod, CONTAINER, resource, count)
        except UnexpectedAdmissionError as error:
            return error.message
        await self._simulator.start_container(pod, CONTAINER)
        return "running"

    async def restart_container(self, pod: str) -> None:
        await self._simulator.start_container(pod, CONTAINER)

    async def release(self, pod: str) -> None:
        self._simulator.release(pod)

    async def restart(self) -> None:
        await self._simulator.restart(crash=True)


class Real(Kubelet):
    """The cluster's kubelet. Blocking calls run in threads, so that the plugin continues."""

    def __init__(self, cluster: Cluster, pods: Pods) -> None:
        self._cluster = cluster
        self._pods = pods
        self.directory = cluster.namespaces.path(PLUGIN_DIRECTORY)
        self.shown = PLUGIN_DIRECTORY

    async def settle(self, plugins: Sequence[Recorder]) -> None:
        await asyncio.to_thread(self._cluster.refreshed)

    async def counts(self, resource: str) -> Counts:
        return await asyncio.to_thread(self._cluster.counts, resource)

    async def admit(self, pod: str, resource: str, count: int) -> str:
        return await asyncio.to_thread(self._admit, pod, resource, count)

    def _admit(self, name: str, resource: str, count: int) -> str:
        pod = self._pods.create(name, {resource: count})
        if pod.settled():
            return "running"
        return pod.failed().removeprefix("Pod was rejected: ")

    async def restart_container(self, pod: str) -> None:
        await asyncio.to_thread(Pod(self._cluster, pod).restarted)

    async def release(self, pod: str) -> None:
        await asyncio.to_thread(Pod(self._cluster, pod).delete)

    async def restart(self) -> None:
        await asyncio.to_thread(self._cluster.restart_kubelet, kill=True)
