"""Allocates devices to pods like a kubelet: selection, preference, Allocate, and the start of containers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Literal, TypeVar

from devhost.backend.errors import DevhostError
from devhost.kubelet.api import PRE_START_DEADLINE, api_pb2

from . import events
from .checkpoint import Allocation
from .faults import Fault, Faults, Point
from .registry import Endpoint, Registry
from .wire import CallError, PluginConnection

T = TypeVar("T")

Role = Literal["app", "init", "sidecar"]
"""A container's role in its pod. Later containers reuse the devices of an ``init`` container."""


class UnexpectedAdmissionError(DevhostError):
    """The pod is rejected. ``reason`` is only the error, the message is that in a pod's status."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Allocate failed due to {reason}, which is unexpected")
        self.reason = reason


class ContainerStartError(DevhostError):
    """A container cannot be started now; a kubelet would retry and keep the pod."""


class Admission:
    """The pods of the node and the devices they hold.

    Args:
        registry: the kubelet's registry.
        restored: allocations in a checkpoint.
        containers: pod and name of each container that runs, and whether podresources lists it. Containers
            keep running while the kubelet restarts, regardless of its checkpoint; so this outlives an
            admission.
        seed: orders free devices at random, as a kubelet does; in order of their ids by default.
        changed: called after each change that a kubelet writes to its checkpoint.
    """

    def __init__(
        self,
        registry: Registry,
        faults: Faults,
        record: events.Record,
        *,
        restored: Iterable[Allocation],
        containers: dict[tuple[str, str], bool],
        seed: int | None,
        changed: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._faults = faults
        self._record = record
        self._changed = changed
        self._random = None if seed is None else random.Random(seed)
        self._allocations = {(a.pod, a.container, a.resource): a for a in restored}
        self._containers = containers
        self._containers.update({(a.pod, a.container): a.listed for a in self._allocations.values()})
        self._reusable: dict[tuple[str, str], set[str]] = {}
        self._turn = asyncio.Lock()
        self._work: set[asyncio.Task[Any]] = set()

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """Every allocation, oldest first."""
        return tuple(self._allocations.values())

    def in_use(self, resource: str) -> set[str]:
        """Ids of the devices of ``resource`` that pods hold."""
        return {
            device for a in self._allocations.values() if a.resource == resource for device in a.device_ids
        }

    async def admit(
        self,
        pod: str,
        container: str,
        resource: str,
        count: int,
        *,
        role: Role = "app",
        numa_nodes: Collection[int] | None = None,
    ) -> Allocation:
        """Allocates ``count`` devices to a container. Only one admission runs at a time.

        Args:
            numa_nodes: the NUMA nodes that the topology policy has chosen; no alignment by default.

        Raises:
            UnexpectedAdmissionError: the pod is rejected.
        """

        async def in_turn() -> Allocation:
            async with self._turn:
                allocation = await self._admit(pod, container, resource, count, role, numa_nodes)
                reusable = self._reusable.setdefault((pod, resource), set())
                if role == "init":
                    reusable.update(allocation.device_ids)
                else:
                    reusable.difference_update(allocation.device_ids)
                return allocation

        try:
            return await self._while_running(in_turn())
        except (CallError, Fault, _Rejected) as error:
            self._record(
                events.AdmissionFailed, resource=resource, pod=pod, container=container, reason=str(error)
            )
            raise UnexpectedAdmissionError(str(error)) from error

    async def _admit(
        self,
        pod: str,
        container: str,
        resource: str,
        count: int,
        role: Role,
        numa_nodes: Collection[int] | None,
    ) -> Allocation:
        held = self._allocations.get((pod, container, resource))
        if held is not None and len(held.device_ids) != count:
            raise _Rejected(
                f'pod "{pod}" container "{container}" changed request for resource "{resource}" '
                f"from {len(held.device_ids)} to {count}"
            )
        books = self._registry.resources.get(resource)
        if books is None or not books.listed:
            raise _Rejected(f"cannot allocate unregistered device {resource}")
        if not books.healthy:
            raise _Rejected(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if held is not None:
            if not books.healthy.issuperset(held.device_ids):
                raise _Rejected(
                    "previously allocated devices are no longer healthy; "
                    f"cannot allocate unhealthy devices {resource}"
                )
            return held
        device_ids = await self._select(pod, container, resource, count, numa_nodes)
        response = await self._allocate(pod, container, resource, device_ids)
        allocation = Allocation(pod, container, resource, device_ids, response, listed=role != "init")
        self._allocations[pod, container, resource] = allocation
        self._containers[pod, container] = allocation.listed
        self._changed()
        self._record(
            events.Allocated,
            resource=resource,
            pod=pod,
            container=container,
            device_ids=device_ids,
            response=response,
        )
        return allocation

    async def _select(
        self, pod: str, container: str, resource: str, count: int, numa_nodes: Collection[int] | None
    ) -> tuple[str, ...]:
        books = self._registry.resource(resource)
        chosen = self._ordered(self._reusable.get((pod, resource), ()))[:count]
        needed = count - len(chosen)
        if needed == 0:
            return tuple(chosen)
        free = self._ordered(books.healthy - self.in_use(resource))
        if len(free) < needed:
            raise _Rejected(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(free)}"
            )
        aligned: list[str] = []
        if numa_nodes is not None:
            aligned = [i for i in free if not set(numa_nodes).isdisjoint(books.devices[i].numa_nodes)]
        if needed < len(aligned):
            offer = aligned
        else:
            chosen += aligned
            needed -= len(aligned)
            offer = [device for device in free if device not in set(aligned)]
        if needed:
            preferred = await self._preference(pod, container, resource, [*chosen, *offer], chosen, count)
            chosen += sorted(offer, key=lambda device: device not in preferred)[:needed]
        return tuple(chosen)

    def _ordered(self, device_ids: Iterable[str]) -> list[str]:
        ordered = sorted(device_ids)
        if self._random is not None:
            self._random.shuffle(ordered)
        return ordered

    async def _preference(
        self,
        pod: str,
        container: str,
        resource: str,
        available: Collection[str],
        must_include: Collection[str],
        size: int,
    ) -> set[str]:
        endpoint = self._registry.resource(resource).primary
        if endpoint is None or not endpoint.options.preferred_allocation:
            return set()
        try:
            await self._faults.reached(Point.PREFERENCE, resource)
            reply = await _live(endpoint, resource).preference(available, must_include, size)
        except (CallError, Fault) as error:
            raise _Rejected(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        answer = tuple(reply.container_responses[0].deviceIDs) if reply.container_responses else ()
        self._record(
            events.PreferenceAsked,
            resource=resource,
            pod=pod,
            container=container,
            available=tuple(available),
            must_include=tuple(must_include),
            size=size,
            answer=answer,
        )
        return set(answer)

    async def _allocate(
        self, pod: str, container: str, resource: str, device_ids: tuple[str, ...]
    ) -> api_pb2.ContainerAllocateResponse:
        endpoint = self._registry.resource(resource).primary
        if endpoint is None:
            raise _Rejected(f"unknown Device Plugin {resource}")
        self._record(
            events.AllocateSent, resource=resource, pod=pod, container=container, device_ids=device_ids
        )
        await self._faults.reached(Point.ALLOCATE, resource)
        reply = await _live(endpoint, resource).allocate(device_ids)
        if not reply.container_responses:
            raise _Rejected("no containers return in allocation response")
        return reply.container_responses[0]

    async def start_container(self, pod: str, container: str) -> api_pb2.ContainerAllocateResponse:
        """Does what precedes each start of a container, the first one and every restart.

        Returns the stored answers of all its resources, merged; if two define the same thing, the first one
        applies. Raises ``ContainerStartError`` if PreStartContainer failed, or the pod has no such container.
        """
        held = [a for a in self.allocations if (a.pod, a.container) == (pod, container)]
        if not held:
            raise ContainerStartError(f"pod {pod} has no container {container} with devices")
        for allocation in held:
            try:
                await self._while_running(self._pre_start(allocation))
            except (CallError, Fault) as error:
                self._record(
                    events.StartFailed,
                    resource=allocation.resource,
                    pod=pod,
                    container=container,
                    reason=str(error),
                )
                raise ContainerStartError(str(error)) from error
        return merge(allocation.response for allocation in held)

    async def _pre_start(self, allocation: Allocation) -> None:
        resource = allocation.resource
        endpoint = self._registry.resource(resource).primary
        if endpoint is None:
            raise CallError(f"endpoint not found in cache for a registered resource: {resource}")
        if not endpoint.options.pre_start_required:
            return
        try:
            async with asyncio.timeout(PRE_START_DEADLINE):
                await self._faults.reached(Point.PRE_START, resource)
                await _live(endpoint, resource).pre_start(allocation.device_ids, PRE_START_DEADLINE)
        except (CallError, Fault, TimeoutError) as error:
            text = str(error) or "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
            raise CallError(f"device plugin PreStartContainer rpc failed with err: {text}") from error
        self._record(
            events.PreStarted,
            resource=resource,
            pod=allocation.pod,
            container=allocation.container,
            device_ids=allocation.device_ids,
        )

    async def close(self) -> None:
        """Ends calls in progress, like the end of a kubelet's process: waiting pods are not admitted."""
        work = tuple(self._work)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    async def _while_running(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._work.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise CallError("the kubelet has stopped") from None
        finally:
            self._work.discard(task)

    def release(self, pod: str) -> bool:
        """Ends ``pod`` and frees its devices; false if there is no such pod. Plugins are not notified."""
        for key in [key for key in self._allocations if key[0] == pod]:
            del self._allocations[key]
        for reusable in [key for key in self._reusable if key[0] == pod]:
            del self._reusable[reusable]
        ended = [container for container in self._containers if container[0] == pod]
        for container in ended:
            del self._containers[container]
        if ended:
            self._changed()
            self._record(events.PodReleased, pod=pod)
        return bool(ended)


class _Rejected(Exception):
    """The kubelet itself rejects the request."""


def _live(endpoint: Endpoint, resource: str) -> PluginConnection:
    if endpoint.stopped_at is not None or not isinstance(endpoint.connection, PluginConnection):
        raise CallError(f"endpoint {resource} has been stopped")
    return endpoint.connection


def merge(responses: Iterable[api_pb2.ContainerAllocateResponse]) -> api_pb2.ContainerAllocateResponse:
    """Merges the answers of several plugins: the first one to define a thing applies."""
    merged = api_pb2.ContainerAllocateResponse()
    for response in responses:
        for key, value in response.envs.items():
            if key not in merged.envs:
                merged.envs[key] = value
        for key, value in response.annotations.items():
            if key not in merged.annotations:
                merged.annotations[key] = value
        mounts = {mount.container_path for mount in merged.mounts}
        merged.mounts.extend(m for m in response.mounts if m.container_path not in mounts)
        devices = {device.container_path for device in merged.devices}
        merged.devices.extend(d for d in response.devices if d.container_path not in devices)
        names = {device.name for device in merged.cdi_devices}
        merged.cdi_devices.extend(d for d in response.cdi_devices if d.name not in names)
    return merged
