"""A running backend: the object, its context, and the threads on which it is called.

Every exception of a backend becomes a :class:`BackendError` with the backend's name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

from devhost.backend import AllocateRequest, Backend, Event, MissingDriver, NoOptions, Offered
from devhost.backend.base import overrides
from devhost.backend.errors import (
    AllocationError,
    BackendError,
    BackendTimeout,
    NotYet,
    one_line,
    printable,
    words,
)
from devhost.backend.model import Device, Edits, Health, sound_health, sound_reason
from devhost.backend.sysfs import prefix_of
from devhost.runtime.log import get
from devhost.runtime.worker import WorkerThread

from .health import is_health
from .links import LinkCache, Pair

log = get(__name__)

P = ParamSpec("P")
T = TypeVar("T")

RELEASE_DEADLINE = 20.0
"""Seconds in which a backend must have released its driver."""

WATCH_DEADLINE = 60.0
"""Seconds that one ``run_blocking`` call of ``watch()`` may take."""

HeldClaims = Callable[[], frozenset[str] | None]
"""Returns what containers use, see :meth:`devhost.backend.Context.held`; called from any thread."""


def own_request(backend: Backend, request: AllocateRequest, former: Sequence[object] = ()) -> AllocateRequest:
    """The request with options of the backend's class.

    Args:
        backend: the object that is called with it.
        request: the request of the resource.
        former: earlier options of the resource. After a drop-in was edited, the previous object still serves:
            it gets the first options that are of its class.

    Raises:
        BackendError: none of them is.
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


class BackendRunner:
    """One running backend.

    The first :meth:`discover` creates the backend object, on the same thread and with the same deadline: a
    constructor may load a vendor's library and hang like any other call.

    Args:
        wanted: names of the attributes that the configuration uses.
        held: returns what containers use, see :meth:`devhost.backend.Context.held`.
        entries: the backend's ``ResourceOptions`` of all resources.
        predecessor: a runner whose backend object serves pods until this one has discovered devices: its
            devices are listed until then, and only that object knows how to use them.
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
        self._root = os.fspath(root)
        self.context = ServiceContext(kind.name, root, wanted, held, entries)
        who = f"backend {kind.name}"
        self._discovering = WorkerThread(f"{kind.name}-discover", who, "when looking for devices")
        self._probing = WorkerThread(f"{kind.name}-probe", who, "when probing devices")
        self._serving = WorkerThread(f"{kind.name}-serve", who, "when serving a container")
        self._linking = WorkerThread(f"{kind.name}-links", who, "when asked for links or labels")
        self._workers = (self._discovering, self._probing, self._serving, self._linking)
        self.link_cache = LinkCache(kind.name, self._closeness) if overrides(kind, "links") else None
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

    def prepares(self, options: object = None) -> bool:
        """Whether the backend prepares the devices of a resource for each container start.

        Args:
            options: the value of the backend's ``ResourceOptions`` for that resource.
        """
        return overrides(self.kind, "prepare") and bool(getattr(options, "prepares", True))

    @property
    def probes(self) -> bool:
        """Whether the backend checks health with ``probe``, too."""
        return overrides(self.kind, "probe")

    @property
    def links(self) -> Mapping[frozenset[str], int]:
        """How closely devices are connected, by their ids; only what is cached."""
        return self.link_cache.links if self.link_cache else {}

    @property
    def provisions(self) -> bool:
        """Whether the backend configures hardware."""
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
    def releases(self) -> bool:
        """Whether the backend keeps a driver in use, and can release it."""
        return overrides(self.kind, "release")

    @property
    def takes_shares(self) -> bool:
        """Whether the backend receives how much of each device a container requests."""
        return self.kind.takes_shares

    @property
    def hung(self) -> int:
        """The number of abandoned threads, in calls that have not returned."""
        return sum(worker.abandoned for worker in self._workers)

    @property
    def hung_threads(self) -> frozenset[str]:
        """The names of the abandoned threads."""
        return frozenset(worker.name for worker in self._workers if worker.abandoned)

    async def discover(self, events: Sequence[Event]) -> list[Device]:
        """Passes events to the backend; returns the devices that exist now.

        Raises:
            BackendError: it failed, or hung past its deadline.
        """
        return await self._guarded(self._discovering, self.kind.discover_deadline, self._discover, events)

    async def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """Health by device id; empty for a backend without ``probe``.

        Raises:
            BackendError: it failed, or hung past its deadline.
        """
        backend = self.backend
        if not self.probes or self.context.released:
            return {}
        return await self._guarded(self._probing, self.kind.discover_deadline, self._probe, backend, devices)

    async def prepare(self, deadline: float, request: AllocateRequest, former: Sequence[object] = ()) -> None:
        """Prepares devices for a container start; does nothing for a backend without ``prepare``.

        Args:
            deadline: seconds that it may take.
            request: the devices that were allocated to the container.
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
            request: what the container requests.
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
            request: what the container requests.
            former: see :func:`own_request`.
        """
        backend = self.serving
        return backend.device_info(device, own_request(backend, request, former))

    async def _closeness(self, pairs: Sequence[Pair]) -> Sequence[int]:
        """How closely the devices of each pair are connected.

        Raises:
            BackendError: the backend failed, hung past its deadline, or did not return numbers.
        """
        backend = self.backend

        def ask() -> list[int]:
            found = [backend.links(a, b) for a, b in pairs]
            if not all(isinstance(closeness, int) for closeness in found):
                raise BackendError(f"links() of backend {self.name} did not return an int")
            return found

        return await self._guarded(self._linking, self.kind.discover_deadline, ask)

    async def label(self, devices: Sequence[Device], offered: Offered) -> Mapping[object, object]:
        """The backend's labels for the node; none for a backend without ``labels``.

        Args:
            devices: all that exist.

        Raises:
            BackendError: it failed, hung past its deadline, or did not return a mapping.
        """
        backend = self.backend

        def ask() -> Mapping[object, object]:
            found: object = backend.labels(devices, offered)
            if not isinstance(found, Mapping):
                raise BackendError(
                    f"labels() of backend {self.name} returned {type(found).__name__}, not a mapping"
                )
            return dict(found)

        return await self._guarded(self._linking, self.kind.discover_deadline, ask) if self.labels else {}

    async def provision(self, worker: WorkerThread, deadline: float) -> None:
        """Configures the hardware as the options require; does nothing for a backend without ``provision``.

        Args:
            worker: runs it; it outlives this runner.

        Raises:
            NotYet: it has to wait for something, or the backend has not started.
            BackendError: it failed, or hung past the deadline.
        """
        if not self.started:
            raise NotYet(f"backend {self.name} has not started")
        await self._guarded(worker, deadline, self.backend.provision)

    async def release(self) -> None:
        """Lets the backend close what keeps a driver in use.

        Raises:
            BackendError: something cannot be closed, or it hung past :data:`RELEASE_DEADLINE`.
        """
        if self._made is not None:
            await self._guarded(self._discovering, RELEASE_DEADLINE, self._made.release)

    async def serve(self, deadline: float, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``call``, which uses the backend for a pod, on the serving thread.

        Raises:
            AllocationError: a device cannot be used now.
            BackendError: the backend failed, or hung past the deadline.
        """
        return await self._guarded(self._serving, deadline, call, *args, **kwargs)

    async def restored(self, denied: Mapping[str, Sequence[str]]) -> list[str]:
        """The devices whose host paths all exist again.

        Raises:
            BackendError: checking the paths hung past the deadline.
        """

        def look() -> list[str]:
            return [device for device, paths in denied.items() if all(map(self.exists, paths))]

        return await self._guarded(self._discovering, self.kind.discover_deadline, look)

    def exists(self, path: str) -> bool:
        """Whether the host has this path. May block on a dead file system: not for the event loop."""
        # not pathlib: any error means "no", and creating a Path takes three times as long as the check
        return os.path.exists(os.path.join(self._root, path.lstrip("/")))  # noqa: PTH110, PTH118

    def watch(self) -> AsyncIterator[Event] | None:
        """The backend's own event source; ``None`` if it has none."""
        return self.backend.watch() if overrides(type(self.backend), "watch") else None

    def close(self) -> None:
        """Ends the threads and closes the backend; waits for neither."""
        self._discovering.close(self._close_backend)
        for worker in self._workers:
            worker.close()
        self.context.close()

    def _close_backend(self) -> None:
        """Closes the backend after the last discovery, which may have started what only ``close`` ends."""
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
                f"missing_drivers() of backend {self.name} returned something that is not a MissingDriver"
            )
        known = cast("tuple[MissingDriver, ...]", found)
        return tuple(
            replace(one, subject=printable(str(one.subject)), reason=sound_reason(str(one.reason)))
            for one in known
        )

    def _probe(self, backend: Backend, devices: Sequence[Device]) -> Mapping[str, Health]:
        verdicts: object = backend.probe(devices)
        if not isinstance(verdicts, Mapping) or not all(map(is_health, verdicts.values())):
            raise BackendError(f"probe() of backend {self.name} did not return a mapping of ids to Health")
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
            # The message of the backend may have any form, and its class may be defined by the backend.
            kind = next(kind for kind in (AllocationError, NotYet, BackendError) if isinstance(error, kind))
            raise kind(words(error) or type(error).__name__) from error
        except Exception as error:
            raise BackendError(f"backend {self.name} failed: {one_line(error)}") from error
