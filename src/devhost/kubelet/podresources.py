"""The client of podresources v1: which container holds which device, and which devices the kubelet knows.

It calls List and GetAllocatableResources. Get describes one pod by its name, and could show up to two seconds
sooner that a pod has ended. But it also returns "not found" if a kubelet has just started and knows no pods
yet, it describes a new pod of the same name, it still finds a pod that has finished, and many kubelets do not
serve it.

Each call has a separate channel. Calls are rare, and a restarted kubelet serves on a new socket of the same
name, to which an old channel would connect only after its back-off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from devhost.allocation.leases import ClaimUse, ClaimUseDevice, Kubelet, Listing
from devhost.backend.errors import DevhostError, excerpt
from devhost.backend.model import Holder
from devhost.backend.threads import elsewhere
from devhost.planning.timing import KUBELET, KubeletTiming
from devhost.runtime.rpc import channel

from .api import KUBELET_SOCKET, POD_RESOURCES_DIRECTORY, POD_RESOURCES_RECEIVE_LIMIT, podresources_pb2

METHOD = "/v1.PodResourcesLister/List"

ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
"""Kubernetes 1.23 and newer."""

_UNREACHED = ": connect failed: "
"""Part of gRPC's message if no process listens on a socket; it ends with the text of the errno."""

_UNREADABLE = "the kubelet's answer is not a podresources v1 message"

_LIMIT = ("grpc.max_receive_message_length", POD_RESOURCES_RECEIVE_LIMIT)


LONG = 1 << 17
"""Bytes from which on an answer is decoded on a thread: about 5 ms of work."""

T = TypeVar("T")


class Unanswered(DevhostError):
    """The kubelet did not answer; the message is the reason."""


class NobodyThere(Unanswered):
    """No process serves podresources."""


def beside(kubelet_dir: Path) -> Path:
    """The podresources socket of the kubelet whose device plugin directory is ``kubelet_dir``.

    Both are in the kubelet's default root directory. With another root directory only this socket moves.
    """
    return kubelet_dir.absolute().parent / POD_RESOURCES_DIRECTORY / KUBELET_SOCKET


class PodResources:
    """The podresources service on ``socket``. Calls raise ``Unanswered`` if there is no usable answer.

    ``clock`` gives monotonic seconds, for the times in a listing.
    """

    def __init__(
        self, socket: Path, clock: Callable[[], float] = time.monotonic, *, timing: KubeletTiming = KUBELET
    ) -> None:
        self._timing = timing
        self.socket = socket
        self._clock = clock

    async def list(self) -> Listing:
        """The kubelet's answer: every device that a container holds, and every claim that it uses."""
        kubelet, began = self._present(), self._clock()
        listing = await self._read(
            METHOD, self._timing.list_pods, lambda data: _listing(kubelet, began, data)
        )
        if self._present() != kubelet:
            raise Unanswered("the kubelet restarted during the call")
        return listing

    async def allocatable(self) -> dict[str, frozenset[str]]:
        """The ids of the healthy devices that the kubelet knows, by resource, from all plugins."""
        self._present()
        return await self._read(ALLOCATABLE, self._timing.list_allocatable, _allocatable)

    async def _read(self, method: str, deadline: float, read: Callable[[bytes], T]) -> T:
        """The kubelet's answer; a long one is decoded on a thread."""
        data = await self._ask(method, deadline)
        try:
            return read(data) if len(data) < LONG else await elsewhere(read, data)
        except DecodeError:
            raise Unanswered(_UNREADABLE) from None

    async def _ask(self, method: str, deadline: float) -> bytes:
        """The undecoded answer: gRPC would log a traceback if it could not decode it."""
        async with channel(self.socket, _LIMIT) as connection:
            call = connection.unary_unary(method, bytes, bytes)
            try:
                answer: bytes = await call(b"", timeout=deadline)
            except grpc.aio.AioRpcError as error:
                absent = _UNREACHED in (error.details() or "")
                raise (NobodyThere if absent else Unanswered)(self._reason(error, deadline)) from error
            return answer

    def _reason(self, error: grpc.aio.AioRpcError, deadline: float) -> str:
        code, details = error.code(), excerpt(error.details() or "no reason given")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            # Both sides use this code: the kubelet for too many calls, gRPC for an answer that is too long.
            if "larger than max" in details:
                return f"the kubelet's answer is longer than {POD_RESOURCES_RECEIVE_LIMIT >> 20} MiB"
            return f"the kubelet limits the rate of calls: {details}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"the kubelet did not answer within {deadline:g} s"
        if _UNREACHED in details:
            return f"cannot connect to {self.socket}: {details.rpartition('error: ')[2]}"
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return "the kubelet does not serve podresources v1"
        return f"the kubelet did not answer: {details}"

    def identity(self) -> Kubelet | None:
        """The kubelet that serves now; ``None`` if there is none, or its socket cannot be examined."""
        try:
            return self._present()
        except Unanswered:
            return None

    def _present(self) -> Kubelet:
        try:
            stat = os.stat(self.socket)  # noqa: PTH116 - no Path object for each call
        except FileNotFoundError:
            raise NobodyThere(f"{self.socket} does not exist") from None
        except OSError as error:
            raise Unanswered(f"cannot connect to {self.socket}: {error.strerror}") from None
        return stat.st_dev, stat.st_ino, stat.st_ctime_ns


def _listing(kubelet: Kubelet, began: float, data: bytes) -> Listing:
    """A list of pods.

    If a token is listed twice, which no kubelet does, the first holder counts. While a pod of the same name
    is created again, both may be listed; then the container without devices counts. Several containers may
    use one claim, and one container several.
    """
    answer = podresources_pb2.ListPodResourcesResponse.FromString(data)
    holders: dict[str, dict[str, Holder | None]] = {}
    containers: dict[Holder, bool] = {}
    using: dict[tuple[str, str], tuple[dict[Holder, None], dict[ClaimUseDevice, None]]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            holder = Holder(pod.namespace, pod.name, container.name)
            containers[holder] = bool(container.devices) and containers.get(holder, True)
            for devices in container.devices:
                tokens = holders.setdefault(devices.resource_name, {})
                for token in devices.device_ids:
                    tokens.setdefault(token, holder)
            for claim in container.dynamic_resources:
                users, given = using.setdefault((claim.claim_namespace, claim.claim_name), ({}, {}))
                users[holder] = None
                for one in claim.claim_resources:
                    names = tuple(device.name for device in one.cdi_devices)
                    use = ClaimUseDevice(one.driver_name, one.pool_name, one.device_name, one.share_id, names)
                    given[use] = None
    claims = {name: ClaimUse(tuple(users), tuple(given)) for name, (users, given) in using.items()}
    return Listing(kubelet, began, len(answer.pod_resources), holders, containers, claims)


def _allocatable(data: bytes) -> dict[str, frozenset[str]]:
    answer = podresources_pb2.AllocatableResourcesResponse.FromString(data)
    found: dict[str, set[str]] = {}
    for devices in answer.devices:
        found.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {name: frozenset(ids) for name, ids in found.items() if ids}
