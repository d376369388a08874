"""Calls the hooks of plugins for the devices that containers get and release, on threads with deadlines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from devhost.backend.base import ContainerRequest
from devhost.backend.errors import AllocationError, BackendError, BackendTimeout, one_line, words
from devhost.backend.model import Device, Edits
from devhost.discovery.catalog import AFTER_RELEASE, BEFORE_CONTAINER, Catalog, InstalledObserver
from devhost.discovery.runner import check_edits
from devhost.planning.timing import DiscoveryTiming
from devhost.runtime.log import get
from devhost.runtime.worker import WorkerThread
from devhost.telemetry.metrics import ObserverFailure

log = get(__name__)

MAX_TEXT = 1 << 16
"""Characters of the variables and annotations that a hook may add for a container."""


class HookCalls:
    """The plugins with hooks for devices of named backends.

    ``count`` receives each call: the name of the plugin, and how the call failed, if it did.
    """

    def __init__(self, count: Callable[[str, ObserverFailure | None], None], timing: DiscoveryTiming) -> None:
        self._count = count
        self._timing = timing
        self._plugins: Sequence[InstalledObserver] = ()
        self._workers: dict[str, WorkerThread] = {}
        """The threads of the hooks before a container, by plugin."""

    def follow(self, catalog: Catalog) -> None:
        self._plugins = [one for one in catalog.observers if one.backends]
        for plugin in self._plugins:
            for name in plugin.backends:
                if name not in catalog.installed:
                    log.warning("a hook is for an unknown backend", plugin=plugin.name, backend=name)

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
        kind = ObserverFailure.TIMEOUT if isinstance(error, BackendTimeout) else ObserverFailure.ERROR
        self._count(plugin.name, kind)
        return f"{hook} of {plugin.name}: {error.message}"


def _added(plugin: InstalledObserver, request: ContainerRequest) -> Edits:
    """What a hook adds. Raises ``BackendError`` if it raises anything, or its answer is unusable."""
    parts = [one for one in _called(plugin, BEFORE_CONTAINER, request=request) if one is not None]
    for part in parts:
        if not isinstance(part, Edits):
            raise BackendError(f"it answered {type(part).__name__}, not Edits")
        check_edits(part, "it")
    added = Edits.merge(parts)
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
