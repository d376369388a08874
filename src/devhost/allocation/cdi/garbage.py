"""Removes CDI specifications that no container needs any more.

A specification outlives its resource: the kubelet repeats an answer of old whenever a container restarts,
and the names in it must lead somewhere for as long as the pod lives. So a file goes when the configuration
has no resource injected by CDI that it could belong to, and no container has anything of the resource.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from devhost.backend.backoff import Backoff
from devhost.backend.errors import EnvironmentFailure
from devhost.telemetry.log import get

from .files import SpecDirectory

log = get(__name__)

AGAIN = 30.0
"""Seconds between looks while it is not known who holds what."""


class CdiGarbageCollector:
    """Looks whenever it is woken.

    Args:
        directory: where the files are.
        needed: names of the resources, or templates of them, whose files are kept up at present.
        held: names of the resources of which a container has something; ``None`` while that is not known,
            and nothing is removed then.
        follow: called with each resource of which only a container keeps the file: somebody should find
            out when that ends.
    """

    def __init__(
        self,
        directory: SpecDirectory,
        needed: Callable[[], Iterable[str]],
        held: Callable[[], Collection[str] | None],
        follow: Callable[[str], object],
    ) -> None:
        self._directory = directory
        self._needed = needed
        self._held = held
        self._follow = follow
        self._wake = asyncio.Event()
        self._told = ""

    def wake(self) -> None:
        """A resource left, or a container let go of something."""
        self._wake.set()

    async def run(self) -> None:
        """Clears for ever."""
        backoff = Backoff(1.0, 60.0)
        while True:
            self._wake.clear()
            held = self._held()
            again = AGAIN if held is None else None
            if held is not None and not await self._clear(held):
                again = backoff.delay()
            elif held is not None:
                backoff.reset()
            with suppress(TimeoutError):
                async with asyncio.timeout(again):
                    await self._wake.wait()

    async def _clear(self, held: Collection[str]) -> bool:
        """Removes what is needed for nothing; false where the directory does not let us."""
        try:
            removed, left = await self._directory.sweep([*self._needed()], held)
        except EnvironmentFailure as error:
            if str(error) != self._told:
                log.warning("stale CDI specifications may be left", reason=str(error))
            self._told = str(error)
            return False
        if self._told:
            log.info("stale CDI specifications can be removed again")
        self._told = ""
        for path in removed:
            log.info("removed a CDI specification that nobody needs any more", path=str(path))
        for resource in held:
            if self._directory.path(resource) in left:
                self._follow(resource)
        return True
