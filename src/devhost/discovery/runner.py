"""A backend in service: the object, its context, and the three lanes its calls run on.

Whatever a backend raises leaves here as a :class:`BackendError` with the backend's name in it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

from devhost.backend import AllocateRequest, Backend, Event, MissingDriver, NoOptions, Offered
from devhost.backend.base import overrides
from devhost.backend.errors import AllocationError, BackendError, BackendTimeout, NotYet, one_line, words
from devhost.backend.model import Device, Edits, Health, sound_health
from devhost.telemetry.log import get

from .health import is_health
from .links import LinkCache, Pair
from .worker import WorkerThread

log = get(__name__)

P = ParamSpec("P")
T = TypeVar("T")

WATCH_DEADLINE = 60.0
"""Seconds one ``run_blocking`` call of ``watch()`` may take: a source should return now and then."""


HeldClaims = Callable[[], frozenset[str] | None]
"""Tells what containers use, see :meth:`devhost.backend.Context.held`; from any thread."""


def own_request(backend: Backend, request: AllocateRequest, former: Sequence[object] = ()) -> AllocateRequest:
    """A request with options that are of the backend's own class.

    Args:
        backend: the object that is to be called with it.
        request: the request as its resource makes it.
        former: earlier options of the resource. When a drop-in was edited, the object that still serves is
            the previous one: it takes the first options that are of its own class.

    Raises:
        BackendError: none of them is.
    """
    wanted = type(backend).ResourceOptions
    if wanted is NoOptions:
        return replace(request, options=NoOptions())
    for options in (request.options, *former):
        if isinstance(options, wanted):
            return replace(request, options=options)
    raise BackendError(f"backend {backend.name} was not given its options for the resource")


class ServiceContext:
    """The context a running backend gets (see :class:`devhost.backend.Context`)."""

    def __init__(
        self,
        name: str,
        root: Path,
        wanted: Collection[str] = (),
        held: HeldClaims = lambda: None,
        entries: Collection[object] = (),
    ) -> None:
        self.log = logging.getLogger(f"devhost.backend.{name}")
        self.root = root
        self.wanted: Collection[str] = wanted
        self.entries: Collection[object] = entries
        self._held = held
        self._lane = WorkerThread(f"{name}-watch", f"backend {name}", "when waiting for events")

    def held(self) -> frozenset[str] | None:
        """What containers use now; ``None`` while that is not known."""
        return self._held()

    async def run_blocking(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking call of ``watch()`` off the loop, with a deadline."""
        return await self._lane.call(WATCH_DEADLINE, call, *args, **kwargs)

    def close(self) -> None:
        """Lets the watching thread end."""
        self._lane.close()


class BackendRunner:
    """One backend in service.

    The backend object is made with the first :meth:`look`, on the same lane and under the same
    deadline: a constructor may load a vendor's library and hang as well as any call.
    """

    def __init__(
        self,
        kind: type[Backend],
        options: object,
        root: Path,
        wanted: Collection[str] = (),
        held: HeldClaims = lambda: None,
        entries: Collection[object] = (),
    ) -> None:
        self.name = kind.name
        self.kind = kind
        self.options = options
        self.context = ServiceContext(kind.name, root, wanted, held, entries)
        who = f"backend {kind.name}"
        self._looking = WorkerThread(f"{kind.name}-look", who, "when looking for devices")
        self._probing = WorkerThread(f"{kind.name}-probe", who, "when probing devices")
        self._serving = WorkerThread(f"{kind.name}-serve", who, "when serving a container")
        self._linking = WorkerThread(f"{kind.name}-links", who, "when asked for links or labels")
        self._lanes = (self._looking, self._probing, self._serving, self._linking)
        self.linkage = LinkCache(kind.name, self._closeness) if overrides(kind, "links") else None
        """How its devices are joined; ``None`` for a backend that has no ``links``."""
        self.missing_drivers: tuple[MissingDriver, ...] = ()
        """Hardware without its driver, as of the last look that succeeded."""
        self._made: Backend | None = None
        self._before: Backend | None = None

    def succeed(self, before: BackendRunner) -> None:
        """Has pods served by another source's backend object until this one has looked for the first time.

        Its devices are listed until then, and only who has seen a device may know what it takes to use it.
        """
        self._before = before._before or before._made

    @property
    def serving(self) -> Backend:
        """The backend object that knows the devices that are listed now."""
        return self._before or self.backend

    @property
    def backend(self) -> Backend:
        """The backend object; there is one once a :meth:`look` has succeeded."""
        if self._made is None:
            raise BackendError(f"backend {self.name} has not started")
        return self._made

    @property
    def started(self) -> bool:
        """Whether there is a backend object already."""
        return self._made is not None

    def prepares(self, options: object = None) -> bool:
        """Whether the backend wants to hear of each container start with devices of a resource.

        Args:
            options: the value of the backend's ``ResourceOptions`` for that resource.
        """
        return overrides(self.kind, "prepare") and bool(getattr(options, "prepares", True))

    @property
    def probes(self) -> bool:
        """Whether the backend judges health by more than ``discover``."""
        return overrides(self.kind, "probe")

    @property
    def links(self) -> Mapping[frozenset[str], int]:
        """How closely devices are joined, by their ids, as far as that is known; never asks."""
        return self.linkage.links if self.linkage else {}

    @property
    def provisions(self) -> bool:
        """Whether the backend brings hardware to what its options say."""
        return overrides(self.kind, "provision")

    @property
    def informs(self) -> bool:
        """Whether the backend has something to tell network plugins."""
        return overrides(self.kind, "device_info")

    @property
    def labels(self) -> bool:
        """Whether the backend has labels for the node."""
        return overrides(self.kind, "labels")

    @property
    def takes_shares(self) -> bool:
        """Whether the backend is told how much of each device a container asks for."""
        return self.kind.takes_shares

    @property
    def hung(self) -> int:
        """Threads left behind in calls that never returned."""
        return sum(lane.abandoned for lane in self._lanes)

    @property
    def hung_lanes(self) -> frozenset[str]:
        """Names of the lanes, which are those of their threads, that left any behind."""
        return frozenset(lane.name for lane in self._lanes if lane.abandoned)

    async def look(self, events: Sequence[Event]) -> list[Device]:
        """Tells the backend what happened and asks what exists now.

        Raises:
            BackendError: it failed, or hung past its deadline.
        """
        return await self._guarded(self._looking, self.kind.discover_deadline, self._look, events)

    async def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """Health by device id; empty from a backend that has no ``probe``.

        Raises:
            BackendError: it failed, or hung past its deadline.
        """
        backend = self.backend
        if not self.probes:
            return {}
        return await self._guarded(self._probing, self.kind.discover_deadline, self._probe, backend, devices)

    async def prepare(self, deadline: float, request: AllocateRequest, former: Sequence[object] = ()) -> None:
        """Prepares devices for a container start; nothing for a backend that has no ``prepare``.

        Args:
            deadline: seconds that it may take.
            request: what the container was given.
            former: see :func:`own_request`.

        Raises:
            BackendError: it failed, or hung past the deadline.
        """
        backend = self.serving
        if overrides(type(backend), "prepare"):
            own = own_request(backend, request, former)
            await self._guarded(self._serving, deadline, backend.prepare, own)

    def allocate(self, request: AllocateRequest, former: Sequence[object] = ()) -> Edits:
        """What a container needs to use these devices. Call it through :meth:`serve`.

        Args:
            request: what the container asks for.
            former: see :func:`own_request`.
        """
        backend = self.serving
        return backend.allocate(own_request(backend, request, former))

    def device_info(
        self, device: Device, request: AllocateRequest, former: Sequence[object] = ()
    ) -> Mapping[str, object] | None:
        """What network plugins read of a device; ``None`` for nothing. Call it through :meth:`serve`.

        Args:
            device: one of the request's.
            request: what the container asks for.
            former: see :func:`own_request`.
        """
        backend = self.serving
        return backend.device_info(device, own_request(backend, request, former))

    async def _closeness(self, pairs: Sequence[Pair]) -> Sequence[int]:
        """How closely each of some pairs of devices is joined.

        Raises:
            BackendError: the backend failed, hung past its deadline, or answered nonsense.
        """
        backend = self.backend

        def ask() -> list[int]:
            found = [backend.links(a, b) for a, b in pairs]
            if not all(isinstance(closeness, int) for closeness in found):
                raise BackendError(f"backend {self.name} answered links() with something else than int")
            return found

        return await self._guarded(self._linking, self.kind.discover_deadline, ask)

    async def label(self, devices: Sequence[Device], offered: Offered) -> Mapping[object, object]:
        """What the backend gives as labels for the node; none from a backend that has no ``labels``.

        Args:
            devices: all that exist.

        Raises:
            BackendError: it failed, hung past its deadline, or answered something else than a mapping.
        """
        backend = self.backend

        def ask() -> Mapping[object, object]:
            found: object = backend.labels(devices, offered)
            if not isinstance(found, Mapping):
                raise BackendError(f"backend {self.name} answered labels() with {type(found).__name__}")
            return dict(found)

        return await self._guarded(self._linking, self.kind.discover_deadline, ask) if self.labels else {}

    async def provision(self, lane: WorkerThread, deadline: float) -> None:
        """Brings the hardware to what the options say; nothing for a backend that has no ``provision``.

        Args:
            lane: where to run it; it outlives this source.

        Raises:
            NotYet: it waits for something; also for the backend itself to start.
            BackendError: it failed, or hung past the deadline.
        """
        if not self.started:
            raise NotYet(f"backend {self.name} has not started")
        await self._guarded(lane, deadline, self.backend.provision)

    async def serve(self, deadline: float, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``call``, which uses the backend for a pod, on the serving lane.

        Raises:
            AllocationError: the backend says a device cannot be used now.
            BackendError: the backend failed, or hung past the deadline.
        """
        return await self._guarded(self._serving, deadline, call, *args, **kwargs)

    async def restored(self, denied: Mapping[str, Sequence[str]]) -> list[str]:
        """Those devices of whose host paths none is missing any more.

        Raises:
            BackendError: looking at the paths hung past the deadline.
        """

        def look() -> list[str]:
            return [device for device, paths in denied.items() if all(map(self.exists, paths))]

        return await self._guarded(self._looking, self.kind.discover_deadline, look)

    def exists(self, path: str) -> bool:
        """Whether the host has this path. May block on a dead file system: not for the event loop."""
        # not pathlib: any error means "no", and making a Path costs three times the look itself
        return os.path.exists(os.path.join(self.context.root, path.lstrip("/")))  # noqa: PTH110, PTH118

    def watch(self) -> AsyncIterator[Event] | None:
        """The backend's own event source; ``None`` if it has none."""
        return self.backend.watch() if overrides(type(self.backend), "watch") else None

    def close(self) -> None:
        """Lets the threads end, and the backend let go of what it keeps; waits for nobody."""
        self._looking.close(self._let_go)
        for lane in self._lanes:
            lane.close()
        self.context.close()

    def _let_go(self) -> None:
        """After the last look: it may have begun what no event source was there to end."""
        if self._made is not None:
            try:
                self._made.close()
            except Exception as error:  # noqa: BLE001 - a vendor's code may raise anything
                log.warning("closing a backend failed", backend=self.name, reason=one_line(error))

    def _look(self, events: Sequence[Event]) -> list[Device]:
        if self._made is None:
            self._made = self.kind(self.options, self.context)
        for event in events:
            self.backend.notice(event)
        found = list(self.backend.discover())
        self.missing_drivers = self._missing_drivers()
        self._before = None
        return found

    def _missing_drivers(self) -> tuple[MissingDriver, ...]:
        found: tuple[object, ...] = tuple(self.backend.missing_drivers())
        if not all(isinstance(one, MissingDriver) for one in found):
            raise BackendError(
                f"backend {self.name} answered missing_drivers() with something else than MissingDriver"
            )
        return cast("tuple[MissingDriver, ...]", found)

    def _probe(self, backend: Backend, devices: Sequence[Device]) -> Mapping[str, Health]:
        verdicts: object = backend.probe(devices)
        if not isinstance(verdicts, Mapping) or not all(map(is_health, verdicts.values())):
            raise BackendError(f"backend {self.name} answered probe() with something else than Health by id")
        return {device: sound_health(verdict) for device, verdict in verdicts.items()}

    async def _guarded(
        self, lane: WorkerThread, deadline: float, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            return await lane.call(deadline, call, *args, **kwargs)
        except BackendTimeout:
            raise
        except BackendError as error:
            # The backend's own sentence, which may come in any shape and in a class of its own.
            kind = next(kind for kind in (AllocationError, NotYet, BackendError) if isinstance(error, kind))
            raise kind(words(error) or type(error).__name__) from error
        except Exception as error:
            raise BackendError(f"backend {self.name} failed: {one_line(error)}") from error
