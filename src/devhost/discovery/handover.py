"""When hooks of plugins are called: before a container gets devices, and after containers released them.

A device that was given to a container or a claim is *used* until the hooks after the release have returned.
It is recorded before it is given, so that a restart of devhost, or of the machine, does not offer it
unprepared. The kubelet allocates a device again as soon as its pod has ended, which devhost learns later: so
Allocate waits for these hooks too, and refuses the pod if they take long.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devhost.backend import trusted
from devhost.backend.backoff import Backoff
from devhost.backend.base import ContainerRequest
from devhost.backend.errors import (
    DAMAGED,
    AllocationError,
    BackendError,
    EnvironmentFailure,
    one_line,
    words,
)
from devhost.backend.files import make_directory, replace_file
from devhost.backend.frozen import frozen, mutable
from devhost.backend.incident import Incident
from devhost.backend.model import Device, DeviceNode, Edits, Health, Holder, Mount, unhealthy
from devhost.planning.claims import Held, Key
from devhost.planning.timing import DISCOVERY, DiscoveryTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog, Reconciler, Retry
from devhost.runtime.tasks import Failing, Tasks
from devhost.runtime.worker import STATE_HINT, FileWorker, WorkerThread
from devhost.telemetry.metrics import Failure

from .catalog import AFTER_RELEASE, BEFORE_CONTAINER, OFFICIAL, Catalog, InstalledObserver
from .runner import checked_edits

if TYPE_CHECKING:
    from .scanner import Scanner

log = get(__name__)

MAX_BYTES = 8 << 20
"""A larger record is neither written nor read."""

MOST_GONE = 1000
"""Used devices that are remembered although they are gone, in case they come back: the last ones."""


@frozen
class Given:
    """What a container, or a request of a claim, was given.

    ``tokens`` are empty for a claim; ``at`` is in monotonic seconds.
    """

    backend: str
    devices: frozenset[str]
    resource: str
    tokens: tuple[str, ...] = ()
    additions: Edits = Edits()
    at: float = -math.inf


@frozen
class HandedOver:
    """The ``used`` devices of those that were given together; ``released`` is whether hooks are due."""

    given: Given
    used: Sequence[str]
    released: bool


class HandoverRecord:
    """Reads and writes the record on a thread. ``file`` is ``None`` for no record."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._worker = FileWorker("handover-record", STATE_HINT)
        self.failures = FailureLog(
            log, "used devices are not recorded", "used devices are recorded again", level="error", file=file
        )

    async def read(self) -> Sequence[HandedOver]:
        """The record of an earlier run; none if it cannot be read, which is logged."""
        if self.file is None:
            return ()
        try:
            return await self._worker.file(f"read {self.file}", _read, self.file)
        except (BackendError, *DAMAGED):
            reason = "it is damaged"
        except EnvironmentFailure as error:
            reason = str(error)
        log.error("the record of used devices is not read", file=str(self.file), reason=reason)
        return ()

    async def is_lost(self) -> bool:
        """Whether there is no record, which there should be; also if its directory does not answer."""
        if self.file is None:
            return False
        try:
            return not await self._worker.file(f"find {self.file}", self.file.exists)
        except EnvironmentFailure:
            return True

    async def write(self, rows: Sequence[HandedOver]) -> None:
        """Replaces the record; each failure is logged once."""
        if self.file is None:
            return
        try:
            await self._worker.file(f"write {self.file}", _write, self.file, rows)
        except EnvironmentFailure as error:
            self.failures.failed(str(error))
        else:
            self.failures.succeeded()

    def close(self) -> None:
        """Ends the thread; does not wait for it."""
        self._worker.close()


def _read(file: Path) -> list[HandedOver]:
    try:
        rows = json.loads(trusted.content(file, MAX_BYTES))["given"]
    except FileNotFoundError:
        return []
    return [HandedOver(_given(row), _texts(row["used"]), bool(row["released"])) for row in rows]


def _write(file: Path, rows: Sequence[HandedOver]) -> None:
    content = [{"used": one.used, "released": one.released, **_row(one.given)} for one in rows]
    data = json.dumps({"given": content}).encode()
    if len(data) > MAX_BYTES:
        raise EnvironmentFailure(f"it would be larger than {MAX_BYTES >> 20} MiB")
    make_directory(file.parent, 0o700)
    replace_file(file, data, f".{file.stem}-", 0o600)


def _row(given: Given) -> dict[str, Any]:
    added = given.additions
    return {
        "backend": given.backend,
        "devices": sorted(given.devices),
        "resource": given.resource,
        "tokens": given.tokens,
        "nodes": [asdict(node) for node in added.nodes],
        "mounts": [asdict(mount) for mount in added.mounts],
        "env": dict(added.env),
        "annotations": dict(added.annotations),
        "cdiDevices": added.cdi_devices,
    }


def _given(row: Mapping[str, Any]) -> Given:
    recorded = Edits(
        nodes=tuple(DeviceNode(**one) for one in row["nodes"]),
        mounts=tuple(Mount(**one) for one in row["mounts"]),
        env=_pairs(row["env"]),
        annotations=_pairs(row["annotations"]),
        cdi_devices=_texts(row["cdiDevices"]),
    )
    additions = checked_edits(recorded, "it")
    backend, resource = _texts((row["backend"], row["resource"]))
    return Given(backend, frozenset(_texts(row["devices"])), resource, _texts(row["tokens"]), additions)


def _pairs(values: Mapping[Any, Any]) -> dict[str, str]:
    return dict(zip(_texts(values), _texts(values.values()), strict=True))


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    """These texts. Raises ``TypeError`` if one is something else."""
    found = tuple(values)
    if isinstance(values, str) or not all(isinstance(one, str) for one in found):
        raise TypeError("not texts")
    return found


MAX_TEXT = 1 << 16
"""Characters of the variables and annotations that a hook may add for a container."""


class HookCalls:
    """The plugins with hooks for devices of named backends.

    ``count`` receives each call: the name of the plugin, and how the call failed, if it did.
    """

    def __init__(self, count: Callable[[str, Failure | None], None], timing: DiscoveryTiming) -> None:
        self._count = count
        self._timing = timing
        self._plugins: Sequence[InstalledObserver] = ()
        self.uncalled: dict[str, Failing] = {}
        """The plugins with hooks for a backend that there cannot be, with the reason."""
        self._workers: dict[str, WorkerThread] = {}
        """The threads of the hooks before a container, by plugin."""

    def follow(self, catalog: Catalog) -> None:
        self._plugins = [one for one in catalog.observers if one.backends]
        self.uncalled = {}
        for plugin in self._plugins:
            for name in plugin.backends:
                if name not in catalog.installed:
                    log.warning("a hook is for an unknown backend", plugin=plugin.name, backend=name)
                    if name not in OFFICIAL:
                        reason = (
                            f"its hooks are for the backend {name}, which is unknown (correct for_backends)"
                        )
                        self.uncalled[plugin.name] = Failing(reason, time.time())

    @property
    def backends(self) -> set[str]:
        return {name for plugin in self._plugins for name in plugin.backends}

    def close(self) -> None:
        """Ends the threads; does not wait for them."""
        for worker in self._workers.values():
            worker.close()

    async def before(self, request: ContainerRequest) -> list[Edits]:
        """What each plugin adds for a container.

        Raises ``AllocationError`` if a hook refuses the container, failed or hangs.
        """
        plugins = self._with(request.backend, BEFORE_CONTAINER)
        return [await self._addition(plugin, request) for plugin in plugins]

    async def _addition(self, plugin: InstalledObserver, request: ContainerRequest) -> Edits:
        worker = self._workers.get(plugin.name)
        if worker is None:
            worker = self._workers[plugin.name] = WorkerThread(f"before-{plugin.name}")

        try:
            added = await worker.call(self._timing.handover_before, _added, plugin, request)
        except BackendError as error:
            reason = self._failed(plugin, BEFORE_CONTAINER, error)
            raise AllocationError(f"{request.resource}: {reason}") from None
        self._count(plugin.name, None)
        return added

    def has_after(self, backend: str) -> bool:
        """Whether a plugin has a hook for released devices of a backend."""
        return bool(self._with(backend, AFTER_RELEASE))

    async def after(self, worker: WorkerThread, backend: str, devices: Iterable[Device]) -> str:
        """Calls each hook after a release once, on this thread; returns why one failed."""
        for plugin in self._with(backend, AFTER_RELEASE):
            arguments = {"backend": backend, "devices": devices}
            try:
                await worker.call(self._timing.handover_after, _called, plugin, AFTER_RELEASE, **arguments)
            except BackendError as error:
                return self._failed(plugin, AFTER_RELEASE, error)
            self._count(plugin.name, None)
        return ""

    def _with(self, backend: str, hook: str) -> list[InstalledObserver]:
        return [one for one in self._plugins if hook in one.hooks and backend in one.backends]

    def _failed(self, plugin: InstalledObserver, hook: str, error: BackendError) -> str:
        """Counts a failed call; returns the reason."""
        self._count(plugin.name, Failure.of(error))
        return f"{hook} of {plugin.name}: {error.message}"


def _added(plugin: InstalledObserver, request: ContainerRequest) -> Edits:
    """What a hook adds. Raises ``BackendError`` if it raises anything, or its answer is unusable."""
    parts = _called(plugin, BEFORE_CONTAINER, request=request)
    added = Edits.merge([checked_edits(one, "it") for one in parts if one is not None])
    size = sum(
        len(text) for pairs in (added.env, added.annotations) for pair in pairs.items() for text in pair
    )
    if size > MAX_TEXT:
        raise BackendError(
            f"it answered variables and annotations of {size} characters, more than {MAX_TEXT}"
        )
    return added


def _called(plugin: InstalledObserver, hook: str, **arguments: object) -> list[Any]:
    """Calls a hook. Raises ``BackendError`` if it raises anything."""
    try:
        return list(plugin.call(hook, **arguments))
    except BackendError as error:
        raise BackendError(words(error)) from None
    except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
        raise BackendError(one_line(error)) from None


PREPARED = "being prepared for the next container"


@mutable(eq=False)
class _Due:
    """Devices whose hooks after the release have to return."""

    keys: tuple[Key, ...]
    reason: str = ""
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def health(self) -> Health:
        return unhealthy(f"{PREPARED}: {self.reason}" if self.reason else PREPARED)


class Handover:
    """The hooks of all plugins for the devices of some backends.

    ``count`` is that of :class:`HookCalls`. ``scanners`` are the backends that run, by name; ``held`` is what
    containers and claims hold, or are about to get. ``replan`` shows the health of the devices. ``file`` is
    the record; ``None`` for none. ``alone`` waits until no other devhost serves the same devices.
    """

    def __init__(
        self,
        tasks: Tasks,
        count: Callable[[str, Failure | None], None],
        scanners: Callable[[], Mapping[str, Scanner]],
        held: Callable[[], Sequence[Held]],
        replan: Callable[[], None],
        file: Path | None,
        alone: Callable[[], Awaitable[None]] | None = None,
        timing: DiscoveryTiming = DISCOVERY,
    ) -> None:
        self._tasks = tasks
        self._hooks = HookCalls(count, timing)
        self._record = HandoverRecord(file)
        self._scanners = scanners
        self._held = held
        self._replan = replan
        self._alone = alone
        self._timing = timing
        self._used: dict[Key, Given] = {}
        self._due: dict[Key, _Due] = {}
        self._ready: set[Key] = set()
        """Devices that are prepared, although the kubelet still lists the containers that had them."""
        self._keeping = Reconciler(
            self._keep,
            backoff=Backoff(*timing.handover_pauses),
            first=timing.handover_record,
            wakeable=False,
        )

    @property
    def file(self) -> Path | None:
        """The record of used devices."""
        return self._record.file

    @property
    def unrecorded(self) -> Failing | None:
        """Why the record cannot be written; ``None`` while a restart would miss nothing."""
        return self._record.failures.failing if self._used else None

    @property
    def uncalled(self) -> Mapping[str, Failing]:
        """The plugins some of whose hooks are never called, with the reason."""
        return self._hooks.uncalled

    async def run(self) -> None:
        """Keeps the record, for ever."""
        if self._alone is not None:
            await self._alone()
        await self._keeping.run()

    def follow(self, catalog: Catalog) -> None:
        """Uses the hooks of this catalog from now on."""
        self._hooks.follow(catalog)

    async def read(self) -> Sequence[Given]:
        """Takes the record of an earlier run; returns what containers were given, which may still run."""
        rows = await self._record.read()
        for row in rows:
            for device in row.used:
                self._used.setdefault((row.given.backend, device), row.given)
        return [row.given for row in rows if row.given.tokens and not row.released]

    def close(self) -> None:
        """Ends the threads; does not wait for them."""
        self._hooks.close()
        self._record.close()

    def apply(self) -> None:
        """Makes devices Unhealthy that were released, and calls their hooks. Called before each plan."""
        concerned = self._hooks.backends
        held = {one.key: one for one in self._held() if not one.moving}
        for key, one in held.items():  # given when there was no hook yet
            known = key in self._used or key in self._ready
            if key[0] in concerned and not known and isinstance(one.holder, Holder):
                self._used[key] = Given(one.backend, frozenset((one.device.id,)), one.resource, one.tokens)
        self._ready &= held.keys()
        for key in [key for key in self._used if key not in held and self._is_gone(key)][:-MOST_GONE]:
            del self._used[key]
        self._begin([key for key in self._used if key not in held and key not in self._due])
        for name, scanner in self._scanners().items():
            scanner.handover = self if name in concerned else None
            scanner.health.prepared = {
                device: due.health for (backend, device), due in self._due.items() if backend == name
            }

    def _is_gone(self, key: Key) -> bool:
        scanner = self._scanners().get(key[0])
        return scanner is not None and scanner.listed and key[1] not in scanner.devices

    def additions(self, backend: str, devices: Sequence[Device]) -> Edits:
        """What the hooks added for exactly these devices. May be called from any thread."""
        given = self._used.get((backend, devices[0].id)) if devices else None
        same = given is not None and given.devices == {device.id for device in devices}
        return given.additions if given is not None and same else Edits()

    async def before(self, request: ContainerRequest, tokens: Sequence[str] = ()) -> None:
        """Calls the hooks before a container gets devices, which count as reserved already.

        Raises ``AllocationError`` if a hook refuses the container, failed or hangs, or a device is being
        prepared.
        """
        keys = [(request.backend, device.id) for device in request.devices]
        await self._prepared(keys, request, tokens)
        ids = frozenset(device.id for device in request.devices)
        given = Given(request.backend, ids, request.resource, tuple(tokens))
        self._used.update(dict.fromkeys(keys, given))
        self._ready.difference_update(keys)
        await self._write_record()
        parts = await self._hooks.before(request)
        given = replace(given, additions=Edits.merge(parts), at=time.monotonic())
        self._used.update(dict.fromkeys(keys, given))
        if parts:
            await self._write_record()

    async def _prepared(self, keys: Sequence[Key], request: ContainerRequest, tokens: Sequence[str]) -> None:
        """Waits until the devices of an earlier container are prepared."""
        now, mine = time.monotonic(), set(tokens)

        def is_other(held: Held) -> bool:
            if request.claim is not None:
                return held.holder != request.claim
            return held.resource != request.resource or not mine.issuperset(held.tokens)

        shared = {one.key for one in self._held() if not one.moving and is_other(one)}
        wanted = [key for key in keys if key in self._used]
        dirty = [
            key
            for key in wanted
            if key not in shared and now - self._used[key].at >= self._timing.handover_pod
        ]
        self._begin([key for key in dirty if key not in self._due])
        waiting = [due for key in wanted if (due := self._due.get(key))]
        try:
            async with asyncio.timeout(self._timing.handover_wait):
                for due in waiting:
                    await due.done.wait()
        except TimeoutError:
            late = next(due for due in waiting if not due.done.is_set())
            self._replan()
            reason = f"{late.keys[0][1]} is unhealthy: {late.health.reason}"
            raise AllocationError(f"{request.resource}: {reason}") from None

    def _begin(self, keys: Iterable[Key]) -> None:
        """Begins to prepare devices; those that were given together are prepared together."""
        groups: dict[int, list[Key]] = {}
        for key in keys:
            scanner = self._scanners().get(key[0])
            if scanner is not None and key[1] in scanner.devices:
                groups.setdefault(id(self._used[key]), []).append(key)
        for group in groups.values():
            if not self._hooks.has_after(group[0][0]):
                for key in group:
                    del self._used[key]
                continue
            due = _Due(tuple(group))
            self._due.update(dict.fromkeys(group, due))
            name = f"handover {group[0][0]} {' '.join(device for _, device in group)}"
            self._tasks.spawn(name, lambda due=due: self._prepare(due))  # type: ignore[misc]

    async def _prepare(self, due: _Due) -> None:
        """Calls the hooks after a release until they return."""
        if self._alone is not None:
            await self._alone()
        backend, backoff, incident = due.keys[0][0], Backoff(*self._timing.handover_pauses), Incident()
        names = [device for _, device in due.keys]
        worker = WorkerThread(f"after-{backend}")
        await self._write_record()
        try:
            while reason := await self._released(worker, due):
                if incident.news(reason):
                    log.error("devices are not prepared", backend=backend, devices=names, reason=reason)
                due.reason = reason
                self._replan()
                if self._used.keys().isdisjoint(due.keys):
                    break  # they are gone, and forgotten
                await asyncio.sleep(backoff.delay())
        finally:
            worker.close()
        if not reason:
            log.info("devices are prepared for the next container", backend=backend, devices=names)
        for key in due.keys:
            self._due.pop(key, None)
            self._used.pop(key, None)
            self._ready.add(key)
        await self._write_record()
        due.done.set()
        self._replan()

    async def _released(self, worker: WorkerThread, due: _Due) -> str:
        """Calls each hook after a release once; returns why one failed."""
        backend = due.keys[0][0]
        # two calls for one device never run at the same time
        if self._hooks.has_after(backend) and worker.abandoned:
            return due.reason
        scanner = self._scanners().get(backend)
        found = scanner.devices if scanner is not None else {}
        devices = tuple(found[device] for _, device in due.keys if device in found)
        if len(devices) < len(due.keys):
            return "it is gone"
        return await self._hooks.after(worker, backend, devices)

    async def _write_record(self) -> None:
        rows: dict[tuple[int, bool], tuple[Given, list[str]]] = {}
        for key, given in self._used.items():
            rows.setdefault((id(given), key in self._due), (given, []))[1].append(key[1])
        await self._record.write(
            [HandedOver(given, used, released) for (_, released), (given, used) in rows.items()]
        )
        if self._record.failures.reason:
            self._keeping.wake()

    async def _keep(self) -> float:
        """Writes the record again if it was removed or could not be written."""
        if self._record.failures.reason or (self._used and await self._record.is_lost()):
            await self._write_record()
            if self._record.failures.reason:
                raise Retry
        return self._timing.handover_record
