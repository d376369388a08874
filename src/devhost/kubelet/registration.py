"""Registration: watch kubelet.sock, register, notice the loss, register again.

The rules, each from a failure seen in the field (``docs/architecture.md`` tells them at length):

* serve before Register: a kubelet since 1.25 dials back and asks for options inside the call;
* a fresh server on a fresh path for each registration, and never two at once for one resource;
* a list stream that ended without our doing means "not registered any more": the kubelet never
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
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import grpc
import grpc.aio

from devhost.allocation.allocator import Allocator
from devhost.backend.backoff import Backoff
from devhost.backend.descriptors import exhausted
from devhost.backend.errors import DevhostError
from devhost.backend.incident import Incident
from devhost.discovery.uevents import DirectoryWatch
from devhost.telemetry.log import get
from devhost.telemetry.metrics import Metrics

from . import messages
from .api import KUBELET_SOCKET, api_pb2_grpc
from .channel import local
from .rivals import Rivals
from .server import SOCKET_PREFIX, PluginServer, server_stem, socket_name
from .sockets import dead, described, gone, refuses

log = get(__name__)

POLL = 5.0
"""Seconds between looks at the directory when inotify says nothing."""

REGISTER_DEADLINE = 15.0
"""Seconds; the kubelet itself takes up to 10 to dial back, and a shorter deadline would cut that."""

UNANSWERED = 5.0
"""Seconds after which it is said that the kubelet has not answered; it may still do so."""

STREAM_DEADLINE = 10.0
"""Seconds after Register within which the kubelet must have opened the list stream."""

STEADY = 10.0
"""Seconds a registration must have held for its loss to be answered without back-off."""

AT_ONCE = 3
"""How often a registration that was lost because another instance left is made again without back-off, until
one has held for :data:`STEADY`: two instances that keep disturbing each other must slow down."""

ASK = 0.4
"""Seconds after which it is asked again whether another plugin still serves the resource; with up to a half
of jitter."""

SURE = 3
"""How many answers in a row must lack the resource before it counts as dropped, and registers again."""

RETURN = 10.0
"""Seconds after a kubelet's start in which a plugin that served the resource before may register it first."""

RACE = 1.0
"""Seconds after a registration in which a socket that is seen for the first time may be older than ours."""

SETTLE = 0.1
"""Seconds a kubelet.sock must have been left alone before it is registered with."""

DRAIN = 2.0
"""Seconds a resource that goes away waits for its empty list to be sent."""

ABSENT = "kubelet.sock is absent: waiting for the kubelet"
"""Why nothing is registered where the kubelet's directory has no socket."""

NO_DIRECTORY = "the kubelet's directory does not exist: waiting for the kubelet"
"""Why nothing is where not even that is there."""

NOT_A_DIRECTORY = "the kubelet's directory is not a directory: something else is in its place"
"""Why nothing is where a file has its name."""

REMOVED = (
    "the kubelet's directory was removed, and this container still has the old one: it has to start anew"
)
"""Why nothing ever will be: whoever has a directory mounted never sees a later one of its name."""

Identity = tuple[int, int, int]


class State(StrEnum):
    """Where a resource stands with the kubelet."""

    WAITING = "waiting"
    """There is no kubelet.sock, or another plugin serves the resource."""
    REGISTERING = "registering"
    REGISTERED = "registered"
    DISPLACED = "displaced"
    """Another plugin registered the resource later: the kubelet asks that one."""
    LOST = "lost"
    """The kubelet refused or dropped us; the next try is under way."""
    DRAINING = "draining"


class KubeletSocket:
    """Watches the kubelet's directory for all resources at once: one inotify, whatever their number."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / KUBELET_SOCKET
        self.identity: Identity | None = None
        self.trouble = ""
        """Why there is no kubelet, in the words of the log; empty while its socket is there."""
        self.since = time.time()
        """Wall-clock seconds at which it went or came."""
        self.servers: Mapping[str, frozenset[str]] = {}
        """Names of the sockets in the directory that a devhost made, by resource (``server_stem``)."""
        self.left_behind: set[str] = set()
        """Of these resources (``server_stem``) an earlier devhost that was killed left a socket behind."""
        self._seen: tuple[Identity | None, Identity | None, Mapping[str, frozenset[str]]] | None = None
        self._subscribers: set[Callable[[], None]] = set()

    def usable(self) -> tuple[bool, str]:
        """Whether there is, or may yet be, a kubelet to hear of here; if not, why."""
        return (False, REMOVED) if self.trouble == REMOVED else (True, "")

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` when anything in the directory did; returns what ends that."""
        self._subscribers.add(changed)
        return lambda: self._subscribers.discard(changed)

    def look(self) -> None:
        """Reads what is there now, and tells the subscribers if it is something else than before."""
        self.identity = _identity(self.path)
        # always: two changes within one tick of the clock leave one time of change
        self.servers = self._list()
        seen = (self.identity, _identity(self.directory), self.servers)
        if seen == self._seen:
            return
        before, self._seen = self._seen, seen
        self._tell(before[0] if before else None)
        for subscriber in tuple(self._subscribers):
            subscriber()

    def _tell(self, before: Identity | None) -> None:
        """Logs that the kubelet went or came, once each."""
        known = self.trouble
        if self.identity is None:
            self.trouble = _absence(self.directory)
            if self.trouble != known:
                log.warning("no kubelet", dir=str(self.directory), reason=self.trouble)
        else:
            self.trouble = ""
            # whoever made it sets its mode, too: another time of change alone is no other socket to speak of
            if known or before is None or self.identity[:2] != before[:2]:
                log.info("kubelet socket found", path=str(self.path))
        if bool(known) != bool(self.trouble):
            self.since = time.time()

    def _list(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        try:
            names = os.listdir(self.directory)
        except OSError:
            return {}  # it is gone again, or may not be read; then there is nobody to know of
        for name in names:
            if name.startswith(SOCKET_PREFIX):
                found.setdefault(server_stem(name), set()).add(name)
        return {stem: frozenset(sockets) for stem, sockets in found.items()}

    async def run(self, blind: Callable[[str], None] = lambda reason: None) -> None:
        """Watches for ever. The directory may be absent, and may be replaced by another.

        Args:
            blind: see :class:`.DirectoryWatch`.
        """
        watch = DirectoryWatch(lambda: [self.directory, *_nearest(self.directory)], POLL, blind)
        async for _ in watch.changes():
            self.look()

    def sweep(self) -> None:
        """Removes sockets that an earlier devhost left behind; one that still answers is not touched."""
        for path in self.directory.glob(f"{SOCKET_PREFIX}*.sock"):
            if refuses(path):
                self.left_behind.add(server_stem(path.name))
                with suppress(OSError):
                    path.unlink()
                    log.info("removed a stale socket", path=str(path))


def _absence(directory: Path) -> str:
    """Why there is no kubelet.sock in it. A removed directory has no links any more (``stat(2)``)."""
    try:
        found = directory.stat()
        if not stat.S_ISDIR(found.st_mode):
            return NOT_A_DIRECTORY
        with suppress(FileNotFoundError):
            os.stat(directory / KUBELET_SOCKET)  # noqa: PTH116 - as _identity, which keeps the reason to itself
    except (FileNotFoundError, NotADirectoryError):
        return NO_DIRECTORY
    except OSError as error:
        return f"the kubelet's directory cannot be looked into: {error.strerror}"
    return ABSENT if found.st_nlink else REMOVED


@dataclass(slots=True)
class Standing:
    """What there is to say of one resource's registration; ``last`` and ``since`` are wall-clock seconds.

    ``error`` is why it is not registered, since ``since``; empty where nothing went wrong.
    """

    state: State = State.WAITING
    registrations: int = 0
    last: float | None = None
    error: str = ""
    since: float = 0.0


class Registration:
    """Keeps one resource registered for as long as :meth:`run` runs.

    Args:
        changed: called when the standing, or the number of streams, is another than before.
        rivals: what the kubelet says of other plugins.
        take_over: whether the resource may be taken from another plugin; :meth:`look_again` after a change.
    """

    def __init__(
        self,
        supply: Allocator,
        kubelet: KubeletSocket,
        metrics: Metrics,
        changed: Callable[[], None],
        rivals: Rivals,
        take_over: Callable[[], bool],
    ) -> None:
        self.standing = Standing()
        self.server: PluginServer | None = None
        self._supply = supply
        self._kubelet = kubelet
        self._metrics = metrics
        self._changed = changed
        self._stopping = False
        self._wake = asyncio.Event()
        self._backoff = Backoff(1.0, 30.0)
        self._refused = Backoff(0.05, 1.0)
        self._beside: frozenset[str] = frozenset()
        """Sockets of other instances that served the resource when the registration was lost."""
        self._at_once = 0
        self._loss = Incident()
        self._behind: list[PluginServer] = []
        self._over = False
        self._rivals = rivals
        self._take_over = take_over
        self._ours = False
        """Whether the resource is this process's to register: nobody else served it, or it was taken over."""
        self._rival = ""
        """The plugin that has the resource instead, as a message; empty where none is known."""
        self._rival_at: Identity | None = None
        self._older: set[str] = set()
        self._newer: set[str] = set()
        self._wanted_back = False
        self._uncontested = False
        """Whether the kubelet listed nobody's devices of the resource right before it is registered."""

    @property
    def streams(self) -> int:
        """List streams the kubelet holds open now; readiness wants at least one."""
        return self.server.streams if self.server else 0

    @property
    def serving(self) -> Path | None:
        """The socket on which the kubelet knows it; ``None`` while it is not registered."""
        registered = self.standing.state in (State.REGISTERED, State.DISPLACED)
        return self.server.path if self.server and registered else None

    @property
    def yields(self) -> bool:
        """Whether another plugin has the resource, so that this one rightly has no list stream."""
        return bool(self._rival) and self._kubelet.identity is not None

    def look_again(self) -> None:
        """The entry says something else of ``takeOver``. Saying it now takes the resource back, too."""
        self._wanted_back = self._take_over() and bool(self._rival)
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
                    self._supply, self._kubelet.directory, self._metrics, self._server_changed
                )
                self.server, self._beside = server, frozenset()
                self._older, self._newer = set(self._others(server)), set()
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
                await self._pause(server, identity, held=time.monotonic() - began)
        finally:
            self._over = True
            unsubscribe()
            forget()

    def _clear(self) -> None:
        """Removes the sockets that are served no more: the directory may not have let us before."""
        self._behind = [server for server in self._behind if not server.unlink()]

    def stop(self) -> None:
        """Ends the streams and leaves, keeping the kubelet's count: this process will be back."""
        self._stopping = True
        self._wake.set()

    async def drain(self) -> None:
        """Tells the kubelet that no device is left, then leaves: the resource itself goes away."""
        self._set(State.DRAINING)
        self._supply.inventory.clear()
        if self.server is not None:
            await self.server.drained(DRAIN)
        self.stop()

    async def _kubelet_there(self) -> Identity | None:
        """The kubelet's socket once somebody listens on it; ``None`` when this side stops."""
        self._refused.reset()
        while not self._stopping:
            identity = self._kubelet.identity
            if identity is None:
                self._set(State.WAITING)
                await self._sleep(None)
            elif (age := time.time() - identity[2] / 1e9) < SETTLE and age > 0:
                # Whoever made it may still set its mode, which looks like another socket.
                await self._sleep(SETTLE - age)
                self._kubelet.look()
            elif refuses(self._kubelet.path):
                self._metrics.registration_failed(self._supply.name)
                self._failed(f"nobody listens on {self._kubelet.path}")
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
        heard = loop.time()
        returning = heard + RETURN if self._rival and self._rival_at != identity else heard
        suspected = bool(self._rival)
        while not self._stopping and self._kubelet.identity == identity:
            rival, known = await self._rival_now()
            if rival and self._take_over():
                log.info("taking the resource over", resource=self._supply.name, reason=rival)
                return self._claim()
            if rival:
                heard = loop.time()
            elif not self._rival or loop.time() > max(returning, heard if known else heard + RETURN):
                self._uncontested = known
                return self._claim()
            if rival and suspected:
                self._rival, self._rival_at = rival, identity
                self._unwell(rival)
                self._set(State.WAITING)
            suspected = True  # what is listed may be a plugin's that has just ended: it is asked twice
            again = loop.time() + ASK * (1 + random.random() / 2)
            while self._kubelet.identity == identity and not (self._stopping or self._wanted_back):
                if (left := again - loop.time()) <= 0:
                    break
                await self._sleep(left)
            self._wanted_back = False
        return False

    def _claim(self) -> bool:
        self._ours, self._rival, self._wanted_back = True, "", False
        return True

    async def _rival_now(self) -> tuple[str, bool]:
        """Which other plugin has the resource; empty if none.

        Second, whether the kubelet said it. Where it does not answer, and no socket tells, nothing is known.
        """
        if live := self._live():
            return (self._by_devhost(live[0]) if self._rival else ""), True
        now = asyncio.get_running_loop().time()
        self._rivals.ask()
        while self._rivals.asked < now and not self._stopping:
            await self._sleep(None)
        listed = self._rivals.listed
        if listed is None:
            return "", False
        if not listed.get(self._supply.name):
            return "", True
        self._kubelet.look()  # a devhost may have come in between
        if live := self._live():
            return (self._by_devhost(live[0]) if self._rival else ""), True
        others = self._rivals.named()
        stem = server_stem(socket_name(self._supply.name))
        if not others and stem in self._kubelet.left_behind:
            return "", True  # a kubelet that missed the end of a killed devhost lists its devices for good
        where = f": {others}" if others else ""
        return (
            f"another device plugin serves it on this node{where}; remove that plugin, or set takeOver: true",
            True,
        )

    def _live(self) -> list[str]:
        """Sockets on which other devhosts serve the resource, while this one has none."""
        stem = server_stem(socket_name(self._supply.name))
        names = self._kubelet.servers.get(stem, frozenset())
        return sorted(name for name in names if not dead(self._kubelet.directory / name))

    def _by_devhost(self, name: str) -> str:
        return (
            f"another devhost registered it after this one: {described(self._kubelet.directory / name)}; "
            "run only one devhost for this resource on the node"
        )

    async def _register(self, server: PluginServer) -> None:
        self._set(State.REGISTERING)
        await server.start()
        self._clear()
        request = messages.registration(server.path.name, self._supply.name, prepares=self._supply.prepares)
        late = asyncio.get_running_loop().call_later(UNANSWERED, self._unwell, _unanswered())
        try:
            async with local(self._kubelet.path) as channel:
                await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_DEADLINE)
        except grpc.aio.AioRpcError as error:
            self._metrics.registration_failed(self._supply.name)
            raise DevhostError(_refusal(error)) from error
        finally:
            late.cancel()
        self.standing.registrations += 1
        self.standing.last = time.time()
        self.standing.error = ""
        self._loss.over()
        self._metrics.registered(self._supply.name)
        self._set(State.REGISTERED)
        log.info(
            "registered", resource=self._supply.name, devices=len(self._supply.inventory.snapshot.entries)
        )

    async def _until_lost(self, server: PluginServer, identity: Identity) -> None:
        """Returns when this side stops.

        Raises:
            DevhostError: the registration does not hold any more, and why.
        """
        registered = time.monotonic()
        open_by = registered + STREAM_DEADLINE
        answers = _Answers(self._supply, self._rivals)
        uncontested, self._uncontested = self._uncontested, False
        taker: Path | None = None
        while not self._stopping:
            others = self._others(server)
            self._beside = frozenset(self._older | self._newer)
            left_again = self._left(frozenset(self._newer), others)
            self._newer -= left_again
            if left_again and not self._newer:
                # A kubelet up to 1.36 disconnects by name: with them it has dropped us, and says nothing.
                self._claim()
                raise DevhostError(
                    f"another plugin registered this resource, then exited ({min(left_again)})"
                )
            self._sort(server, others, settled=time.monotonic() - registered > RACE)
            if self._rival and self._wanted_back:
                log.info("taking the resource over", resource=self._supply.name, reason=self._rival)
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
            if answers.news() and all(dead(self._kubelet.directory / name) for name in others):
                answers.hear()
            if self._newer:
                if not self._rival:
                    self._displaced(server, self._by_devhost(max(self._newer, key=self._born)), identity)
            elif self._rival:
                if dead(taker) if taker else not answers.foreign:
                    self._claim()
                    raise DevhostError("the plugin that had taken it over is gone")
            elif answers.foreign:
                taker = self._rivals.newest()
                if uncontested or (taker and self._born(taker.name) > self._born(server.path.name)):
                    where = f": {described(taker)}" if taker else ""
                    text = f"another device plugin registered it after devhost{where}; "
                    self._displaced(server, f"{text}remove that plugin, or this resource", identity)
                else:
                    # the plugin that had it before still sends lists, and each replaces ours
                    answers.foreign = False
                    server.resend()
            elif answers.dropped:
                raise DevhostError("the kubelet dropped it without closing the list stream")
            if answers.doubtful or (self._rival and not self._newer):
                self._rivals.ask(ASK * (1 + random.random() / 2))
            await self._sleep((POLL if self._newer else None) if server.opened else left)

    def _displaced(self, server: PluginServer, rival: str, identity: Identity) -> None:
        """The kubelet asks another plugin from now on; both lists would count, so this side sends no more."""
        server.hold()
        self._ours, self._rival, self._rival_at = False, rival, identity
        self._unwell(rival, taken=True)
        self._set(State.DISPLACED)

    def _sort(self, server: PluginServer, others: frozenset[str], *, settled: bool) -> None:
        """Which of the other devhosts came later than this server."""
        for name in others - self._older - self._newer:
            later = settled or self._born(name) > self._born(server.path.name)
            (self._newer if later else self._older).add(name)

    def _born(self, name: str) -> tuple[int, str]:
        """When a socket was made; the name decides between those of one tick of the clock."""
        try:
            return os.stat(self._kubelet.directory / name).st_mtime_ns, name  # noqa: PTH116 - as _identity
        except OSError:
            return 0, name

    def _others(self, server: PluginServer) -> frozenset[str]:
        """Sockets of other devhosts that serve this resource, as during a rolling update."""
        return self._kubelet.servers.get(server_stem(server.path.name), frozenset()) - {server.path.name}

    def _left(self, known: frozenset[str], others: frozenset[str]) -> frozenset[str]:
        """Those of the known sockets that are gone, or on which no process listens."""
        return known - others | {name for name in known & others if dead(self._kubelet.directory / name)}

    async def _pause(self, server: PluginServer, identity: Identity, held: float) -> None:
        """Backs off after a loss, but no longer than until there is another kubelet.

        There is no back-off where another instance has left: the kubelet dropped this registration with that
        instance's, whichever of the two came first.

        Args:
            held: seconds for which the registration held.
        """
        if held > STEADY:
            self._backoff.reset()
            self._at_once = 0
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + self._backoff.delay()
        while not self._stopping and (left := end - loop.time()) > 0:
            if self._kubelet.identity not in (identity, None):
                self._backoff.reset()
                return
            if self._at_once < AT_ONCE and self._left(self._beside, self._others(server)):
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
            self._metrics.streams(self._supply.name, self.streams)
        self._wake.set()
        self._changed()

    def _failed(self, message: str) -> None:
        if self._stopping:
            return
        self._unwell(message)
        self._set(State.LOST)

    def _unwell(self, message: str, *, taken: bool = False) -> None:
        """Says why it is not registered, or has no effect."""
        if self._stopping:
            return
        if not self._loss:
            self.standing.since = time.time()
        if self._loss.news(message):
            if taken:
                log.warning(
                    "resource taken over by another plugin", resource=self._supply.name, reason=message
                )
            else:
                log.warning("not registered", resource=self._supply.name, reason=message)
        if self.standing.error != message:
            self.standing.error = message
            self._changed()

    def _set(self, state: State) -> None:
        if self.standing.state is State.DRAINING or self.standing.state is state:
            return
        self.standing.state = state
        self._changed()


class _Answers:
    """What the kubelet's answers since a registration say of it; each conclusion takes more than one."""

    def __init__(self, supply: Allocator, rivals: Rivals) -> None:
        self.foreign = False
        """Whether the kubelet has healthy devices of the resource that are not in its list."""
        self.dropped = False
        """Whether it had the devices of the list, and now has none, though the list has healthy ones."""
        self._supply = supply
        self._rivals = rivals
        self._heard = asyncio.get_running_loop().time()
        self._strange: frozenset[str] = frozenset()
        self._known = False
        self._missing = 0

    @property
    def doubtful(self) -> bool:
        """Whether one more answer would tell more."""
        return bool((self._strange and not self.foreign) or (self._missing and not self.dropped))

    def news(self) -> bool:
        """Whether there is an answer to a question that was asked since the last one heard."""
        return self._rivals.asked > self._heard

    def hear(self) -> None:
        """Draws the conclusions from the newest answer."""
        self._heard = self._rivals.asked
        if self._rivals.listed is None:
            return
        snapshot = self._supply.inventory.snapshot
        listed = self._rivals.listed.get(self._supply.name, frozenset())
        strange = listed - snapshot.entries.keys()
        # twice the same: a list that devhost has just sent may not have arrived yet
        self.foreign = bool(strange & self._strange)
        self._strange = strange
        self._known = self._known or bool(listed & snapshot.entries.keys())
        self._missing = self._missing + 1 if self._known and snapshot.healthy and not listed else 0
        self.dropped = self._missing >= SURE


def _identity(path: Path) -> Identity | None:
    try:
        stat = os.stat(path)  # noqa: PTH116 - one call, no Path object per poll
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns


def _unanswered() -> str:
    return f"the kubelet has not answered Register within {min(UNANSWERED, REGISTER_DEADLINE):g} s"


_NO_CONNECTION = "failed to connect"
_CUT_OFF = ("Socket closed", "recvmsg:", "sendmsg:")
"""How gRPC's own words begin where nobody could be asked, and where nobody answered; a kubelet has others."""


def _refusal(error: grpc.aio.AioRpcError) -> str:
    """Why Register failed, as one line with the kubelet's own words."""
    code, details = error.code(), " ".join((error.details() or "").split())
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return _unanswered()
    if code is grpc.StatusCode.UNAVAILABLE and os.strerror(errno.EMFILE) in details:
        return str(exhausted(OSError(errno.EMFILE, "")))
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NO_CONNECTION):
        return f"nobody answers on the kubelet's socket: {details.rpartition(': ')[2]}"
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_CUT_OFF):
        return f"the kubelet went away during Register: {details}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"the kubelet does not know Register of v1beta1: {details}"
    return f"the kubelet did not register it: {details or f'it gave no reason ({code.name})'}"


def _nearest(directory: Path) -> list[Path]:
    """The nearest ancestor that exists: where a missing directory will show up."""
    # not Path.is_dir, which raises where a directory above may not be searched
    return [next((parent for parent in directory.parents if os.path.isdir(parent)), Path("/"))]  # noqa: PTH112
