"""Updates the allocations with who holds which device, by asking the kubelet at intervals.

:mod:`devhost.allocation.leases` interprets the lists. :class:`PollSchedule` decides when to ask, as rarely as
possible: a kubelet serves 100 such calls a second to all clients together, in bursts of 10. devhost asks for
all resources at once and never twice within half a second. It does not ask at all while no container holds
anything and the kubelet has run for long enough to list all its pods.

While the kubelet does not answer, nothing changes: what was allocated counts as held, and the status shows
why holders are unknown.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from devhost.allocation.allocations import Allocations, Kubelet, Listing, ResourceAllocations
from devhost.allocation.leases import ClaimUse, ClaimUseDevice
from devhost.backend.backoff import Backoff
from devhost.backend.errors import DevhostError, excerpt
from devhost.backend.frozen import frozen
from devhost.backend.incident import Incident
from devhost.backend.model import Holder
from devhost.backend.threads import elsewhere
from devhost.planning.timing import KUBELET, KubeletTiming
from devhost.planning.tokens import STAND_IN, stood_for
from devhost.runtime.log import get
from devhost.runtime.reconciler import Reconciler
from devhost.runtime.rpc import channel

from .api import KUBELET_SOCKET, POD_RESOURCES_DIRECTORY, POD_RESOURCES_RECEIVE_LIMIT, podresources_pb2
from .kubelet_socket import KubeletSocket

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

    It calls List and GetAllocatableResources. Get describes one pod by its name, and could show up to two
    seconds sooner that a pod has ended. But it also returns "not found" if a kubelet has just started and
    knows no pods yet, it describes a new pod of the same name, it still finds a pod that has finished, and
    many kubelets do not serve it.

    Each call has a separate channel. Calls are rare, and a restarted kubelet serves on a new socket of the
    same name, to which an old channel would connect only after its back-off.
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


log = get(__name__)

FAILURES = 2
"""Failures in a row after which the kubelet counts as silent: a restart causes one or two."""

LULL = 0.1
"""Seconds from a wake to the call, so that pods that start together share one."""


@frozen
class KubeletCondition:
    """Whether the kubelet answers; ``last`` and ``since`` are wall-clock seconds.

    ``last`` is the time of its last answer. ``reason`` is empty exactly while the kubelet answers. ``silent``
    is whether it has been asked and has not answered since ``since``.
    """

    reason: str = "the kubelet has not been asked yet"
    last: float | None = None
    silent: bool = False
    since: float = 0.0


class PollSchedule:
    """Decides from the answers so far; all times are monotonic seconds.

    ``draw`` gives random numbers from 0 to 1 for the jitter of the back-off.
    """

    def __init__(
        self,
        draw: Callable[[], float] = random.random,
        *,
        timing: KubeletTiming = KUBELET,
    ) -> None:
        self._backoff = Backoff(*timing.question_failed, draw=draw)
        self._gap, self._first = timing.question_gap, timing.question_first
        self._patience = timing.question_new
        self._asked: float | None = None
        self._retry: float | None = None
        self._kubelet: Kubelet | None = None
        self._another = False
        self._met = 0.0

    @property
    def last(self) -> float:
        """When the kubelet was last asked; minus infinity before the first call."""
        return float("-inf") if self._asked is None else self._asked

    def due(self, wanted: float | None) -> float | None:
        """When to ask next; ``None`` for not at all. A time in the past means now.

        ``wanted`` is when the allocations need the next list.
        """
        if self._asked is None:
            return float("-inf")
        if self._retry is not None:
            return self._retry
        known = self._asked - self._met
        wishes = [self._asked + max(self._first, known)] if known < self._patience else []
        if wanted is not None:
            wishes.append(self._asked if self._another else wanted)
        return max(min(wishes), self._asked + self._gap) if wishes else None

    def answered(self, asked: float, kubelet: Kubelet) -> None:
        """The call at ``asked`` was answered by this kubelet."""
        self._asked, self._retry, self._another = asked, None, False
        self._backoff.reset()
        if kubelet != self._kubelet:
            self._kubelet, self._met = kubelet, asked

    def failed(self, asked: float, now: float) -> None:
        """The call at ``asked`` failed. The next one waits, longer each time, even if a list is wanted."""
        self._asked = asked
        self._retry = now + max(self._gap, self._backoff.delay())

    def restarted(self, now: float) -> None:
        """There is a new kubelet: a call that failed with the old one is tried again soon.

        While anything is held, it is asked soon in any case: only a kubelet that has named a container can
        show later that the container has ended.
        """
        self._another = True
        if self._retry is not None:
            self._backoff.reset()
            self._retry = min(self._retry, now + self._gap)


class PodResourcesPoller:
    """Asks the kubelet for as long as :meth:`run` runs.

    ``changed`` is called when the holder of a device, or the condition, has changed.
    """

    def __init__(
        self,
        source: PodResources,
        allocations: Allocations,
        changed: Callable[[], None],
        *,
        timing: KubeletTiming = KUBELET,
    ) -> None:
        self.source = source
        self.condition = KubeletCondition()
        self.listing: Listing | None = None
        """The newest list; ``None`` before the first one."""
        self._allocations = allocations
        self._subscribers: list[Callable[[], None]] = []
        self._changed = changed
        self._schedule = PollSchedule(timing=timing)
        self._timing = timing
        self._failures = 0
        self._silence = Incident()
        self._tried = asyncio.Event()
        self._asking = asyncio.Lock()
        self._restarts = 0
        self._loop = Reconciler(self._ask_if_due, settle=LULL)
        allocations.watch(self.wake)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back after each list; returns how to end that."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def wake(self) -> None:
        """A list may be due sooner: a container got devices, or a held device vanished."""
        self._loop.wake()

    def restarted(self) -> None:
        """There is a new kubelet."""
        self._restarts += 1
        self._schedule.restarted(time.monotonic())
        self._loop.wake(0.0)

    def due(self) -> float | None:
        """When the kubelet is asked next, in monotonic seconds; ``None`` while it is not to be asked."""
        return self._schedule.due(self._allocations.due(self._schedule.last))

    async def run(self) -> None:
        await self._loop.run()

    async def first_answer(self, within: float) -> None:
        """Waits for the kubelet's first answer, if there is a kubelet; at most ``within`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._tried.wait()

    async def first_list(self, within: float) -> None:
        """Asks for the first list, and waits for it, at most ``within`` seconds; without effect after it.

        A kubelet without an answer is not asked again at once: claims are prepared meanwhile.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within), self._asking:
                again = self._schedule.last + self._timing.question_gap
                if self.listing is None and time.monotonic() >= again:
                    await self._ask_once()

    def follow(self, resource: str) -> None:
        """Includes a resource in the allocations, even if it is not served."""
        self._allocations.follow(resource)
        self.wake()

    def has_token(self, resource: str, token: str) -> bool | None:
        """Whether a container holds this token; ``None`` until the next list shows it."""
        self.wake()
        return self._allocations.has_token(resource, token)

    async def confirm(
        self, allocations: ResourceAllocations, tokens: Sequence[str], *, offered: bool = False
    ) -> None:
        """Asks the kubelet now, if it may not know who holds these tokens.

        A kubelet that has lost its checkpoint allocates what containers hold. Returns at once for tokens that
        no container is known to hold. Waits :attr:`KubeletTiming.confirm` seconds at most. ``offered`` is
        whether the kubelet only offers the tokens. It then knows that their containers have ended, or has
        forgotten them. Otherwise it is asked if an earlier kubelet named the holders.
        """
        replaced = (stood_for(token, allocations) for token in tokens if token.startswith(STAND_IN))
        concerned = {*tokens, *(token for token in replaced if token is not None)}
        named_by = allocations.leases.named_by(concerned)
        if not named_by or (not offered and named_by == {(*(self.source.identity() or ()), self._restarts)}):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.confirm):
                await self._ask()

    async def _ask_if_due(self) -> float | None:
        """One pass: asks if it is due; returns the seconds until the next call."""
        due = self.due()
        if due is not None and due <= time.monotonic():
            await self._ask()
            due = self.due()
        return None if due is None else max(0.0, due - time.monotonic())

    async def _ask(self) -> None:
        async with self._asking:
            await self._ask_once()

    async def _ask_once(self) -> None:
        asked, restarts = time.monotonic(), self._restarts
        try:
            found = await self.source.list()
            listing = replace(found, kubelet=(*found.kubelet, restarts))
        except Unanswered as error:
            self._schedule.failed(asked, time.monotonic())
            self._failed(error.message)
            if isinstance(error, NobodyThere):
                self._tried.set()
            return
        self._schedule.answered(asked, listing.kubelet)
        self._failures = 0
        recovered = bool(self.condition.reason)
        self.condition = replace(self.condition, reason="", silent=False, last=time.time())
        if recovered:
            self._silence.over()
            log.info("the kubelet reports the holders of devices", socket=str(self.source.socket))
        changed = self._allocations.apply(listing) or recovered
        self.listing = listing
        self._tried.set()
        if changed:
            self._changed()
        for callback in list(self._subscribers):
            callback()

    def _failed(self, reason: str) -> None:
        self._failures += 1
        if self._failures < FAILURES:
            return
        if not self.condition.silent:
            self.condition = replace(self.condition, silent=True, since=time.time())
        if self._silence.news(reason):
            log.warning("holders of devices are unknown", reason=reason)
        if reason != self.condition.reason:
            self.condition = replace(self.condition, reason=reason)
            self._changed()


class RestartMonitor:
    """Notices a restart of the kubelet, and then asks it who holds what."""

    def __init__(self, kubelet: KubeletSocket, pod_resources: PodResourcesPoller) -> None:
        self._kubelet = kubelet
        self._pod_resources = pod_resources
        self._known = kubelet.identity

    def look(self) -> None:
        """Call it after each change in the kubelet's directory."""
        if self._kubelet.identity not in (self._known, None):
            self._known = self._kubelet.identity
            self._pod_resources.restarted()
