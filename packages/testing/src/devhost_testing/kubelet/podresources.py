"""The podresources service of the simulated kubelet: who holds devices, and which are healthy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from devhost.backend.errors import EnvironmentFailure
from devhost.kubelet.api import podresources_pb2 as pb
from devhost_testing.api import podresources_pb2_grpc

from . import events, wire
from .checkpoint import Allocation
from .faults import Fault, Faults, Point, Refusal, WrongAnswer

NAMESPACE = "default"
"""The namespace of every pod that is admitted."""

BYSTANDER = ("kube-system", "kube-proxy", "kube-proxy")
"""Namespace, pod and container of a pod without devices: nodes run such pods, and kubelets list them."""


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """A device that a DRA driver gives to a container by a ResourceClaim.

    ``cdi_names`` are qualified (``vendor/class=name``); ``share`` is the share id, if several claims use it.
    """

    driver: str
    pool: str
    device: str
    cdi_names: tuple[str, ...] = ()
    share: str = ""


ContainerClaims = Mapping[tuple[str, str], Mapping[str, tuple[ClaimDevice, ...]]]
"""By pod and container: the devices of each claim, by its name. Claims are in :data:`NAMESPACE`."""

Context = grpc.aio.ServicerContext[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse]


class PodLister(podresources_pb2_grpc.PodResourcesListerServicer):
    """Serves List and GetAllocatableResources on ``socket`` for one run of a kubelet.

    Args:
        containers: pod and name of each container that runs, and whether it is listed.
        allocations: what each container holds now, as far as the kubelet knows.
        claims: the ResourceClaims that containers use.
        healthy: ids of the healthy devices by resource, of all plugins.
        record: logs an event, given its type and fields.
    """

    def __init__(
        self,
        socket: Path,
        containers: Mapping[tuple[str, str], bool],
        allocations: Callable[[], Iterable[Allocation]],
        claims: ContainerClaims,
        healthy: Callable[[], Mapping[str, Collection[str]]],
        faults: Faults,
        record: events.Record,
    ) -> None:
        self._socket = socket
        self._containers = containers
        self._allocations = allocations
        self._claims = claims
        self._healthy = healthy
        self._faults = faults
        self._record = record
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self._rpcs(),))

    async def start(self) -> None:
        """Creates the socket, replacing one of an earlier run, and serves."""
        try:
            self._socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._socket.unlink(missing_ok=True)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot create {self._socket}: {error.strerror}",
                "choose a directory whose parent is writable",
            ) from error
        wire.listen(self._server, self._socket)
        await self._server.start()

    async def stop(self, crash: bool) -> None:
        """Ends every call; a ``crash`` leaves the socket file behind."""
        await self._server.stop(None)
        if not crash:
            with suppress(OSError):  # its directory may be removed, or may never have been a directory
                self._socket.unlink()

    def _rpcs(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The service for a gRPC server. Answers to List are bytes, so that a fault can make them invalid."""
        listing = grpc.unary_unary_rpc_method_handler(
            self._answer, pb.ListPodResourcesRequest.FromString, response_serializer=None
        )
        allocatable = grpc.unary_unary_rpc_method_handler(
            self.GetAllocatableResources,
            pb.AllocatableResourcesRequest.FromString,
            pb.AllocatableResourcesResponse.SerializeToString,
        )
        methods = {"List": listing, "GetAllocatableResources": allocatable}
        return grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods)

    async def _answer(self, request: pb.ListPodResourcesRequest, context: Context) -> bytes:
        try:
            return (await self.List(request, context)).SerializeToString()
        except WrongAnswer as wrong:
            self._record(events.PodsListed, pods=0, reason=str(wrong))
            return wrong.reply

    async def List(
        self, request: pb.ListPodResourcesRequest, context: Context
    ) -> pb.ListPodResourcesResponse:
        try:
            await self._faults.reached(Point.POD_RESOURCES, "")
        except Fault as fault:
            self._record(events.PodsListed, pods=0, reason=str(fault))
            code = fault.code if isinstance(fault, Refusal) else grpc.StatusCode.UNKNOWN
            await context.abort(code, str(fault))
        answer = _listed(self._containers, self._allocations(), self._claims)
        self._record(events.PodsListed, pods=len(answer.pod_resources), reason="")
        return answer

    async def GetAllocatableResources(
        self, request: pb.AllocatableResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.AllocatableResourcesResponse:
        try:
            await self._faults.reached(Point.ALLOCATABLE, "")
        except Fault as fault:
            code = fault.code if isinstance(fault, Refusal) else grpc.StatusCode.UNKNOWN
            await context.abort(code, str(fault))
        answer = pb.AllocatableResourcesResponse()
        for resource, ids in self._healthy().items():
            for one in sorted(ids):  # one entry for each, like the kubelet
                answer.devices.add(resource_name=resource, device_ids=[one])
        return answer


def _listed(
    running: Mapping[tuple[str, str], bool], allocations: Iterable[Allocation], claims: ContainerClaims
) -> pb.ListPodResourcesResponse:
    """Pods, oldest first, without containers that end before the others start."""
    answer = pb.ListPodResourcesResponse()
    namespace, pod, container = BYSTANDER
    answer.pod_resources.add(name=pod, namespace=namespace).containers.add(name=container)
    pods: dict[str, pb.PodResources] = {}
    containers: dict[tuple[str, str], pb.ContainerResources] = {}
    for (name, container), is_listed in running.items():
        if name not in pods:
            pods[name] = answer.pod_resources.add(name=name, namespace=NAMESPACE)
        if is_listed:
            containers[name, container] = pods[name].containers.add(name=container)
    for a in allocations:
        if (listed := containers.get((a.pod, a.container))) is not None:
            for (
                device
            ) in a.device_ids:  # one entry for each, like the kubelet for devices with several NUMA nodes
                listed.devices.add(resource_name=a.resource, device_ids=[device])
    for where, used in claims.items():
        if (listed := containers.get(where)) is not None:
            for name, given in used.items():
                claim = listed.dynamic_resources.add(claim_name=name, claim_namespace=NAMESPACE)
                claim.claim_resources.extend(map(_claim_resource, given))
    return answer


def _claim_resource(device: ClaimDevice) -> pb.ClaimResource:
    return pb.ClaimResource(
        cdi_devices=[pb.CDIDevice(name=name) for name in device.cdi_names],
        driver_name=device.driver,
        pool_name=device.pool,
        device_name=device.device,
        share_id=device.share or None,
    )
