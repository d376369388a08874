"""One backend's probes: when to ask, and for which devices an answer counts.

A probe is expensive (it may start a process, or wait for firmware), so it runs beside the scans and never
before them, seldom, and only while there are devices. Its verdicts hold until the next answer. A verdict
does not count for a device that was away while the probe ran, or that ``discover`` reports differently by
then: that device is probed again soon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import BackendError
from devhost.backend.model import HEALTHY, Device, Health

from .reconciler import Clock, Reconciler, Retry
from .runner import BackendRunner
from .timing import Timing

REST = 4.0
"""How many times its own duration follows a probe as a pause: probes take a fifth of the time at most."""

LONGEST_REST = 60.0
"""Seconds; the longest such pause."""

T = TypeVar("T")


@dataclass(slots=True)
class FailureStreak:
    """Calls of one kind that fail one after another; ``reason`` is the last one's, empty if there are none.

    ``since`` is when the first of them was made, in monotonic seconds.
    """

    reason: str = ""
    since: float = 0.0

    def add(self, reason: str, began: float) -> None:
        """One more call failed; it was made at ``began``."""
        if not self.reason:
            self.since = began
        self.reason = reason

    def end(self) -> None:
        """A call succeeded, or there is nothing left to ask."""
        self.reason = ""


class Probing:
    """Probes the devices of one backend.

    Args:
        runner: the backend in service.
        probed: called after each probe, with the error if it failed.
        predecessor: the probes of the same devices until now; their verdicts hold until there is an answer.
        clock: a fake one in tests.
    """

    def __init__(
        self,
        runner: BackendRunner,
        probed: Callable[[BackendError | None], None],
        timing: Timing,
        predecessor: Probing | None,
        clock: Clock,
    ) -> None:
        self._runner = runner
        self._probed = probed
        self._resync = timing.resync
        self._clock = clock
        self.failing: FailureStreak = replace(predecessor.failing) if predecessor else FailureStreak()
        self.unhealthy: Mapping[str, Health] = predecessor.unhealthy if predecessor else {}
        """The verdicts that hold now, of the devices that are not healthy."""
        self.tried: bool = predecessor.tried if predecessor else False
        """Whether a probe has ended, successfully or not."""
        self._answered: bool = predecessor._answered if predecessor else False
        self._devices: Mapping[str, Device] = {}
        self._asked: Mapping[str, Device] = {}  # of the probe that runs, those that never were away since
        self._judged: Mapping[str, Device] = {}  # as they were when a verdict was given, the same
        self._probes = Reconciler(
            self._probe,
            backoff=Backoff(timing.between_probes, 30.0),
            first=None,
            pacer=Pacer(REST, timing.between_probes, LONGEST_REST),
            wakeable=False,
            clock=clock,
        )

    def request(self) -> None:
        """Asks for a probe soon; many requests lead to one probe."""
        self._probes.wake()

    def update(self, devices: Mapping[str, Device]) -> None:
        """Takes what a scan found. Devices without a verdict are probed soon."""
        self._devices = devices
        self._asked = _among(self._asked, devices)
        self._judged = _among(self._judged, devices)
        self.unhealthy = _among(self.unhealthy, devices)
        if not devices:
            self.failing.end()  # no device is left that could be in doubt
        elif self._lacks_verdict():
            self.request()

    async def run(self) -> None:
        """Probes when asked, and at the slow resync while there are devices; never ends by itself."""
        await self._probes.run()

    async def _probe(self) -> float | None:
        if not self._devices:
            return None
        if not await self.once():
            raise Retry
        return self._resync

    async def once(self) -> bool:
        """Probes the devices there are now; false if that failed, which :attr:`failing` then describes."""
        asked = self._asked = self._devices
        if not asked:
            return True
        began = self._clock.time()
        failure: BackendError | None = None
        try:
            verdicts = await self._runner.probe(tuple(asked.values()))
        except BackendError as error:
            failure = error
            if self._devices:
                # A backend that has never answered has no last answer that could still hold.
                self.failing.add(error.message, began if self._answered else -math.inf)
        else:
            self.failing.end()
            self._answered = True
            self._judge(verdicts)
        finally:
            self._asked = {}
        self.tried = True
        self._probed(failure)
        return failure is None

    def _judge(self, verdicts: Mapping[str, Health]) -> None:
        """Applies the verdicts to the devices they were given for; a device that is not named is healthy."""
        self._judged = {
            name: asked for name, asked in self._asked.items() if _alike(asked, self._devices[name])
        }
        self._asked = {}
        failed = {name for name in self._judged if not verdicts.get(name, HEALTHY).healthy}
        # A device that was unplugged for a moment between two scans fails its probe like a dead one.
        doubtful = failed - self.unhealthy.keys()
        kept = {name: verdict for name, verdict in self.unhealthy.items() if name not in self._judged}
        self.unhealthy = kept | {name: verdicts[name] for name in failed}
        if doubtful or self._lacks_verdict():
            self.request()

    def _lacks_verdict(self) -> bool:
        """Whether some device was never probed, or has changed since it was found unhealthy."""
        for name, device in self._devices.items():
            known = self._asked.get(name) or self._judged.get(name)
            if known is None or (name in self.unhealthy and known.health != device.health):
                return True
        return False


def _among(known: Mapping[str, T], devices: Mapping[str, Device]) -> Mapping[str, T]:
    """Those of ``known`` that are still there; the same mapping if all are."""
    if known.keys() <= devices.keys():
        return known
    return {name: device for name, device in known.items() if name in devices}


def _alike(a: Device, b: Device) -> bool:
    """Whether a verdict on one holds for the other. Attributes do not count: some change all the time."""
    return a is b or (a.health, a.claims, a.part_of, a.pcie_path) == (
        b.health,
        b.claims,
        b.part_of,
        b.pcie_path,
    )
