"""Logs what the file asks for and the node lacks: when it begins, when it changes, and when it ends.

This covers entries without devices or with an unexpected number, hardware without its driver, and devices
that the plan refuses to an entry because of how the file is written.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from devhost.backend import MissingDriver
from devhost.backend.incident import Incident
from devhost.discovery.scanner import BackendNow
from devhost.planning.claims import holder_field
from devhost.planning.plan import Plan, Refusal, RefusalKind
from devhost.planning.settings import Identity, ResourceSettings, Settings
from devhost.runtime.log import get

from .entries import MAX_COMPARISONS, EntryOutcomes, EntryState, place, wanted
from .now import EntriesNow

log = get(__name__)

QUIET = 1.0
"""Seconds after a plan until a changed reason is logged: a burst of events makes many plans."""

NAMED = 20
"""Most refused devices that are logged after one plan."""

MISTAKES = frozenset({RefusalKind.NAME, RefusalKind.UNSHARED, RefusalKind.FULL})
"""Refusals that only an edit of the file can end. An earlier entry may have a device on purpose."""


@dataclass(slots=True)
class _Empty:
    """An entry without devices, or with an unexpected number; ``since`` is wall-clock seconds."""

    entry: ResourceSettings
    since: float
    logged: Incident = field(default_factory=Incident)


class Shortages:
    """Follows the plans of one host."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._now = EntriesNow(EntryOutcomes(settings, None, {}))
        self._identified = settings.identified()
        self._empty: dict[Identity, _Empty] = {}
        self._takers: set[tuple[Identity, int]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, settings: Settings, plan: Plan, backends: Mapping[str, BackendNow]) -> None:
        if settings is not self._settings:
            self._settings, self._identified = settings, settings.identified()
        before = self._now
        outcomes = EntryOutcomes(
            settings, plan, backends, comparisons=MAX_COMPARISONS, before=before.outcomes
        )
        mistakes = [one for one in plan.refusals if one.kind in MISTAKES]
        self._now = now = EntriesNow(outcomes, missing_drivers(settings, backends), mistakes)
        self._follow_entries()
        _log_drivers(dict(_by_hardware(before)), dict(_by_hardware(now)))
        _log_refusals(before.refusals, now.refusals)
        self._follow_takers(plan)
        if self._empty and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(QUIET, self._report_all)

    def now(self) -> EntriesNow:
        """What the last plan has shown."""
        since = {one.entry.index: one.since for one in self._empty.values()}
        return replace(self._now, since=since)

    def close(self) -> None:
        """Stops logging."""
        if self._timer is not None:
            self._timer.cancel()

    def _follow_entries(self) -> None:
        before, self._empty = self._empty, {}
        began = []
        for identity, entry in self._identified:
            empty = before.get(identity)
            count = self._now.outcomes.count(entry)
            if count and not entry.unexpected(count):
                if empty is not None:
                    log.info(
                        "entry has devices",
                        entry=place(entry),
                        resource=entry.name,
                        backend=entry.backend,
                        devices=count,
                    )
            elif empty is not None and _alike(empty.entry, entry):
                empty.entry = entry
                self._empty[identity] = empty
            elif not self._now.outcomes.waits(entry):
                self._empty[identity] = _Empty(entry, empty.since if empty else time.time())
                began.append(self._empty[identity])
        if began:
            self._report(began)

    def _report_all(self) -> None:
        self._timer = None
        self._report([*self._empty.values()])

    def _report(self, empty: Sequence[_Empty]) -> None:
        outcomes = self._now.outcomes.all()
        for one in empty:
            outcome = outcomes[one.entry.index]
            if outcome.state in (EntryState.WAITING, EntryState.MOVING) or not outcome.reason:
                continue
            if not one.logged.news(outcome.reason):
                continue
            where, name = place(one.entry), one.entry.name
            about = {"backend": one.entry.backend, "reason": outcome.reason}
            holder = outcome.held_by
            if outcome.devices:
                log.warning(
                    "entry has an unexpected number of devices",
                    entry=where,
                    resource=name,
                    **about,
                    **holder_field(holder),
                )
            elif one.entry.may_be_empty:
                log.info("entry has no devices", entry=where, resource=name, **about, **holder_field(holder))
            else:
                log.warning(
                    "entry has no devices", entry=where, resource=name, **about, **holder_field(holder)
                )

    def _follow_takers(self, plan: Plan) -> None:
        """Logs entries that lose devices to an earlier entry and have others."""
        taken = Counter((one.entry, one.taker) for one in plan.refusals if one.kind is RefusalKind.TAKEN)
        before, self._takers = self._takers, set()
        identities = {entry.index: (identity, entry) for identity, entry in self._identified if taken}
        for (index, taker), count in taken.items():
            identity, entry = identities[index]
            if taker is None or not self._now.outcomes.count(entry):
                continue
            self._takers.add((identity, taker))
            if (identity, taker) not in before:
                log.info(
                    "an earlier entry takes devices",
                    entry=place(entry),
                    resource=entry.name,
                    earlier=place(self._settings.resources[taker]),
                    devices=count,
                )


def missing_drivers(
    settings: Settings, backends: Mapping[str, BackendNow]
) -> Sequence[tuple[str, MissingDriver]]:
    """Hardware without its driver that an entry could select, each with the name of its backend."""
    return [
        (name, one)
        for name, backend in sorted(backends.items())
        for one in backend.condition.missing_drivers
        if wanted(one, [entry for entry in settings.resources if entry.backend == name])
    ]


def _log_drivers(before: Mapping[tuple[str, str], str], now: Mapping[tuple[str, str], str]) -> None:
    for (backend, hardware), reason in now.items():
        if before.get((backend, hardware)) != reason:
            log.warning("hardware lacks its driver", backend=backend, hardware=hardware, reason=reason)
    for backend, hardware in before.keys() - now.keys():
        log.info("hardware no longer lacks its driver", backend=backend, hardware=hardware)


def _log_refusals(before: Sequence[Refusal], now: Sequence[Refusal]) -> None:
    known = {(one.backend, one.device, refusal_reason(one)) for one in before}
    found = {(one.backend, one.device, refusal_reason(one)): None for one in now}
    new = [one for one in found if one not in known]
    for backend, device, reason in new[:NAMED]:
        log.warning("device refused by the plan", backend=backend, device=device, reason=reason)
    if len(new) > NAMED:
        log.warning("more devices refused by the plan", devices=len(new) - NAMED)
    still = {(backend, device) for backend, device, _ in found}
    over = sorted({(backend, device) for backend, device, _ in known} - still)
    for backend, device in over[:NAMED]:
        log.info("device no longer refused by the plan", backend=backend, device=device)
    if len(over) > NAMED:
        log.info("more devices no longer refused by the plan", devices=len(over) - NAMED)


def refusal_reason(refusal: Refusal) -> str:
    """Why the plan refuses a device to an entry, with the place of the entry."""
    return f"resources[{refusal.entry}]: {refusal.reason}"


def _alike(one: ResourceSettings, other: ResourceSettings) -> bool:
    return replace(one, index=other.index) == other


def _by_hardware(now: EntriesNow) -> Iterator[tuple[tuple[str, str], str]]:
    return (((backend, one.subject), one.reason) for backend, one in now.missing_drivers)
