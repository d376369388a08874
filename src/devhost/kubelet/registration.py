"""Registration: registers a resource with the kubelet, notices the loss, and registers it again.

The rules, each from a failure seen in the field (``docs/architecture.md`` explains them at length):

* serve before Register: a kubelet since 1.25 dials back and asks for options inside the call;
* a fresh server on a fresh path for each registration, and never two at once for one resource;
* a list stream that ended without our doing means "not registered any longer": the kubelet never
  dials again by itself;
* another devhost that registered the same resource later and then left took our registration along:
  up to 1.36 the kubelet disconnects by name, and our own stream stays open as if nothing had happened;
* the plugin that registered last has the resource: an older one reports that, sends no more lists and waits;
* a resource that another plugin served before devhost is not taken from it, unless the entry says so;
* another kubelet.sock (device, inode, change time) means another kubelet; an event about the one we
  registered with means nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import grpc
import grpc.aio

from devhost.backend.descriptors import exhausted
from devhost.backend.errors import DevhostError
from devhost.backend.incident import Incident
from devhost.telemetry.log import get
from devhost.telemetry.metrics import Metrics

from .api import api_pb2_grpc
from .instances import Instances
from .kubelet_socket import Identity, KubeletSocket
from .resource import Resource
from .rivals import Answers, Rivals
from .server import PluginServer, register_request
from .sockets import channel, dead, described, gone, refuses
from .timing import NODE, Timing

log = get(__name__)

AT_ONCE = 3
"""How often a registration that was lost because another instance left is made again without back-off, until
one has held for :attr:`Timing.steady`: two instances that keep disturbing each other must slow down."""


_NO_CONNECTION = "failed to connect"
_CUT_OFF = ("Socket closed", "recvmsg:", "sendmsg:")
"""How gRPC's own messages begin if no connection was made, or if it was cut; a kubelet's begin otherwise."""


class State(StrEnum):
    """The state of a resource's registration."""

    WAITING = "waiting"
    """There is no kubelet.sock, or another plugin serves the resource."""
    REGISTERING = "registering"
    REGISTERED = "registered"
    DISPLACED = "displaced"
    """Another plugin registered the resource later: the kubelet asks that one."""
    LOST = "lost"
    """The kubelet refused or dropped us; the next try is under way."""
    DRAINING = "draining"


@dataclass(slots=True)
class Condition:
    """The state of one resource's registration; ``last`` and ``since`` are wall-clock seconds.

    ``error`` is why it is not registered, since ``since``; empty if nothing went wrong.
    """

    state: State = State.WAITING
    registrations: int = 0
    last: float | None = None
    error: str = ""
    since: float = 0.0


class Registration:
    """Keeps one resource registered for as long as :meth:`run` runs.

    Args:
        resource: answers the kubelet's requests.
        kubelet: the directory in which the kubelet's socket is.
        rivals: what the kubelet reports of other plugins.
        metrics: counts registrations, failures and streams.
        changed: called when the condition or the number of streams has changed.
        take_over: whether the resource may be taken from another plugin.
        timing: deadlines and delays.
    """

    def __init__(
        self,
        resource: Resource,
        kubelet: KubeletSocket,
        rivals: Rivals,
        metrics: Metrics,
        changed: Callable[[], None],
        *,
        take_over: bool = False,
        timing: Timing = NODE,
    ) -> None:
        self.condition = Condition()
        self.server: PluginServer | None = None
        self._resource = resource
        self._kubelet = kubelet
        self._metrics = metrics
        self._changed = changed
        self._stopping = False
        self._wake = asyncio.Event()
        self._timing = timing
        self._backoff = timing.backoff(*timing.back_off)
        self._refused = timing.backoff(*timing.refused)
        self._instances = Instances(kubelet, resource.name)
        self._beside: frozenset[str] = frozenset()
        """Sockets of other instances that served the resource when the registration was lost."""
        self._at_once = 0
        self._loss = Incident()
        self._behind: list[PluginServer] = []
        self._over = False
        self._rivals = rivals
        self._take_over = take_over
        self._ours = False
        """Whether this process may register the resource: no other plugin serves it, or it was taken over."""
        self._displacer = ""
        """The plugin that has the resource instead, as a message; empty where none is known."""
        self._rival_at: Identity | None = None
        self._wanted_back = False
        self._uncontested = False
        """Whether the kubelet listed no device of the resource right before it is registered."""

    @property
    def streams(self) -> int:
        """List streams the kubelet holds open now; readiness wants at least one."""
        return self.server.streams if self.server else 0

    @property
    def serving(self) -> Path | None:
        """The socket on which the kubelet knows it; ``None`` while it is not registered."""
        registered = self.condition.state in (State.REGISTERED, State.DISPLACED)
        return self.server.path if self.server and registered else None

    @property
    def yields(self) -> bool:
        """Whether another plugin has the resource, so that this one rightly has no list stream."""
        return bool(self._displacer) and self._kubelet.identity is not None

    def follow(self, take_over: bool) -> None:
        """The entry's ``takeOver`` has changed. If it is true now, the resource is also taken back."""
        self._take_over = take_over
        self._wanted_back = take_over and bool(self._displacer)
        self._wake.set()

    async def run(self) -> None:
        """Registers, serves, and registers again after each loss, until :meth:`stop` or :meth:`drain`."""
        unsubscribe = self._kubelet.subscribe(self._wake.set)
        forget = self._rivals.subscribe(self._wake.set)
        try:
            while (identity := await self._kubelet_there()) is not None:
                if not await self._free(identity):
                    continue
                began = time.monotonic()
                server = PluginServer(
                    self._resource,
                    self._kubelet.directory,
                    self._metrics,
                    self._server_changed,
                    timing=self._timing,
                )
                self.server, self._beside = server, frozenset()
                self._instances.begin(server.path)
                try:
                    await self._register(server)
                    await self._until_lost(server, identity)
                except DevhostError as error:
                    self._failed(str(error))
                finally:
                    self.server = None
                    self._behind.append(server)
                    await server.stop()
                    self._clear()
                await self._pause(identity, held=time.monotonic() - began)
                self._instances.end()
        finally:
            self._over = True
            unsubscribe()
            forget()

    def _clear(self) -> None:
        """Removes the sockets of earlier servers: the directory may have been read-only before."""
        self._behind = [server for server in self._behind if not server.unlink()]

    def stop(self) -> None:
        """Ends the streams and leaves, keeping the kubelet's count: this process will be back."""
        self._stopping = True
        self._wake.set()

    async def drain(self) -> None:
        """Tells the kubelet that no device is left, then leaves: the resource itself goes away."""
        self._set(State.DRAINING)
        self._resource.inventory.clear()
        if self.server is not None:
            await self.server.drained(self._timing.drain)
        self.stop()

    async def _kubelet_there(self) -> Identity | None:
        """The kubelet's socket once a process listens on it; ``None`` when this side stops."""
        self._refused.reset()
        while not self._stopping:
            identity = self._kubelet.identity
            if identity is None:
                self._set(State.WAITING)
                await self._sleep(None)
            elif (age := time.time() - identity[2] / 1e9) < self._timing.settle and age > 0:
                # The kubelet may still set its mode, which looks like another socket.
                await self._sleep(self._timing.settle - age)
                self._kubelet.look()
            elif refuses(self._kubelet.path):
                self._metrics.registration_failed(self._resource.name)
                self._failed(f"no process listens on {self._kubelet.path}")
                await self._sleep(self._refused.delay())
            else:
                return identity
        return None

    async def _free(self, identity: Identity) -> bool:
        """Waits while another plugin has the resource; false if this side stops, or the kubelet is another.

        The plugin that had it when this process began, or took it from this process, keeps it until it is
        gone. After a restart of the kubelet it may register first. An older devhost is no such plugin: this
        process succeeds it.
        """
        if self._ours:
            return True
        loop = asyncio.get_running_loop()
        start = self._timing.kubelet_start
        checked = loop.time()
        returning = checked + start if self._displacer and self._rival_at != identity else checked
        suspected = bool(self._displacer)
        while not self._stopping and self._kubelet.identity == identity:
            displacer, known = await self._rival_now()
            if displacer and self._take_over:
                log.info("taking the resource over", resource=self._resource.name, reason=displacer)
                return self._claim()
            if displacer:
                checked = loop.time()
            elif not self._displacer or loop.time() > max(returning, checked if known else checked + start):
                self._uncontested = known
                return self._claim()
            if displacer and suspected:
                self._displacer, self._rival_at = displacer, identity
                self._report_error(displacer)
                self._set(State.WAITING)
            suspected = True  # what is listed may be a plugin's that has just ended: it is asked twice
            again = loop.time() + self._timing.ask * (1 + random.random() / 2)
            while self._kubelet.identity == identity and not (self._stopping or self._wanted_back):
                if (left := again - loop.time()) <= 0:
                    break
                await self._sleep(left)
            self._wanted_back = False
        return False

    def _claim(self) -> bool:
        self._ours, self._displacer, self._wanted_back = True, "", False
        return True

    async def _rival_now(self) -> tuple[str, bool]:
        """Which other plugin has the resource; empty if none.

        Second, whether the kubelet said it. Where it does not answer, and no socket tells, nothing is known.
        """
        if live := self._instances.live():
            return (self._instances.displaced_by(live[0]) if self._displacer else ""), True
        now = asyncio.get_running_loop().time()
        self._rivals.ask()
        while self._rivals.asked < now and not self._stopping:
            await self._sleep(None)
        listed = self._rivals.listed
        if listed is None:
            return "", False
        if not listed.get(self._resource.name):
            return "", True
        self._kubelet.look()  # a devhost may have come in between
        if live := self._instances.live():
            return (self._instances.displaced_by(live[0]) if self._displacer else ""), True
        others = self._rivals.named()
        if not others and self._instances.stem in self._kubelet.left_behind:
            return "", True  # a kubelet that missed the end of a killed devhost lists its devices for good
        where = f": {others}" if others else ""
        return (
            f"another device plugin serves it on this node{where}; remove that plugin, or set takeOver: true",
            True,
        )

    async def _register(self, server: PluginServer) -> None:
        self._set(State.REGISTERING)
        await server.start()
        self._clear()
        request = register_request(server.path.name, self._resource.name, prepares=self._resource.prepares)
        late = asyncio.get_running_loop().call_later(
            self._timing.unanswered, self._report_error, self._unanswered()
        )
        try:
            async with channel(self._kubelet.path) as connection:
                stub = api_pb2_grpc.RegistrationStub(connection)
                await stub.Register(request, timeout=self._timing.register)
        except grpc.aio.AioRpcError as error:
            self._metrics.registration_failed(self._resource.name)
            raise DevhostError(self._refusal(error)) from error
        finally:
            late.cancel()
        self.condition.registrations += 1
        self.condition.last = time.time()
        self.condition.error = ""
        self._loss.over()
        self._metrics.registered(self._resource.name)
        self._set(State.REGISTERED)
        log.info(
            "registered", resource=self._resource.name, devices=len(self._resource.inventory.snapshot.entries)
        )

    async def _until_lost(self, server: PluginServer, identity: Identity) -> None:
        """Returns when this side stops.

        Raises:
            DevhostError: the registration does not hold any more, and why.
        """
        registered = time.monotonic()
        open_by = registered + self._timing.stream
        answers = Answers(self._resource, self._rivals)
        uncontested, self._uncontested = self._uncontested, False
        taker: Path | None = None
        instances = self._instances
        while not self._stopping:
            self._beside = frozenset(instances.older | instances.newer)
            left_again = instances.gone(frozenset(instances.newer))
            instances.newer -= left_again
            if left_again and not instances.newer:
                # A kubelet up to 1.36 disconnects by name: with them it has dropped us, and reports nothing.
                self._claim()
                raise DevhostError(
                    f"another plugin registered this resource, then exited ({min(left_again)})"
                )
            instances.sort(settled=time.monotonic() - registered > self._timing.race)
            if self._displacer and self._wanted_back:
                log.info("taking the resource over", resource=self._resource.name, reason=self._displacer)
                self._claim()
                raise DevhostError("it is taken back: its entry says takeOver: true now")
            if server.lost:
                raise DevhostError("the kubelet closed the list stream")
            if gone(server.path):
                raise DevhostError(f"socket {server.path.name} was removed")
            if self._kubelet.identity not in (identity, None):
                raise DevhostError("there is a new kubelet")
            left = open_by - time.monotonic()
            if not server.opened and left <= 0:
                raise DevhostError("the kubelet registered it but opened no list stream")
            if answers.pending() and not instances.live():
                answers.apply()
            if instances.newer:
                if not self._displacer:
                    newest = max(instances.newer, key=instances.born)
                    self._displaced(server, instances.displaced_by(newest), identity)
            elif self._displacer:
                if dead(taker) if taker else not answers.foreign:
                    self._claim()
                    raise DevhostError("the plugin that had taken it over is gone")
            elif answers.foreign:
                taker = self._rivals.newest()
                if uncontested or (taker and instances.born(taker.name) > instances.born(server.path.name)):
                    where = f": {described(taker)}" if taker else ""
                    text = f"another device plugin registered it after devhost{where}; "
                    self._displaced(server, f"{text}remove that plugin, or this resource", identity)
                else:
                    # the plugin that had it before still sends lists, and each replaces ours
                    answers.foreign = False
                    server.resend()
            elif answers.dropped:
                raise DevhostError("the kubelet dropped it without closing the list stream")
            if answers.doubtful or (self._displacer and not instances.newer):
                self._rivals.ask(self._timing.ask * (1 + random.random() / 2))
            await self._sleep((self._timing.poll if instances.newer else None) if server.opened else left)

    def _displaced(self, server: PluginServer, displacer: str, identity: Identity) -> None:
        """The kubelet asks another plugin from now on; both lists would count, so this side sends no more."""
        server.hold()
        self._ours, self._displacer, self._rival_at = False, displacer, identity
        self._report_error(displacer, taken=True)
        self._set(State.DISPLACED)

    async def _pause(self, identity: Identity, held: float) -> None:
        """Backs off after a loss, but no longer than until there is another kubelet.

        There is no back-off where another instance has left: the kubelet dropped this registration with that
        instance's, whichever of the two came first.

        Args:
            held: seconds for which the registration held.
        """
        if held > self._timing.steady:
            self._backoff.reset()
            self._at_once = 0
            return
        # no Reconciler: a state of the directory ends this back-off early, and any other wake must not
        loop = asyncio.get_running_loop()
        end = loop.time() + self._backoff.delay()
        while not self._stopping and (left := end - loop.time()) > 0:
            if self._kubelet.identity not in (identity, None):
                self._backoff.reset()
                return
            if self._at_once < AT_ONCE and self._instances.gone(self._beside):
                self._at_once += 1
                return
            await self._sleep(left)

    async def _sleep(self, seconds: float | None) -> None:
        """Until something happened, or for ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    def _server_changed(self) -> None:
        if not self._over:  # else the name may be another's by now
            self._metrics.streams(self._resource.name, self.streams)
        self._wake.set()
        self._changed()

    def _failed(self, message: str) -> None:
        if self._stopping:
            return
        self._report_error(message)
        self._set(State.LOST)

    def _report_error(self, message: str, *, taken: bool = False) -> None:
        """Reports why it is not registered, or why that has no effect."""
        if self._stopping:
            return
        if not self._loss:
            self.condition.since = time.time()
        if self._loss.news(message):
            if taken:
                log.warning(
                    "resource taken over by another plugin", resource=self._resource.name, reason=message
                )
            else:
                log.warning("not registered", resource=self._resource.name, reason=message)
        if self.condition.error != message:
            self.condition.error = message
            self._changed()

    def _set(self, state: State) -> None:
        if self.condition.state is State.DRAINING or self.condition.state is state:
            return
        self.condition.state = state
        self._changed()

    def _unanswered(self) -> str:
        within = min(self._timing.unanswered, self._timing.register)
        return f"the kubelet has not answered Register within {within:g} s"

    def _refusal(self, error: grpc.aio.AioRpcError) -> str:
        """Why Register failed, as one line with the kubelet's own words."""
        code, details = error.code(), " ".join((error.details() or "").split())
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._unanswered()
        if code is grpc.StatusCode.UNAVAILABLE and os.strerror(errno.EMFILE) in details:
            return str(exhausted(OSError(errno.EMFILE, "")))
        if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NO_CONNECTION):
            return f"no process answers on the kubelet's socket: {details.rpartition(': ')[2]}"
        if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_CUT_OFF):
            return f"the kubelet went away during Register: {details}"
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return f"the kubelet does not know Register of v1beta1: {details}"
        return f"the kubelet did not register it: {details or f'it gave no reason ({code.name})'}"
