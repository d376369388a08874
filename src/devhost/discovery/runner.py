"""A running backend: the object, its context, its threads, and how closely its devices are connected.

Every exception of a backend becomes a :class:`BackendError` with the backend's name.

``Backend.links`` is never called while a kubelet waits: how closely devices are connected is cached after
scans. A call that fails or hangs only affects affinity.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import combinations, islice
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast

from devhost.backend import AllocateRequest, Backend, Event, MissingDriver, NoOptions, Offered, Usage
from devhost.backend.backoff import Backoff
from devhost.backend.base import overrides
from devhost.backend.errors import (
    AllocationError,
    BackendError,
    BackendTimeout,
    NotYet,
    cut,
    one_line,
    printable,
    words,
)
from devhost.backend.frozen import frozen
from devhost.backend.model import Device, DeviceNode, Edits, Health, Mount, sound_health, sound_reason
from devhost.backend.sysfs import prefix_of
from devhost.planning.give import CDI_NAME
from devhost.planning.naming import variable_problem
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler
from devhost.runtime.worker import Existence, WorkerThread

from .health import is_health
from .validation import missing_driver_flaw

log = get(__name__)

MOST_LINKED = 64
"""Devices of a backend whose links are read (2016 pairs); with more devices, preferences ignore links."""

PAIRS = 128
"""Pairs per call, so that the deadline of a call applies to a known amount of work."""

Pair = tuple[Device, Device]


class LinkCache:
    """Keeps :attr:`links` up to date with the devices. ``ask`` returns the closeness of each pair."""

    def __init__(
        self,
        backend: str,
        ask: Callable[[Sequence[Pair]], Awaitable[Sequence[int]]],
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self.links: Mapping[frozenset[str], int] = {}
        """The closeness of pairs of devices by their ids. Replaced whole, never changed."""
        self._ask = ask
        self._known: dict[tuple[str, str], tuple[Device, Device, int]] = {}
        self._devices: Mapping[str, Device] = {}
        self._read: Mapping[str, Device] = self._devices
        self.failures = FailureLog(
            log,
            "links between devices are not known",
            "links between devices are known again",
            backend=backend,
        )
        self._refreshes = Reconciler(
            self.refresh,
            backoff=Backoff(5.0, 600.0),
            failures=self.failures,
            first=None,
            wakeable=False,
            clock=clock,
        )
        self.run = self._refreshes.run
        """Reads links whenever there are new pairs; never returns by itself."""

    @property
    def is_settled(self) -> bool:
        """Whether the links of the devices that exist now are known, or could not be read."""
        return self._read is self._devices

    def update(self, devices: Mapping[str, Device]) -> None:
        """Sets the devices that exist now; unchanged ones are the same objects."""
        if devices is not self._devices:
            self._devices = devices
            self._refreshes.wake()

    async def refresh(self) -> None:
        """Reads the links of pairs that are not known. After a ``BackendError``, known links are kept."""
        devices = self._devices
        if len(devices) > MOST_LINKED:
            self._keep({}, devices)
            return
        known: dict[tuple[str, str], tuple[Device, Device, int]] = {}
        missing: list[Pair] = []
        for a, b in combinations(sorted(devices.values(), key=lambda device: device.id), 2):
            before = self._known.get((a.id, b.id))
            if before is not None and before[0] is a and before[1] is b:
                known[a.id, b.id] = before
            else:
                missing.append((a, b))
        pairs = iter(missing)
        try:
            while some := list(islice(pairs, PAIRS)):
                for (a, b), closeness in zip(some, await self._ask(some), strict=True):
                    known[a.id, b.id] = (a, b, closeness)
        finally:
            self._keep(known, devices)

    def _keep(
        self, known: dict[tuple[str, str], tuple[Device, Device, int]], read: Mapping[str, Device]
    ) -> None:
        self._known, self._read = known, read
        self.links = {frozenset(names): closeness for names, (_, _, closeness) in known.items() if closeness}


P = ParamSpec("P")
T = TypeVar("T")

Lane = Literal["discover", "paths", "probe", "serve", "links", "usage"]
"""A thread of a backend."""

LANES: Mapping[Lane, str] = {
    "discover": "when looking for devices",
    "paths": "when looking for host paths",
    "probe": "when probing devices",
    "serve": "when serving a container",
    "links": "when asked for links or labels",
    "usage": "when asked how much is in use",
}
"""The threads of a backend, each with the end of the message about a call that hangs."""

RELEASE_DEADLINE = 20.0
"""Seconds in which a backend must have released its driver."""

WATCH_DEADLINE = 60.0
"""Seconds that one ``run_blocking`` call of ``watch()`` may take."""

MAX_DEVICES = 100_000
"""Devices that a backend may list: a generator that never ends must not use up the node's memory."""

MAX_NODES = 1024
"""Device nodes one container may get; each becomes a cgroup rule the runtime must load."""

_PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{1,3}")
_CONTROL = r"\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_NO_TEXT = re.compile(f"[{_CONTROL}]")  # control characters, text directions, and halves of characters
_NO_VALUE = re.compile(rf"(?![\n\t])[{_CONTROL}]")  # a value may have several lines, if the user wrote them

HeldClaims = Callable[[], frozenset[str] | None]
"""Returns what containers use, see :meth:`devhost.backend.Context.held`; called from any thread."""


def own_request(backend: Backend, request: AllocateRequest, former: Sequence[object] = ()) -> AllocateRequest:
    """The request with options of the backend's class: those of the request, or the first of ``former``.

    After a drop-in was edited, the previous object still serves, and needs earlier options of the resource.
    Raises ``BackendError`` if none of them is of that class.
    """
    wanted = type(backend).ResourceOptions
    if isinstance(request.options, wanted):
        return request
    if wanted is NoOptions:
        return replace(request, options=NoOptions())
    for options in former:
        if isinstance(options, wanted):
            return replace(request, options=options)
    raise BackendError(f"backend {backend.name} was not given its options for the resource")


class ServiceContext:
    """The context of a running backend (see :class:`devhost.backend.Context`)."""

    def __init__(
        self,
        name: str,
        root: Path,
        wanted: Collection[str] = (),
        held: HeldClaims | None = None,
        entries: Collection[object] = (),
    ) -> None:
        self.log = logging.getLogger(f"devhost.backend.{name}")
        self.root = root
        self.wanted: Collection[str] = wanted
        self.entries: Collection[object] = entries
        self.released = False
        self._held = held
        self._worker = WorkerThread(f"{name}-watch", f"backend {name}", "when waiting for events")

    def held(self) -> frozenset[str] | None:
        """What containers use now; ``None`` while that is unknown."""
        return self._held() if self._held else None

    async def run_blocking(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking call of ``watch()`` on a thread, with a deadline."""
        return await self._worker.call(WATCH_DEADLINE, call, *args, **kwargs)

    def close(self) -> None:
        """Ends the thread for blocking calls."""
        self._worker.close()


@frozen
class Abilities:
    """The optional methods that a class of backends defines."""

    device_info: bool = False
    labels: bool = False
    links: bool = False
    prepare: bool = False
    probe: bool = False
    provision: bool = False
    release: bool = False
    usage: bool = False
    watch: bool = False

    @classmethod
    def of(cls, kind: type[Backend]) -> Abilities:
        """Those of a class."""
        return cls(**{one.name: overrides(kind, one.name) for one in fields(cls)})


class BackendRunner:
    """One running backend. What calls it or looks at the host may block: run it through :meth:`call`.

    The first :meth:`discover` creates the backend object, on the same thread and with the same deadline: a
    constructor may load a vendor's library and hang like any other call. Until a runner has discovered
    devices, those of its predecessor stay listed, and only the predecessor's object knows how to use them.
    """

    def __init__(
        self,
        backend_class: type[Backend],
        options: object,
        root: Path,
        wanted: Collection[str] = (),
        held: HeldClaims | None = None,
        entries: Collection[object] = (),
        predecessor: BackendRunner | None = None,
    ) -> None:
        self.name = backend_class.name
        self.backend_class = backend_class
        self.abilities = Abilities.of(backend_class)
        self.options = options
        self.existence = Existence(os.fspath(root))
        """Whether the host has a path."""
        self.context = ServiceContext(self.name, root, wanted, held, entries)
        self._threads: dict[Lane, WorkerThread] = {
            lane: WorkerThread(f"{self.name}-{lane}", f"backend {self.name}", work)
            for lane, work in LANES.items()
        }
        self.link_cache = LinkCache(self.name, self._closeness) if self.abilities.links else None
        """How its devices are connected; ``None`` for a backend without ``links``."""
        self.missing_drivers: tuple[MissingDriver, ...] = ()
        """Hardware without its driver, from the last successful discovery."""
        self._made: Backend | None = None
        self._before: Backend | None = (predecessor._before or predecessor._made) if predecessor else None

    @cached_property
    def prefix(self) -> str:
        """See :func:`prefix_of`. May block at first: not for the event loop."""
        return prefix_of(self.context.root)

    @property
    def serving(self) -> Backend:
        """The backend object that knows the devices that are listed now."""
        return self._before or self.backend

    @property
    def backend(self) -> Backend:
        """The backend object, which exists once a :meth:`discover` has succeeded."""
        if self._made is None:
            raise BackendError(f"backend {self.name} has not started")
        return self._made

    @property
    def started(self) -> bool:
        """Whether there is a backend object."""
        return self._made is not None

    @property
    def links(self) -> Mapping[frozenset[str], int]:
        """How closely devices are connected, by their ids; only what is cached."""
        return self.link_cache.links if self.link_cache else {}

    @property
    def hung(self) -> int:
        """The number of abandoned threads, in calls that have not returned."""
        return sum(worker.abandoned for worker in self._threads.values())

    @property
    def hung_threads(self) -> frozenset[str]:
        """The names of the abandoned threads."""
        return frozenset(worker.name for worker in self._threads.values() if worker.abandoned)

    async def call(
        self,
        lane: Lane | WorkerThread,
        deadline: float | None,
        call: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Runs a call of the backend on one of its threads, or on one that outlives this runner.

        ``deadline`` is in seconds; ``None`` for the backend's own (:attr:`Backend.discover_deadline`). Raises
        ``AllocationError`` if a device cannot be used now, ``NotYet`` if the backend has to wait for
        something, and ``BackendError`` if it failed, or hung past the deadline.
        """
        worker = lane if isinstance(lane, WorkerThread) else self._threads[lane]
        try:
            return await worker.call(
                self.backend_class.discover_deadline if deadline is None else deadline, call, *args, **kwargs
            )
        except BackendTimeout:
            raise
        except BackendError as error:
            # The message of the backend may have any form, and its class may be defined by the backend.
            kind = next(kind for kind in (AllocationError, NotYet, BackendError) if isinstance(error, kind))
            held = error.held if isinstance(error.held, frozenset) else ()
            raise kind(words(error) or type(error).__name__, held=held) from error
        except Exception as error:
            raise BackendError(f"backend {self.name} failed: {one_line(error)}") from error

    def discover(self, events: Sequence[Event]) -> list[Device]:
        """Passes events to the backend; returns the devices that exist now."""
        if self._made is None:
            self._made = self.backend_class(self.options, self.context)
        for event in events:
            self.backend.notice(event)
        found = list(islice(self.backend.discover(), MAX_DEVICES + 1))
        if len(found) > MAX_DEVICES:
            raise BackendError(f"discover() of backend {self.name} listed more than {MAX_DEVICES} devices")
        self.missing_drivers = self._missing_drivers()
        self._before = None
        return found

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """Health by device id. Raises ``BackendError`` if the backend returned something else."""
        found: object = self.backend.probe(devices)
        if not isinstance(found, Mapping) or not all(map(is_health, found.values())):
            raise BackendError(f"probe() of backend {self.name} did not return a mapping of ids to Health")
        return {device: sound_health(health) for device, health in found.items()}

    def usage(self, devices: Sequence[Device]) -> Mapping[str, Usage]:
        """How much of each device is in use, by its id.

        Raises ``BackendError`` if the backend returned something else.
        """
        found: object = self.backend.usage(devices)
        if not isinstance(found, Mapping) or not all(isinstance(one, Usage) for one in found.values()):
            raise BackendError(f"usage() of backend {self.name} did not return a mapping of ids to Usage")
        return {device.id: found[device.id] for device in devices if device.id in found}

    def labels(self, devices: Sequence[Device], offered: Offered) -> Mapping[object, object]:
        """The backend's labels for the node; ``devices`` are all that exist.

        Raises ``BackendError`` if the backend did not return a mapping.
        """
        found: object = self.backend.labels(devices, offered)
        if not isinstance(found, Mapping):
            raise BackendError(
                f"labels() of backend {self.name} returned {type(found).__name__}, not a mapping"
            )
        return dict(found)

    def prepare(self, request: AllocateRequest, former: Sequence[object] = ()) -> None:
        """Prepares devices for a container start; see :func:`own_request` for ``former``."""
        backend = self.serving
        if overrides(type(backend), "prepare"):
            backend.prepare(own_request(backend, request, former))

    def allocate(self, request: AllocateRequest, former: Sequence[object] = ()) -> Edits:
        """What a container needs to use these devices; see :func:`own_request` for ``former``."""
        backend = self.serving
        return backend.allocate(own_request(backend, request, former))

    def device_info(
        self, device: Device, request: AllocateRequest, former: Sequence[object] = ()
    ) -> Mapping[str, object] | None:
        """The device information for network plugins; ``None`` for nothing."""
        backend = self.serving
        return backend.device_info(device, own_request(backend, request, former))

    def provision(self) -> None:
        """Configures the hardware as the options require.

        Raises ``NotYet`` before the backend has started.
        """
        if self._made is None:
            raise NotYet(f"backend {self.name} has not started")
        self._made.provision()

    def watch(self) -> AsyncIterator[Event] | None:
        """The backend's own event source; ``None`` if it has none."""
        backend = self.backend
        return backend.watch() if self.abilities.watch else None

    def close(self) -> None:
        """Ends the threads and closes the backend; waits for neither."""
        self._threads["discover"].close(self._close_backend)
        for worker in self._threads.values():
            worker.close()
        self.context.close()

    def _close_backend(self) -> None:
        """Closes the backend after the last discovery, which may have started what only ``close`` ends."""
        if self._made is not None:
            try:
                self._made.close()
            except Exception as error:  # noqa: BLE001 - third-party code may raise anything
                log.warning("closing a backend failed", backend=self.name, reason=one_line(error))

    async def _closeness(self, pairs: Sequence[Pair]) -> Sequence[int]:
        backend = self.backend

        def ask() -> list[int]:
            found = [backend.links(a, b) for a, b in pairs]
            if not all(isinstance(closeness, int) for closeness in found):
                raise BackendError(f"links() of backend {self.name} did not return an int")
            return found

        return await self.call("links", None, ask)

    def _missing_drivers(self) -> tuple[MissingDriver, ...]:
        found: tuple[object, ...] = tuple(islice(self.backend.missing_drivers(), MAX_DEVICES + 1))
        if len(found) > MAX_DEVICES:
            raise BackendError(
                f"missing_drivers() of backend {self.name} listed more than {MAX_DEVICES} devices"
            )
        for one in found:
            if flaw := missing_driver_flaw(one, self.backend.attributes):
                raise BackendError(f"missing_drivers() of backend {self.name} returned {flaw}")
        known = cast("tuple[MissingDriver, ...]", found)
        return tuple(
            replace(one, subject=cut(printable(one.subject)), reason=sound_reason(one.reason))
            for one in known
        )


def checked_edits(edits: object, by: str) -> Edits:
    """The edits that ``by`` answered. Raises ``BackendError`` if a runtime could not use them."""
    wrong = f"{by} answered"
    if not isinstance(edits, Edits):
        raise BackendError(f"{wrong} {type(edits).__name__}, not Edits")
    if flaw := _mistyped(edits):
        raise BackendError(f"{wrong} {flaw}")
    if len(edits.nodes) > MAX_NODES:
        raise BackendError(f"{wrong} {len(edits.nodes)} device nodes, more than {MAX_NODES}")
    for node in edits.nodes:
        if not node.path.startswith("/") or not (node.container_path or "/").startswith("/"):
            raise BackendError(f"{wrong} a device node whose path is not absolute: {quoted(node.path)}")
        if not _PERMISSIONS.fullmatch(node.permissions):
            raise BackendError(
                f"{wrong} permissions {quoted(node.permissions)}; it takes each of r, w and m once"
            )
    for mount in edits.mounts:
        if not mount.host_path.startswith("/") or not mount.container_path.startswith("/"):
            raise BackendError(f"{wrong} a mount whose path is not absolute: {quoted(mount.host_path)}")
    for name, value in edits.env.items():
        if not name.isidentifier() and (flaw := variable_problem(name)):  # an identifier has none
            raise BackendError(f"{wrong} {flaw} {quoted(name)}")
        if "\0" in value:
            raise BackendError(f"{wrong} a variable {quoted(name)} whose value holds a NUL character")
    for name in edits.cdi_devices:
        if not CDI_NAME.fullmatch(name):
            raise BackendError(f"{wrong} {quoted(name)} for a CDI name; it reads vendor/class=device")
    seen_as = [node.container_path or node.path for node in edits.nodes]
    seen_as += [mount.container_path for mount in edits.mounts]
    for path in seen_as:
        if ".." in path and ".." in path.split("/"):
            raise BackendError(f"{wrong} {quoted(path)} for a path in the container, which goes up with ..")
    texts = [node.path for node in edits.nodes] + [mount.host_path for mount in edits.mounts] + seen_as
    texts += [*edits.env, *edits.annotations, *edits.cdi_devices]
    values = [*edits.env.values(), *edits.annotations.values()]
    for text in (*filter(_NO_TEXT.search, texts), *filter(_NO_VALUE.search, values)):
        raise BackendError(
            f"{wrong} {quoted(text)}, which has a NUL, a control character or half a character in it"
        )
    return edits


def _mistyped(edits: Any) -> str:
    """What is of another type than :class:`Edits` declares; empty when nothing is."""
    for name, kind in (("nodes", DeviceNode), ("mounts", Mount), ("cdi_devices", str)):
        value = getattr(edits, name)
        if not isinstance(value, tuple) or not all(isinstance(member, kind) for member in value):
            return f"{name} that are not a tuple of {kind.__name__}"
    for name in ("env", "annotations"):
        value = getattr(edits, name)
        if not isinstance(value, Mapping) or not all(
            isinstance(text, str) for pair in value.items() for text in pair
        ):
            return f"{name} that is not a mapping of str to str"
    if not isinstance(edits.attributes, Mapping) or not all(
        isinstance(name, str) and _are_attributes(value) for name, value in edits.attributes.items()
    ):
        return "attributes that are not a mapping of ids to attributes"
    texts = [text for node in edits.nodes for text in (node.path, node.container_path, node.permissions)]
    texts += [text for mount in edits.mounts for text in (mount.host_path, mount.container_path)]
    if not all(isinstance(text, str) for text in texts):
        return "a path or permissions that are not a str"
    switches: list[object] = [edits.lasting]  # without comprehensions, which are calls
    for node in edits.nodes:
        switches += (node.required, node.shared)
    for mount in edits.mounts:
        switches += (mount.required, mount.read_only)
    if {*map(type, switches)} != {bool}:
        return "required, shared, read_only or lasting that is not a bool"
    return ""


def _are_attributes(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and (isinstance(one, str | int) or (isinstance(one, tuple) and all(isinstance(x, str) for x in one)))
        for name, one in value.items()
    )


def quoted(text: str) -> str:
    """Text from outside devhost, short enough and plain enough for one line."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
