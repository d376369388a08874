"""How closely the devices of one backend are joined: asked after looks, kept, and ready for requests.

``Backend.links`` is never called while a kubelet waits. A call that fails or hangs costs affinity and
nothing else: it runs on a lane of its own, is noted in the log once, and is tried again ever more seldom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import combinations, islice

from devhost.backend.backoff import Backoff
from devhost.backend.errors import BackendError
from devhost.backend.model import Device
from devhost.telemetry.log import get

log = get(__name__)

MOST = 64
"""Devices between which links are asked for, 2016 pairs: with more of one kind no preference weighs them."""

AT_ONCE = 128
"""Pairs in one call to the lane, so that its deadline is for work of a known size."""

Pair = tuple[Device, Device]


class LinkCache:
    """Keeps :attr:`links` in step with the devices.

    Args:
        backend: its name, for the log.
        ask: the closeness of each of some pairs; raises BackendError.
    """

    def __init__(self, backend: str, ask: Callable[[Sequence[Pair]], Awaitable[Sequence[int]]]) -> None:
        self.links: Mapping[frozenset[str], int] = {}
        """The closeness of pairs of devices by their ids. Replaced whole, never changed."""
        self._backend = backend
        self._ask = ask
        self._known: dict[tuple[str, str], tuple[Device, Device, int]] = {}
        self._devices: Mapping[str, Device] = {}
        self._wake = asyncio.Event()
        self._backoff = Backoff(5.0, 600.0)
        self._failed = False

    def see(self, devices: Mapping[str, Device]) -> None:
        """Takes the devices that exist now; those unchanged are the same objects."""
        if devices is not self._devices:
            self._devices = devices
            self._wake.set()

    async def run(self) -> None:
        """Asks whenever there are new pairs; never ends by itself."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self.refresh():
                await asyncio.sleep(self._backoff.delay())
                self._wake.set()

    async def refresh(self) -> bool:
        """Asks for the pairs that are not known; false if that failed, and what was known stays."""
        devices = self._devices
        if len(devices) > MOST:
            self._keep({})
            return True
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
            while some := list(islice(pairs, AT_ONCE)):
                for (a, b), closeness in zip(some, await self._ask(some), strict=True):
                    known[a.id, b.id] = (a, b, closeness)
        except BackendError as error:
            self._keep(known)
            if not self._failed:
                log.warning(
                    "how devices are joined is not known", backend=self._backend, reason=error.message
                )
            self._failed = True
            return False
        if self._failed:
            log.info("how devices are joined is known again", backend=self._backend)
        self._failed = False
        self._backoff.reset()
        self._keep(known)
        return True

    def _keep(self, known: dict[tuple[str, str], tuple[Device, Device, int]]) -> None:
        self._known = known
        self.links = {frozenset(names): closeness for names, (_, _, closeness) in known.items() if closeness}
