"""The probes of one backend: when to run them, and for which devices the result counts.

A probe is expensive (it may start a process, or wait for firmware). So it runs concurrently with the scans,
seldom, and only while there are devices. Its results are valid until the next one. A result does not
count for a device that was absent while the probe ran, or that ``discover`` reports differently by then: that
device is probed again soon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import BackendError
from devhost.backend.frozen import frozen
from devhost.backend.model import HEALTHY, Device, Health
from devhost.planning.timing import DiscoveryTiming
from devhost.runtime.reconciler import Clock, Reconciler, Retry

from .runner import BackendRunner

REST = 4.0
"""The pause after a probe, as a multiple of its duration: probes take at most a fifth of the time."""

LONGEST_REST = 60.0
"""The longest such pause in seconds."""

T = TypeVar("T")


@frozen
class FailureStreak:
    """Consecutive failures of one kind of call; ``reason`` is that of the last one, empty if there are none.

    ``since`` is when the first of these calls began, in monotonic seconds.
    """

    reason: str = ""
    since: float = 0.0

    def added(self, reason: str, began: float) -> FailureStreak:
        """The streak with the failure of another call, which began at ``began``."""
        return FailureStreak(reason, self.since if self.reason else began)


NOT_FAILING = FailureStreak()
"""After a call that succeeded, and while no call is needed."""


class Probing:
    """Probes the devices of one backend. Calls ``probed`` after each probe, with the error if it failed.

    The results of ``predecessor``, which had the same devices, are valid until the first result.
    """

    def __init__(
        self,
        runner: BackendRunner,
        probed: Callable[[BackendError | None], None],
        timing: DiscoveryTiming,
        predecessor: Probing | None,
        clock: Clock,
    ) -> None:
        self._runner = runner
        self._probed = probed
        self._resync = timing.resync
        self._clock = clock
        self.failing: FailureStreak = predecessor.failing if predecessor else NOT_FAILING
        self.unhealthy: Mapping[str, Health] = predecessor.unhealthy if predecessor else {}
        """The current results for the devices that are not healthy."""
        self.tried: bool = predecessor.tried if predecessor else False
        """Whether a probe has ended, successfully or not."""
        self._answered: bool = predecessor._answered if predecessor else False
        self._devices: Mapping[str, Device] = {}
        self._asked: Mapping[str, Device] = {}
        """The devices of the running probe that were never absent since."""
        self._judged: Mapping[str, Device] = {}
        """The devices with a result, as they were probed."""
        probes = Reconciler(
            self._probe,
            backoff=Backoff(timing.between_probes, 30.0),
            first=None,
            pacer=Pacer(REST, timing.between_probes, LONGEST_REST),
            wakeable=False,
            clock=clock,
        )
        self.run, self.request = probes.run, probes.wake
        """Probes soon on request, and at the resync while there are devices; never returns by itself."""

    def update(self, devices: Mapping[str, Device]) -> None:
        """Sets the devices that a scan found. Devices without a result are probed soon."""
        self._devices = devices
        self._asked = _among(self._asked, devices)
        self._judged = _among(self._judged, devices)
        self.unhealthy = _among(self.unhealthy, devices)
        if not devices:
            self.failing = NOT_FAILING  # no device is left that could be in doubt
        elif self._lacks_result():
            self.request()

    async def _probe(self) -> float | None:
        if not self._devices:
            return None
        if not await self.once():
            raise Retry
        return self._resync

    async def once(self) -> bool:
        """Probes the current devices; false if that failed, with the reason in :attr:`failing`."""
        asked = self._asked = self._devices
        if not asked:
            return True
        began = self._clock.time()
        failure: BackendError | None = None
        runner = self._runner
        found: Mapping[str, Health] = {}
        try:
            if not runner.context.released:
                found = await runner.call("probe", None, runner.probe, tuple(asked.values()))
        except BackendError as error:
            failure = error
            if self._devices:
                # A backend that has never answered has no earlier result that could still be valid.
                since = began if self._answered else -math.inf
                self.failing = self.failing.added(error.message, since)
        else:
            self.failing = NOT_FAILING
            self._answered = True
            self._judge(found)
        finally:
            self._asked = {}
        self.tried = True
        self._probed(failure)
        return failure is None

    def _judge(self, found: Mapping[str, Health]) -> None:
        """Applies the results to the devices that were probed; a device that is not named is healthy."""
        self._judged = {
            name: asked for name, asked in self._asked.items() if _alike(asked, self._devices[name])
        }
        self._asked = {}
        failed = {name for name in self._judged if not found.get(name, HEALTHY).healthy}
        # A device that was unplugged briefly between two scans fails its probe, too.
        doubtful = failed - self.unhealthy.keys()
        kept = {name: health for name, health in self.unhealthy.items() if name not in self._judged}
        self.unhealthy = kept | {name: found[name] for name in failed}
        if doubtful or self._lacks_result():
            self.request()

    def _lacks_result(self) -> bool:
        """Whether a device was never probed, or has changed since it was found unhealthy."""
        for name, device in self._devices.items():
            known = self._asked.get(name) or self._judged.get(name)
            if known is None or (name in self.unhealthy and known.health != device.health):
                return True
        return False


def _among(known: Mapping[str, T], devices: Mapping[str, Device]) -> Mapping[str, T]:
    """The items of ``known`` whose devices still exist; the same mapping if all do."""
    if known.keys() <= devices.keys():
        return known
    return {name: device for name, device in known.items() if name in devices}


def _alike(a: Device, b: Device) -> bool:
    """Whether a result for one applies to the other. Attributes are ignored: some change all the time."""
    return a is b or (a.health, a.claims, a.part_of, a.pcie_path) == (
        b.health,
        b.claims,
        b.part_of,
        b.pcie_path,
    )
