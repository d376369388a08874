"""One backend's probes: when to ask, and for which devices an answer counts.

A probe is dear (it may start a process, or wait for firmware), so it runs beside the looks and never
before them, seldom, and only while there are devices. What it said of a device holds until the next
answer. Nothing it says is laid on a device that was not there all the time while it ran, or that
``discover`` tells otherwise of by then: that one is asked for again, soon.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import BackendError
from devhost.backend.model import HEALTHY, Device, Health

APART = 5.0
"""Seconds at least between two probes, whoever asks for them."""

REST = 4.0
"""How many times its own duration follows a probe as a pause: probes take a fifth of the time at most."""

LONGEST_REST = 60.0
"""Seconds; the longest such pause."""

T = TypeVar("T")
Probe = Callable[[Sequence[Device]], Awaitable[Mapping[str, Health]]]


@dataclass(slots=True)
class Trouble:
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

    def over(self) -> None:
        """A call succeeded, or there is nothing to ask any more."""
        self.reason = ""


class Probing:
    """Probes the devices of one backend.

    Args:
        probe: asks the backend; raises BackendError where it fails or hangs.
        told: called after each probe, with the error if it failed.
        resync: seconds between probes when nobody asks for one.
        clock: monotonic seconds, those of the event loop.
    """

    def __init__(
        self,
        probe: Probe,
        told: Callable[[BackendError | None], None],
        resync: float,
        clock: Callable[[], float],
    ) -> None:
        self._probe = probe
        self._told = told
        self._resync = resync
        self._clock = clock
        self.trouble = Trouble()
        self.sick: Mapping[str, Health] = {}
        """The verdicts that hold now, of the devices that are not well."""
        self.tried = False
        """Whether a probe has ended, well or not."""
        self._answered = False
        self._devices: Mapping[str, Device] = {}
        self._asked: Mapping[str, Device] = {}  # of the probe that runs, those that never were away since
        self._judged: Mapping[str, Device] = {}  # as they were when a verdict was given, the same
        self._due = asyncio.Event()
        self._pacer = Pacer(REST, APART, LONGEST_REST)
        self._backoff = Backoff(APART, 30.0)

    def succeed(self, before: Probing) -> None:
        """Begins with what the probes of the same devices said so far, until there is an answer."""
        self.sick, self.tried, self._answered = before.sick, before.tried, before._answered
        self.trouble = replace(before.trouble)

    def ask(self) -> None:
        """Asks for a probe soon; many requests are folded into one."""
        self._due.set()

    def see(self, devices: Mapping[str, Device]) -> None:
        """Takes what a look found. Devices of which nothing is known are probed soon."""
        self._devices = devices
        self._asked = _among(self._asked, devices)
        self._judged = _among(self._judged, devices)
        self.sick = _among(self.sick, devices)
        if not devices:
            self.trouble.over()  # nobody is left who could be in doubt
        elif self._owes():
            self.ask()

    async def run(self) -> None:
        """Probes when asked, and at the slow resync while there are devices; never ends by itself."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._resync if self._devices else None):
                    await self._due.wait()
            await asyncio.sleep(self._pacer.pause(self._clock()))
            if not self._devices:
                self._due.clear()
                continue
            began = self._clock()
            answered = await self.once()
            self._pacer.ran(began, self._clock())
            if answered:
                self._backoff.reset()
            else:
                # Requests do not shorten the wait: hardware in trouble is not helped by more calls.
                self.ask()
                await asyncio.sleep(self._backoff.delay())

    async def once(self) -> bool:
        """Probes the devices there are now; false if that failed, which :attr:`trouble` then tells of."""
        self._due.clear()
        asked = self._asked = self._devices
        if not asked:
            return True
        began = self._clock()
        failure: BackendError | None = None
        try:
            verdicts = await self._probe(tuple(asked.values()))
        except BackendError as error:
            failure = error
            if self._devices:
                # Whoever has never had an answer cannot fall back on the last one.
                self.trouble.add(error.message, began if self._answered else -math.inf)
        else:
            self.trouble.over()
            self._answered = True
            self._judge(verdicts)
        finally:
            self._asked = {}
        self.tried = True
        self._told(failure)
        return failure is None

    def _judge(self, verdicts: Mapping[str, Health]) -> None:
        """Lays the verdicts on the devices they were given of; one that is not named is healthy."""
        self._judged = {
            name: asked for name, asked in self._asked.items() if _alike(asked, self._devices[name])
        }
        self._asked = {}
        ill = {name for name in self._judged if not verdicts.get(name, HEALTHY).healthy}
        # One that was unplugged for less time than passes between two looks fails its probe as a dead one.
        doubtful = ill - self.sick.keys()
        kept = {name: verdict for name, verdict in self.sick.items() if name not in self._judged}
        self.sick = kept | {name: verdicts[name] for name in ill}
        if doubtful or self._owes():
            self.ask()

    def _owes(self) -> bool:
        """Whether some device was never asked for, or is not what it was when it was found to be ill."""
        for name, device in self._devices.items():
            known = self._asked.get(name) or self._judged.get(name)
            if known is None or (name in self.sick and known.health != device.health):
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
