"""The simulated kubelet: start and stop, and the node as an administrator sees it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import grpc.aio

from devhost.backend.errors import DevhostError, EnvironmentFailure
from devhost.kubelet.api import CHECKPOINT, POD_RESOURCES_DIRECTORY, RECEIVE_LIMIT, api_pb2
from devhost.runtime.sockets import live

from . import checkpoint, events, wire
from .admission import Admission, Role
from .checkpoint import Allocation
from .faults import Faults
from .podresources import ClaimDevice, PodLister
from .registration import Registrar
from .registry import PROFILES, Profile, Registry

T = TypeVar("T")

DIRECTORY = "device-plugins"
"""The name of a kubelet's plugin directory; next to one with this name, podresources is served."""


class KubeletSimulator:
    """The device plugin part of a kubelet in ``directory``, without containers. One event loop, no threads.

        async with KubeletSimulator(directory, "1.37") as kubelet:
            ...  # start the plugin
            await kubelet.wait_for(lambda: kubelet.allocatable().get("example.com/thing") == 4)
            allocation = await kubelet.admit("pod", "main", "example.com/thing", 2)

    Everything that happens is in ``events``; ``faults`` makes steps fail or hang.

    Args:
        directory: the plugin directory; created with mode 0750 if it does not exist.
        profile: the simulated version: "1.36" means that release and older ones, "1.37" newer ones.
        clock: the time in seconds for the grace period and for events.
        dial_timeout: seconds that a plugin has to accept the kubelet's connection during Register.
        stop_grace: seconds that a resource keeps its capacity after its last plugin ended.
        receive_limit: the maximum size of a message that the kubelet accepts, in bytes.
        keep_checkpoint: whether allocations and resource names survive a restart.
        seed: picks free devices at random, as kubelets do; in order of their ids by default.
        keep_events: the number of latest events to keep; all by default.
        pod_resources: the directory in which podresources is served. By default ``pod-resources`` next to a
            plugin directory with the name ``device-plugins``; with another name it is not served.
    """

    def __init__(
        self,
        directory: Path | str,
        profile: Profile = "1.36",
        *,
        clock: Callable[[], float] = time.monotonic,
        dial_timeout: float = 10.0,
        stop_grace: float = 300.0,
        receive_limit: int = RECEIVE_LIMIT,
        keep_checkpoint: bool = True,
        seed: int | None = None,
        keep_events: int | None = None,
        pod_resources: Path | None = None,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.profile = profile
        self.events = events.EventLog(keep_events)
        self.faults = Faults()
        self._clock = clock
        self._dial_timeout = dial_timeout
        self._stop_grace = stop_grace
        self._receive_limit = receive_limit
        self._keep_checkpoint = keep_checkpoint
        self._seed = seed
        if pod_resources is None and self.directory.name == DIRECTORY:
            pod_resources = self.directory.with_name(POD_RESOURCES_DIRECTORY)
        self._pod_resources = pod_resources
        self._removed: set[str] = set()
        self._containers: dict[tuple[str, str], bool] = {}
        self._claims: dict[tuple[str, str], dict[str, tuple[ClaimDevice, ...]]] = {}
        self._run: _Run | None = None

    async def __aenter__(self) -> KubeletSimulator:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def socket(self) -> Path:
        """Where plugins register."""
        return wire.socket_path(self.directory)

    @property
    def pod_resources(self) -> Path | None:
        """Where podresources is served; ``None`` if nowhere."""
        return self._pod_resources and wire.socket_path(self._pod_resources)

    @property
    def running(self) -> bool:
        return self._run is not None

    async def start(self, delay_serving: float = 0.0) -> None:
        """Reads the checkpoint, removes sockets, listens and serves.

        The first answer comes ``delay_serving`` seconds after the socket. Raises ``EnvironmentFailure`` if
        the directory cannot be used, or belongs to a live or real kubelet.
        """
        if self._run is not None:
            raise DevhostError(f"the kubelet in {self.directory} is already running")
        self._prepare_directory()
        restored = checkpoint.load(self._checkpoint) if self._keep_checkpoint else checkpoint.Checkpoint()
        try:
            wiped = wire.wipe(self.directory)
        except OSError as error:
            raise EnvironmentFailure(f"cannot remove old sockets in {self.directory}: {error}") from error
        registry = PROFILES[self.profile](self._clock, self._stop_grace, restored.resources)
        registrar = Registrar(
            self.directory,
            registry,
            self.faults,
            self._record,
            dial_timeout=self._dial_timeout,
            receive_limit=self._receive_limit,
            changed=self._save,
        )
        admission = Admission(
            registry,
            self.faults,
            self._record,
            restored=restored.allocations,
            containers=self._containers,
            seed=self._seed,
            changed=self._save,
        )
        server = grpc.aio.server(options=(("grpc.max_receive_message_length", RECEIVE_LIMIT),))
        server.add_generic_rpc_handlers((registrar.rpcs(),))
        lister = None
        if self.pod_resources is not None:
            lister = PodLister(
                self.pod_resources,
                self._containers,
                lambda: admission.allocations,
                self._claims,
                lambda: {name: books.healthy for name, books in registry.resources.items()},
                self.faults,
                self._record,
            )
        self._run = _Run(registry, registrar, admission, server, lister)
        try:
            if lister is not None:
                await lister.start()
            wire.listen(server, self.socket)
            await asyncio.sleep(delay_serving)
            await server.start()
        except BaseException:
            await self.stop()
            raise
        self._record(events.Started, profile=self.profile, wiped=wiped)

    async def stop(self, crash: bool = False) -> None:
        """Ends every stream and connection; does nothing if the kubelet is not running.

        After a ``crash``, the socket file stays, as of a killed kubelet.
        """
        run, self._run = self._run, None
        if run is None:
            return
        await run.server.stop(None)
        if not crash:
            self.socket.unlink(missing_ok=True)
        if run.lister is not None:
            await run.lister.stop(crash)
        await run.admission.close()
        await run.registrar.close()
        self._record(events.Stopped, crash=crash)

    async def restart(self, crash: bool = False, delay_serving: float = 0.0, *, forget: bool = False) -> None:
        """Stops (or crashes) and starts again. Pods keep running, and the checkpoint has their devices.

        With ``forget``, the checkpoint is removed: the kubelet then knows the pods but not their devices.
        """
        await self.stop(crash)
        if forget:
            self._checkpoint.unlink(missing_ok=True)
        await self.start(delay_serving)

    def capacity(self) -> dict[str, int]:
        """The capacity in the node status: devices by resource, including unhealthy ones.

        A resource whose plugin ended longer ago than the grace period is listed with 0.
        """
        return self._status(lambda healthy, unhealthy: healthy + unhealthy)

    def allocatable(self) -> dict[str, int]:
        """The allocatable devices in the node status: healthy devices by resource, in use or not."""
        return self._status(lambda healthy, _: healthy)

    def devices(self, resource: str) -> tuple[events.ListedDevice, ...]:
        """The devices of ``resource`` in the last list."""
        books = self._running.registry.resources.get(resource)
        return tuple(books.devices.values()) if books else ()

    def settled(self, resource: str = "") -> bool:
        """Whether the kubelet has noticed which plugins serve ``resource``, or any resource.

        It has if each registered plugin has sent a list, and no stream is open to one without a socket.
        Until then the other methods may show what was true before, for example before a plugin restarted.
        """
        streams = self._running.registrar.streams(resource)
        return all(one.listed and Path(one.path).exists() for one in streams)

    def healthy(self, resource: str) -> frozenset[str]:
        """Ids of the devices of ``resource`` that a pod can get."""
        books = self._running.registry.resources.get(resource)
        return frozenset(books.healthy) if books else frozenset()

    def in_use(self, resource: str) -> frozenset[str]:
        """Ids of the devices of ``resource`` that pods hold."""
        return frozenset(self._running.admission.in_use(resource))

    def allocations(self) -> tuple[Allocation, ...]:
        """The allocations of containers, oldest first."""
        return self._running.admission.allocations

    def endpoints(self, resource: str) -> tuple[str, ...]:
        """Names of the sockets whose ListAndWatch stream for ``resource`` is open, oldest first."""
        return tuple(c.endpoint for c in self._running.registrar.streams(resource))

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
        """Admits a container that requests ``count`` devices, see :meth:`.Admission.admit`."""
        return await self._running.admission.admit(
            pod, container, resource, count, role=role, numa_nodes=numa_nodes
        )

    async def start_container(self, pod: str, container: str) -> api_pb2.ContainerAllocateResponse:
        """Starts or restarts an admitted container; see :meth:`.Admission.start_container`."""
        return await self._running.admission.start_container(pod, container)

    def use_claim(self, pod: str, container: str, claim: str, devices: Iterable[ClaimDevice]) -> None:
        """Lists a container of a pod with a ResourceClaim, whose devices DRA drivers have given to it.

        No driver is called. The pod starts if there is none of that name. It has its claims until it ends,
        also after a restart of the kubelet.

        Args:
            claim: the claim's name; of several calls with the same one, the latest counts.
        """
        self._containers.setdefault((pod, container), True)
        self._claims.setdefault((pod, container), {})[claim] = tuple(devices)

    def release(self, pod: str) -> bool:
        """Ends the pod; false if there is no such pod. Plugins are not notified."""
        for where in [where for where in self._claims if where[0] == pod]:
            del self._claims[where]
        return self._running.admission.release(pod)

    def kill_stream(self, resource: str) -> int:
        """Cancels every ListAndWatch stream of ``resource``; returns their number."""
        streams = self._running.registrar.streams(resource)
        for connection in streams:
            connection.cut()
        return len(streams)

    async def wait_for(self, condition: Callable[[], T], timeout: float = 60.0) -> T:
        """See :meth:`.EventLog.wait_for`."""
        return await self.events.wait_for(condition, timeout)

    @property
    def _running(self) -> _Run:
        if self._run is None:
            raise DevhostError(f"the kubelet in {self.directory} is not running", "start it first")
        return self._run

    @property
    def _checkpoint(self) -> Path:
        return self.directory / CHECKPOINT

    def _prepare_directory(self) -> None:
        socket = self.socket
        try:
            self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot create the directory {self.directory}: {error.strerror}",
                "choose one in a writable directory",
            ) from error
        if not os.access(self.directory, os.R_OK | os.W_OK | os.X_OK):
            raise EnvironmentFailure(
                f"the directory {self.directory} is not writable", "choose another one, or run as its owner"
            )
        if live(socket):
            raise EnvironmentFailure(
                f"a kubelet already listens on {socket}, and another one would disconnect its plugins",
                "choose another directory",
            )

    def _status(self, count: Callable[[int, int], int]) -> dict[str, int]:
        registry = self._running.registry
        for name in registry.expire():
            self._removed.add(name)
            self._save()
            self._record(events.ResourceRemoved, resource=name)
        shown = {
            name: count(len(resource.healthy), len(resource.unhealthy))
            for name, resource in registry.resources.items()
            if resource.listed
        }
        return dict.fromkeys(self._removed, 0) | shown

    def _save(self) -> None:
        if self._keep_checkpoint and self._run is not None:
            resources = self._run.registry.resources
            known = [name for name, resource in resources.items() if resource.listed]
            # A kubelet whose directory is removed logs that and keeps running.
            with suppress(OSError):
                checkpoint.save(self._checkpoint, known, self._run.admission.allocations)

    def _record(self, kind: type[events.Event], **fields: object) -> None:
        self.events.append(kind(at=self._clock(), **fields))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Run:
    """The objects of one run of the kubelet."""

    registry: Registry
    registrar: Registrar
    admission: Admission
    server: grpc.aio.Server
    lister: PodLister | None
