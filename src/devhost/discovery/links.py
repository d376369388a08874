"""How closely the devices of one backend are connected, cached after scans for later requests.

``Backend.links`` is never called while a kubelet waits. A call that fails or hangs only affects affinity: it
runs on a separate thread, is logged once, and is retried with back-off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import combinations, islice

from devhost.backend.backoff import Backoff
from devhost.backend.errors import BackendError
from devhost.backend.model import Device
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler

log = get(__name__)

MOST = 64
"""Devices of a backend whose links are read (2016 pairs); with more devices, preferences ignore links."""

AT_ONCE = 128
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
        self._refreshes = Reconciler(
            self.refresh,
            backoff=Backoff(5.0, 600.0),
            failures=FailureLog(
                log,
                "links between devices are not known",
                "links between devices are known again",
                backend=backend,
            ),
            first=None,
            wakeable=False,
            clock=clock,
        )

    def update(self, devices: Mapping[str, Device]) -> None:
        """Sets the devices that exist now; unchanged ones are the same objects."""
        if devices is not self._devices:
            self._devices = devices
            self._refreshes.wake()

    async def run(self) -> None:
        """Reads links whenever there are new pairs; never returns by itself."""
        await self._refreshes.run()

    async def refresh(self) -> None:
        """Reads the links of pairs that are not known. After a ``BackendError``, known links are kept."""
        devices = self._devices
        if len(devices) > MOST:
            self._keep({})
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
            while some := list(islice(pairs, AT_ONCE)):
                for (a, b), closeness in zip(some, await self._ask(some), strict=True):
                    known[a.id, b.id] = (a, b, closeness)
        except BackendError:
            self._keep(known)
            raise
        self._keep(known)

    def _keep(self, known: dict[tuple[str, str], tuple[Device, Device, int]]) -> None:
        self._known = known
        self.links = {frozenset(names): closeness for names, (_, _, closeness) in known.items() if closeness}
