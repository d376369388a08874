"""A backend in service: the object, its context, and the threads its calls run on.

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
        held: HeldClaims | None = None,
        entries: Collection[object] = (),
    ) -> None:
        self.log = logging.getLogger(f"devhost.backend.{name}")
        self.root = root
        self.wanted: Collection[str] = wanted
        self.entries: Collection[object] = entries
        self._held = held
        self._worker = WorkerThread(f"{name}-watch", f"backend {name}", "when waiting for events")

    def held(self) -> frozenset[str] | None:
        """What containers use now; ``None`` while that is not known."""
        return self._held() if self._held else None

    async def run_blocking(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking call of ``watch()`` off the loop, with a deadline."""
        return await self._worker.call(WATCH_DEADLINE, call, *args, **kwargs)

    def close(self) -> None:
        """Lets the watching thread end."""
        self._worker.close()


class BackendRunner:
    """One backend in service.

    The backend object is made with the first :meth:`discover`, on the same thread and under the same
    deadline: a constructor may load a vendor's library and hang as well as any call.

    Args:
        wanted: names of the attributes that something looks at.
        held: what containers use, see :meth:`devhost.backend.Context.held`.
        entries: what the resources say to the backend.
        predecessor: a runner whose backend object serves pods until this one has discovered devices: its
            devices are listed until then, and only it knows what it takes to use them.
    """

    def __init__(
        self,
        kind: type[Backend],
        options: object,
        root: Path,
        wanted: Collection[str] = (),
        held: HeldClaims | None = None,
        entries: Collection[object] = (),
        predecessor: BackendRunner | None = None,
    ) -> None:
        self.name = kind.name
        self.kind = kind
        self.options = options
        self.context = ServiceContext(kind.name, root, wanted, held, entries)
        who = f"backend {kind.name}"
        self._discovering = WorkerThread(f"{kind.name}-discover", who, "when looking for devices")
        self._probing = WorkerThread(f"{kind.name}-probe", who, "when probing devices")
        self._serving = WorkerThread(f"{kind.name}-serve", who, "when serving a container")
        self._linking = WorkerThread(f"{kind.name}-links", who, "when asked for links or labels")
        self._workers = (self._discovering, self._probing, self._serving, self._linking)
        self.link_cache = LinkCache(kind.name, self._closeness) if overrides(kind, "links") else None
        """How its devices are joined; ``None`` for a backend that has no ``links``."""
        self.missing_drivers: tuple[MissingDriver, ...] = ()
        """Hardware without its driver, as of the last discovery that succeeded."""
        self._made: Backend | None = None
        self._before: Backend | None = (predecessor._before or predecessor._made) if predecessor else None

    @property
    def serving(self) -> Backend:
        """The backend object that knows the devices that are listed now."""
        return self._before or self.backend

    @property
    def backend(self) -> Backend:
        """The backend object; there is one once a :meth:`discover` has succeeded."""
        if self._made is None:
            raise BackendError(f"backend {self.name} has not started")
        return self._made

    @property
    def started(self) -> bool:
        """Whether there is a backend object already."""
        return self._made is not None

    def prepares(self, options: object = None) -> bool:
        """Whether the backend prepares devices of a resource for each container start.

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
        return self.link_cache.links if self.link_cache else {}

    @property
    def provisions(self) -> bool:
        """Whether the backend brings hardware to what its options say."""
        return overrides(self.kind, "provision")

    @property
    def informs(self) -> bool:
        """Whether the backend has device information for network plugins."""
        return overrides(self.kind, "device_info")

    @property
    def labels(self) -> bool:
        """Whether the backend has labels for the node."""
        return overrides(self.kind, "labels")

    @property
    def takes_shares(self) -> bool:
        """Whether the backend receives how much of each device a container asks for."""
        return self.kind.takes_shares

    @property
    def hung(self) -> int:
        """Threads left behind in calls that never returned."""
        return sum(worker.abandoned for worker in self._workers)

    @property
    def hung_threads(self) -> frozenset[str]:
        """Names of the threads that were left behind."""
        return frozenset(worker.name for worker in self._workers if worker.abandoned)

    async def discover(self, events: Sequence[Event]) -> list[Device]:
        """Passes events to the backend and asks which devices exist now.

        Raises:
            BackendError: it failed, or hung past its deadline.
        """
        return await self._guarded(self._discovering, self.kind.discover_deadline, self._discover, events)

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
        """The device information for network plugins; ``None`` for nothing. Call it through :meth:`serve`.

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
            BackendError: the backend failed, hung past its deadline, or answered something else than numbers.
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

    async def provision(self, worker: WorkerThread, deadline: float) -> None:
        """Brings the hardware to what the options say; nothing for a backend that has no ``provision``.

        Args:
            worker: where to run it; it outlives this runner.

        Raises:
            NotYet: it waits for something; also for the backend itself to start.
            BackendError: it failed, or hung past the deadline.
        """
        if not self.started:
            raise NotYet(f"backend {self.name} has not started")
        await self._guarded(worker, deadline, self.backend.provision)

    async def serve(self, deadline: float, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``call``, which uses the backend for a pod, on the serving thread.

        Raises:
            AllocationError: the backend says a device cannot be used now.
            BackendError: the backend failed, or hung past the deadline.
        """
        return await self._guarded(self._serving, deadline, call, *args, **kwargs)

    async def restored(self, denied: Mapping[str, Sequence[str]]) -> list[str]:
        """Those devices whose host paths are all back.

        Raises:
            BackendError: checking the paths hung past the deadline.
        """

        def look() -> list[str]:
            return [device for device, paths in denied.items() if all(map(self.exists, paths))]

        return await self._guarded(self._discovering, self.kind.discover_deadline, look)

    def exists(self, path: str) -> bool:
        """Whether the host has this path. May block on a dead file system: not for the event loop."""
        # not pathlib: any error means "no", and making a Path costs three times the check itself
        return os.path.exists(os.path.join(self.context.root, path.lstrip("/")))  # noqa: PTH110, PTH118

    def watch(self) -> AsyncIterator[Event] | None:
        """The backend's own event source; ``None`` if it has none."""
        return self.backend.watch() if overrides(type(self.backend), "watch") else None

    def close(self) -> None:
        """Lets the threads end, and closes the backend; waits for neither."""
        self._discovering.close(self._close_backend)
        for worker in self._workers:
            worker.close()
        self.context.close()

    def _close_backend(self) -> None:
        """After the last discovery, which may have started what only ``close`` ends."""
        if self._made is not None:
            try:
                self._made.close()
            except Exception as error:  # noqa: BLE001 - third-party code may raise anything
                log.warning("closing a backend failed", backend=self.name, reason=one_line(error))

    def _discover(self, events: Sequence[Event]) -> list[Device]:
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
        self,
        worker: WorkerThread,
        deadline: float,
        call: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        try:
            return await worker.call(deadline, call, *args, **kwargs)
        except BackendTimeout:
            raise
        except BackendError as error:
            # The backend's own message, in any shape and perhaps of a class that the backend defines.
            kind = next(kind for kind in (AllocationError, NotYet, BackendError) if isinstance(error, kind))
            raise kind(words(error) or type(error).__name__) from error
        except Exception as error:
            raise BackendError(f"backend {self.name} failed: {one_line(error)}") from error
