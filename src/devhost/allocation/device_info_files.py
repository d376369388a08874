"""Tells network plugins of the devices of each pod: a file when it starts, none any more when it is gone.

A file stays when devhost stops, for its pod goes on, and a network plugin reads it again when the pod's
sandbox is made anew. So after a start files are only removed once the kubelet has said who holds what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from devhost.backend.backoff import Backoff
from devhost.backend.errors import AllocationError, EnvironmentFailure
from devhost.backend.incident import Incident
from devhost.discovery.worker import FileWorker
from devhost.telemetry.log import get

from .device_info import DeviceInfoDirectory, Document

log = get(__name__)

MEND = (
    "deviceInfo.directory must be a directory that devhost may write to; "
    "deviceInfo: {write: false} where no network plugin reads it"
)

UNDECIDED = 2.0
"""Seconds between looks whether the kubelet has said who holds what, while a file depends on it."""


class DeviceInfoFiles:
    """Writes the files of pods that start and removes those of pods that are gone.

    Args:
        directory: where new files go; ``None`` for nowhere. Files in an earlier one are still removed.
        held: whether a container holds a token of a resource; ``None`` while that is not known.
        tag: as for :class:`DeviceInfoDirectory`.
    """

    def __init__(
        self, directory: Path | None, held: Callable[[str, str], bool | None], tag: str = ""
    ) -> None:
        self._held = held
        self._tag = tag
        self._lane = FileWorker("device-info", MEND)
        self._places: dict[Path, DeviceInfoDirectory] = {}
        self._place: DeviceInfoDirectory | None = None
        self._starting: list[tuple[str, str]] = []
        self._wake = asyncio.Event()
        self._unremoved = Incident()
        self.move(directory)

    @property
    def wanted(self) -> bool:
        """Whether files are written at all."""
        return self._place is not None

    def move(self, directory: Path | None) -> None:
        """From now on new files go to ``directory``; ``None`` for nowhere."""
        if directory is not None and directory not in self._places:
            self._places[directory] = DeviceInfoDirectory(directory, self._tag)
        self._place = self._places[directory] if directory is not None else None
        self._wake.set()

    def wake(self) -> None:
        """Some token may have been released."""
        self._wake.set()

    async def announce(self, resource: str, documents: Mapping[str, Document]) -> None:
        """Writes what there is to say of the devices of a container that starts, by token.

        Until it has returned the tokens count as held.

        Raises:
            AllocationError: a file cannot be written; none of them is then.
        """
        place = self._place
        if place is None or not documents:
            return
        starting = [(resource, token) for token in documents]
        self._starting += starting
        try:
            replaced = await self._lane.file(f"write to {place.directory}", place.write, resource, documents)
        except EnvironmentFailure as error:
            raise AllocationError(f"{resource}: {error}") from None
        finally:
            for one in starting:
                self._starting.remove(one)
            self._wake.set()  # should the pod not start after all, nobody will tell
        for name in replaced:
            log.warning("replaced a device-info file of another program", path=str(place.directory / name))

    async def run(self) -> None:
        """Removes files whose token nobody holds, whenever :meth:`wake` says so, for ever."""
        backoff = Backoff(1.0, 60.0)
        while True:
            self._wake.clear()
            wait: float | None = None
            try:
                if not all([await self._clear(place) for place in list(self._places.values())]):
                    wait = UNDECIDED
                if self._unremoved.over():
                    log.info("device-info files can be removed again")
                backoff.reset()
            except EnvironmentFailure as error:
                wait = backoff.delay()
                if self._unremoved.news(str(error)):
                    log.warning("a device-info file stays behind", reason=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    def close(self) -> None:
        """Lets the thread end; waits for nobody, and removes nothing: the pods go on."""
        self._lane.close()

    async def _clear(self, place: DeviceInfoDirectory) -> bool:
        """Removes what nobody holds; false while it is not known who holds what."""
        own = await self._lane.file(f"read {place.directory}", place.own)
        # decided and queued without a pause between, so that a write for the same token comes after
        held = {
            name: (one.resource, one.token) in self._starting or self._held(one.resource, one.token)
            for name, one in own.items()
        }
        if stale := [name for name, verdict in held.items() if verdict is False]:
            await self._lane.file(f"remove files from {place.directory}", place.remove, stale)
        return None not in held.values()
