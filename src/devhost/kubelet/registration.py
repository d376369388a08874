"""Registration: registers a resource with the kubelet, notices the loss, and registers it again.

The rules, each from a failure seen in the field (``docs/architecture.md`` explains them at length):

* serve before Register: a kubelet since 1.25 dials back and asks for options inside the call;
* a fresh server on a fresh path for each registration, and never two at once for one resource;
* a list stream that the kubelet ended means "no longer registered": no kubelet dials again;
* when another devhost registers the same resource and then exits, this registration is lost too: up to 1.36
  the kubelet disconnects by name, and the stream of this process stays open;
* the plugin that registered last has the resource: an older one reports that, stops sending lists and waits;
* a resource that another plugin served before devhost is not taken from it, unless its entry has
  ``takeOver``;
* a kubelet.sock with a different device, inode or change time is a new kubelet; other events do not matter.
"""

from __future__ import annotations

import errno
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, StrEnum, auto
from pathlib import Path

import grpc
import grpc.aio

from devhost.allocation.allocator import Allocator
from devhost.backend.errors import DevhostError, excerpt, exhausted
from devhost.backend.frozen import frozen, mutable
from devhost.backend.incident import Incident
from devhost.planning.timing import KUBELET, KubeletTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, Reconciler
from devhost.runtime.rpc import channel
from devhost.runtime.sockets import dead, described, gone, refuses
from devhost.telemetry.metrics import Metrics

from .api import api_pb2 as pb
from .kubelet_socket import Identity, KubeletSocket
from .rivals import Answers, Instances, Rivals
from .server import PluginServer, register_request

log = get(__name__)

FRESH = 0.02
"""Seconds for which a step relies on a reading of the kubelet's directory: each socket that devhost makes
there wakes every resource."""

AT_ONCE = 3
"""How often a registration that was lost because another instance exited is made again without back-off,
until one has held for :attr:`KubeletTiming.steady`: two instances that keep restarting must slow down."""


_NO_CONNECTION = "failed to connect"
_CUT_OFF = ("Socket closed", "recvmsg:", "sendmsg:")
"""How gRPC's own messages begin if no connection was made, or if it was cut."""


class RegistrationState(StrEnum):
    """The state of a resource's registration."""

    WAITING = "waiting"
    """There is no kubelet.sock, or another plugin serves the resource."""
    REGISTERING = "registering"
    REGISTERED = "registered"
    DISPLACED = "displaced"
    """Another plugin registered the resource later: the kubelet uses that one."""
    LOST = "lost"
    """The kubelet refused or dropped the registration; it is tried again."""
    DRAINING = "draining"


@frozen
class RegistrationCondition:
    """The state of one resource's registration; ``last`` and ``since`` are wall-clock seconds.

    ``error`` is why it has not been registered since ``since``; empty if there was no error.
    """

    state: RegistrationState = RegistrationState.WAITING
    registrations: int = 0
    last: float | None = None
    error: str = ""
    since: float = 0.0


class _Claim(Enum):
    """Whether this process may register the resource, unless a :class:`_Rival` has it."""

    UNKNOWN = auto()
    """The kubelet has not shown yet whether another plugin has it."""
    FREE = auto()
    """The kubelet lists no device of it, and it has not been registered since."""
    OURS = auto()
    """No other plugin serves it, or it was taken over."""


@mutable
class _Rival:
    """Another plugin that has the resource at one kubelet, and the message about it.

    ``contested`` is whether ``takeOver`` has become true since.
    """

    message: str
    identity: Identity
    contested: bool = False


@mutable
class _Contest:
    """Step: asks one kubelet whether another plugin has the resource; times are monotonic."""

    identity: Identity
    returning: float
    """Until when a plugin that had the resource before may register it again."""
    checked: float
    """When another plugin was last known to have it; at first, when the question began."""
    suspected: bool
    """Whether another plugin was known to have it. What is listed once may be of one that has just exited."""
    asked: float | None = None
    """When the question was asked that is not answered yet."""
    again: float = -math.inf
    """When to check again."""


@mutable
class _Serving:
    """Step: the resource is served on a fresh socket, and the kubelet is asked to register it."""

    server: PluginServer
    identity: Identity
    began: float
    """When the server began; monotonic seconds."""
    beside: frozenset[str]
    """Sockets of other instances that served the resource at the last check."""


@mutable
class _Registered(_Serving):
    """Step: Register has succeeded, at ``since`` in monotonic seconds.

    It is shown as REGISTERED, or as DISPLACED once a :class:`_Rival` has the resource.
    """

    since: float
    answers: Answers
    uncontested: bool
    """Whether the kubelet listed no device of the resource right before."""
    taker: Path | None = None
    """The socket of the plugin that has taken the resource over."""


@mutable
class _Pause:
    """Step: a back-off after a registration was lost; ends early if there is a different kubelet."""

    identity: Identity
    until: float
    beside: frozenset[str]


class Registration:
    """Keeps one resource registered for as long as :meth:`run` runs.

    Each pass continues from the present step: ``None`` while there is no kubelet that can be used, then
    :class:`_Contest`, :class:`_Serving` and :class:`_Registered`. After a loss it is :class:`_Pause`, unless
    the registration had held for long, and then the first again. ``changed`` is called when the condition or
    the number of streams has changed. ``clock`` is that of ``rivals``.
    """

    def __init__(
        self,
        resource: Allocator,
        kubelet: KubeletSocket,
        rivals: Rivals,
        metrics: Metrics,
        changed: Callable[[], None],
        *,
        take_over: bool = False,
        timing: KubeletTiming = KUBELET,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self.condition = RegistrationCondition()
        self._resource = resource
        self._kubelet = kubelet
        self._metrics = metrics
        self._changed = changed
        self._stopping = False
        self._timing = timing
        self._clock = clock
        self._loop = Reconciler(self._reconcile, clock=clock)
        self._backoff = timing.backoff(*timing.back_off)
        self._refused = timing.backoff(*timing.refused)
        self._instances = Instances(kubelet, resource.name, timing.start)
        self._at_once = 0
        self._loss = Incident()
        self._behind: list[PluginServer] = []
        self._rivals = rivals
        self._take_over = take_over
        self._owner: _Claim | _Rival = _Claim.UNKNOWN
        self._step: _Contest | _Serving | _Pause | None = None

    @property
    def server(self) -> PluginServer | None:
        """The server of the registration that holds, or that is being made."""
        return self._step.server if isinstance(self._step, _Serving) else None

    @property
    def streams(self) -> int:
        """Open list streams; readiness needs at least one."""
        return self.server.streams if self.server else 0

    @property
    def up_to_date(self) -> bool:
        """Whether every open list stream has sent the newest list; also while there is none."""
        servers = [*self._behind, *([self.server] if self.server else [])]
        return all(server.up_to_date for server in servers)

    @property
    def serving(self) -> Path | None:
        """The socket that is registered; ``None`` while none is."""
        return self._step.server.path if isinstance(self._step, _Registered) else None

    @property
    def yields(self) -> bool:
        """Whether another plugin has the resource, so that a missing list stream is no fault."""
        return isinstance(self._owner, _Rival) and self._kubelet.identity is not None

    def follow(self, take_over: bool) -> None:
        """The entry's ``takeOver`` has changed. If it is true now, the resource is also taken back."""
        self._take_over = take_over
        if isinstance(self._owner, _Rival):
            self._owner.contested = take_over
        self._loop.wake()

    async def run(self) -> None:
        """Registers, serves, and registers again after each loss, until :meth:`stop` or :meth:`drain`."""
        ends = [source.subscribe(self._loop.wake) for source in (self._kubelet, self._rivals)]
        try:
            await self._loop.run()
        finally:
            try:
                await self._withdraw()
            finally:
                for end in ends:
                    end()

    def rest(self) -> None:
        """From now on it is no failure that another devhost registers the resource."""
        self._stopping = True

    def stop(self) -> None:
        """Ends the streams without an empty list, so that the kubelet keeps the number of devices."""
        self._stopping = True
        self._loop.stop()

    async def drain(self) -> None:
        """Sends the kubelet an empty list, then stops: the resource leaves the configuration."""
        self._set(RegistrationState.DRAINING)
        self._resource.inventory.clear()
        if self.server is not None:
            await self.server.drained(self._timing.drain)
        self.stop()

    async def _reconcile(self) -> float:
        """Takes the next step; returns the seconds until the one after it, unless it is woken before."""
        # the watch may be late, and a directory that hangs must not stop the event loop in what follows
        if not await self._kubelet.look(FRESH) or self._loop.stopped:
            return self._timing.poll
        step = self._step
        if not isinstance(step, _Registered):
            # after a loss, wait before the next try
            if isinstance(step, _Pause):
                if (wait := self._until_retry(step)) is not None:
                    return wait
                self._instances.end()
            identity = self._kubelet.identity
            if identity is None:  # wait for a kubelet
                self._step = None
                self._refused.reset()
                self._set(RegistrationState.WAITING)
                return math.inf
            # once for each kubelet: wait until its socket can be used
            if not isinstance(step, _Contest) or step.identity != identity:
                self._step = None
                if (wait := self._until_reachable(identity)) is not None:
                    return wait
                self._step = step = self._contested(identity)
            # leave the resource to another plugin that has it, unless it is known to be ours
            unclaimed = self._rival or self._owner is _Claim.UNKNOWN
            if unclaimed and (wait := self._until_free(step)) is not None:
                return wait
        try:
            if isinstance(step, _Registered):
                return self._until_next_check(step)
            await self._register(step.identity)
            return self._timing.stream  # the list stream, or a change in the directory, ends this wait
        except DevhostError as error:  # refused or lost: no later step continues it
            self._failed(str(error))
        if ended := await self._withdraw():
            self._back_off(ended)
        return 0.0

    def _until_retry(self, pause: _Pause) -> float | None:
        """Seconds until the back-off ends; ``None`` if it is over.

        A different kubelet ends it. So does the end of another instance: the kubelet dropped both
        registrations together.
        """
        left = pause.until - self._clock.time()
        if left > 0:
            if self._kubelet.identity not in (pause.identity, None):
                self._backoff.reset()
            elif self._at_once < AT_ONCE and self._instances.gone(pause.beside):
                self._at_once += 1
            else:
                return left
        return None

    def _back_off(self, ended: _Serving) -> None:
        """Sets the pause before the next registration, unless this one has held for long."""
        now = self._clock.time()
        if now - ended.began > self._timing.steady:
            self._backoff.reset()
            self._at_once = 0
            self._instances.end()
        else:
            self._step = _Pause(ended.identity, now + self._backoff.delay(), ended.beside)

    def _until_reachable(self, identity: Identity) -> float | None:
        """Seconds until the kubelet's socket is checked again; ``None`` once a process listens on it."""
        if 0 < (age := time.time() - identity[2] / 1e9) < self._timing.settle:
            # the kubelet may still set its mode, which looks like another socket
            return self._timing.settle - age
        if refuses(self._kubelet.path):
            self._metrics.add("registration_failures_total", self._resource.name)
            self._failed(f"no process listens on {self._kubelet.path}")
            return self._refused.delay()
        self._refused.reset()
        return None

    def _contested(self, identity: Identity) -> _Contest:
        """Begins to find out whether another plugin has the resource."""
        now, rival = self._clock.time(), self._rival
        restarted = rival is not None and rival.identity != identity
        returning = now + self._timing.kubelet_start if restarted else now
        return _Contest(identity, returning, checked=now, suspected=rival is not None)

    def _until_free(self, contest: _Contest) -> float | None:
        """Seconds until the next check; ``None`` once this process may register the resource.

        A plugin that had the resource when this process started, or that took it over, keeps it until it has
        exited. After a restart of the kubelet it may register first. An older devhost is no such plugin: this
        process replaces it.
        """
        now, rival = self._clock.time(), self._rival
        if now < contest.again and not (rival and rival.contested):
            return contest.again - now
        if rival:
            rival.contested = False
        found = self._rival_now(contest)
        if found is None:
            return math.inf
        displacer, known = found
        if displacer and self._take_over:
            log.info("taking the resource over", resource=self._resource.name, reason=displacer)
            self._owner = _Claim.OURS
            return None
        if displacer:
            contest.checked = now
        else:
            quiet = contest.checked if known else contest.checked + self._timing.kubelet_start
            if rival is None or now > max(contest.returning, quiet):
                self._owner = _Claim.FREE if known else _Claim.OURS
                return None
        if displacer and contest.suspected:
            self._owner = _Rival(displacer, contest.identity)
            self._report_error(displacer)
            self._set(RegistrationState.WAITING)
        contest.suspected = True
        contest.again = now + self._timing.ask * (1 + random.random() / 2)
        return contest.again - now

    @property
    def _rival(self) -> _Rival | None:
        return self._owner if isinstance(self._owner, _Rival) else None

    def _rival_now(self, contest: _Contest) -> tuple[str, bool] | None:
        """The message about another plugin that has the resource, or an empty text; ``None`` while asking.

        The second value is whether that is known: the kubelet may not answer, and no socket may show it.
        """
        if live := self._instances.live():
            contest.asked = None
            return (self._instances.displaced_by(live[0]) if self._rival else ""), True
        if contest.asked is None:
            contest.asked = self._clock.time()
            self._rivals.ask()
        if self._rivals.asked < contest.asked:
            return None
        contest.asked = None
        listed = self._rivals.listed
        if listed is None:
            return "", False
        if not listed.get(self._resource.name):
            return "", True
        others = self._rivals.named()
        if not others and self._instances.stem in self._kubelet.left_behind:
            return "", True  # a kubelet that missed the end of a killed devhost lists its devices forever
        where = f": {others}" if others else ""
        return (
            f"another device plugin serves it on this node{where}; remove that plugin, or set takeOver: true",
            True,
        )

    async def _register(self, identity: Identity) -> None:
        """Serves the resource on a fresh socket and registers it, or raises ``DevhostError``."""
        began = self._clock.time()
        server = PluginServer(
            self._resource, self._kubelet.directory, self._metrics, self._server_changed, timing=self._timing
        )
        self._step = _Serving(server, identity, began, frozenset())
        self._instances.begin(server.path)
        self._set(RegistrationState.REGISTERING)
        await server.start()
        self._clear()
        request = register_request(server.path.name, self._resource.name, prepares=self._resource.prepares)
        late = self._clock.call_at(
            self._clock.time() + self._timing.unanswered, lambda: self._report_error(self._unanswered())
        )
        try:
            async with channel(self._kubelet.path) as connection:
                register = connection.unary_unary(
                    "/v1beta1.Registration/Register",
                    pb.RegisterRequest.SerializeToString,
                    pb.Empty.FromString,
                )
                await register(request, timeout=self._timing.register)
        except grpc.aio.AioRpcError as error:
            self._metrics.add("registration_failures_total", self._resource.name)
            raise DevhostError(self._refusal(error)) from error
        finally:
            late.cancel()
        count = self.condition.registrations + 1
        self.condition = replace(self.condition, registrations=count, last=time.time(), error="")
        self._loss.over()
        self._metrics.add("registrations_total", self._resource.name)
        self._set(RegistrationState.REGISTERED)
        log.info(
            "registered", resource=self._resource.name, devices=len(self._resource.inventory.snapshot.entries)
        )
        now, uncontested = self._clock.time(), self._owner is _Claim.FREE
        answers = Answers(self._resource, self._rivals, since=now)
        self._step = served = _Registered(server, identity, began, frozenset(), now, answers, uncontested)
        self._owner = _Claim.OURS
        # a kubelet that came between the reading before Register and Register has answered it
        await self._kubelet.look()
        served.identity = self._kubelet.identity or identity

    async def _withdraw(self) -> _Serving | None:
        """Ends the server, if one runs; returns the step that this ends."""
        ended = self._step
        if not isinstance(ended, _Serving):
            return None
        self._step = None
        self._behind.append(ended.server)
        await ended.server.stop()
        self._clear()
        return ended

    def _clear(self) -> None:
        """Removes the sockets of earlier servers: the directory may have been read-only before."""
        self._behind = [server for server in self._behind if not server.unlink()]

    def _until_next_check(self, served: _Registered) -> float:
        """Seconds until the next check; raises ``DevhostError`` with the reason if it is lost."""
        now = self._clock.time()
        server, answers, instances, rival = served.server, served.answers, self._instances, self._rival
        # other devhosts with the resource: which have come, and which have exited
        served.beside = frozenset(instances.older | instances.newer)
        left_again = instances.gone(frozenset(instances.newer))
        instances.newer -= left_again
        if left_again and not instances.newer:
            # A kubelet up to 1.36 disconnects by name: it has dropped this registration too.
            self._owner = _Claim.OURS
            raise DevhostError(f"another plugin registered this resource, then exited ({min(left_again)})")
        instances.sort(settled=now - served.since > self._timing.race)
        # the entry has changed: take the resource back from the plugin that took it
        if rival and rival.contested:
            log.info("taking the resource over", resource=self._resource.name, reason=rival.message)
            self._owner = _Claim.OURS
            raise DevhostError("it is taken back: its entry now has takeOver: true")
        # what shows by itself that the kubelet has dropped the registration
        if server.lost:
            raise DevhostError("the kubelet closed the list stream")
        if gone(server.path):
            raise DevhostError(f"socket {server.path.name} was removed")
        if self._kubelet.identity not in (served.identity, None):
            raise DevhostError("there is a new kubelet")
        unopened = math.inf if server.opened else served.since + self._timing.stream - now
        if unopened <= 0:
            raise DevhostError("the kubelet accepted the registration but opened no list stream")
        # what the kubelet lists shows nothing while another devhost lists the same devices
        if answers.pending() and not instances.live():
            answers.apply()
        # who has the resource now
        if instances.newer:
            if not rival:
                newest = max(instances.newer, key=instances.born)
                self._displaced(served, instances.displaced_by(newest))
        elif rival:
            if dead(served.taker) if served.taker else not answers.foreign:
                self._owner = _Claim.OURS
                raise DevhostError("the plugin that had taken it over has exited")
        elif answers.foreign:
            self._foreign(served)
        elif answers.dropped:
            raise DevhostError("the kubelet dropped the registration without closing the list stream")
        # ask again as long as an answer may change that
        if answers.doubtful or (self._rival and not instances.newer):
            self._rivals.ask(self._timing.ask * (1 + random.random() / 2))
        wait = self._timing.poll if instances.newer else math.inf
        if instances.starting:
            wait = self._timing.settle
        return min(wait, unopened)

    def _foreign(self, served: _Registered) -> None:
        """Handles devices of another plugin, which registered before this process or after it."""
        taker, born = self._rivals.newest(), self._instances.born
        served.taker = taker
        if served.uncontested or (taker and born(taker.name) > born(served.server.path.name)):
            where = f": {described(taker)}" if taker else ""
            text = f"another device plugin registered it after devhost{where}; "
            self._displaced(served, f"{text}remove that plugin, or this resource")
        else:
            # the plugin that had it before still sends lists, which replace those of this process
            served.answers.foreign = False
            served.server.resend()

    def _displaced(self, served: _Registered, displacer: str) -> None:
        """The kubelet uses another plugin now. It would take both lists, so this process stops sending."""
        served.server.hold()
        self._owner = _Rival(displacer, served.identity)
        self._report_error(displacer, taken=True)
        self._set(RegistrationState.DISPLACED)

    def _server_changed(self) -> None:
        self._loop.wake()
        self._changed()

    def _failed(self, message: str) -> None:
        if self._stopping:
            return
        self._report_error(message)
        self._set(RegistrationState.LOST)

    def _report_error(self, message: str, *, taken: bool = False) -> None:
        """Reports why it is not registered, or why the registration has no effect."""
        if self._stopping:
            return
        if not self._loss:
            self.condition = replace(self.condition, since=time.time())
        if self._loss.news(message):
            if taken:
                log.warning(
                    "resource taken over by another plugin", resource=self._resource.name, reason=message
                )
            else:
                log.warning("not registered", resource=self._resource.name, reason=message)
        if self.condition.error != message:
            self.condition = replace(self.condition, error=message)
            self._changed()

    def _set(self, state: RegistrationState) -> None:
        if self.condition.state is RegistrationState.DRAINING or self.condition.state is state:
            return
        self.condition = replace(self.condition, state=state)
        self._changed()

    def _unanswered(self) -> str:
        within = min(self._timing.unanswered, self._timing.register)
        return f"the kubelet has not answered Register within {within:g} s"

    def _refusal(self, error: grpc.aio.AioRpcError) -> str:
        """Why Register failed, as one line with the kubelet's own message."""
        code, details = error.code(), excerpt(error.details() or "")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._unanswered()
        if code is grpc.StatusCode.UNAVAILABLE and os.strerror(errno.EMFILE) in details:
            return str(exhausted(OSError(errno.EMFILE, "")))
        if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NO_CONNECTION):
            return f"no process answers on the kubelet's socket: {details.rpartition(': ')[2]}"
        if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_CUT_OFF):
            return f"the kubelet disconnected during Register: {details}"
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return f"the kubelet does not serve Register of v1beta1: {details}"
        return f"the kubelet did not register it: {details or f'it gave no reason ({code.name})'}"
