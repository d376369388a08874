"""Shows what has changed, after the lists: log, observers, node labels and status.

A plan ends with what the kubelet gets. What people and programs see follows in one step, so that it delays no
list: right after, or before a reader gets the status. What was shown last is kept here and nowhere else; what
has changed is a function of it and of what is true now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from devhost.allocation.claims import Claimed
from devhost.allocation.inventory import Given, Member
from devhost.backend import observe
from devhost.backend.model import AnyHolder, Device
from devhost.discovery.observers import Batch, Observers
from devhost.discovery.scanner import BackendState
from devhost.discovery.verdict_follower import VerdictsNow
from devhost.planning.claims import Held
from devhost.planning.settings import PLUGIN

from . import device_log
from .now import Changes, EntriesNow, Lost, Memory, Now, Reasons, Step, Token, changes, is_same
from .recent_removals import Removals
from .shortages import lost, shortages

if TYPE_CHECKING:
    from devhost.allocation.allocations import Holding
    from devhost.discovery.verdicts import Verdict


class Publication:
    """What is shown, and when.

    Args:
        collect: what is true now; it contains the memory that it gets.
        show: shows what has changed.
    """

    def __init__(self, collect: Callable[[Memory], Now], show: Callable[[Step], None]) -> None:
        self._collect = collect
        self._show = show
        self._shown: Now | None = None
        self._due: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def shown(self) -> Now:
        """What was shown last; nothing at first."""
        if self._shown is None:
            self._shown = nothing(self._collect(Memory()))
        return self._shown

    def soon(self) -> None:
        """Something has changed, such as a list, or who holds what."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._behind)

    def _behind(self) -> None:
        """Waits for the streams that were woken after the first change, which are in the queue by now."""
        self._due = asyncio.get_running_loop().call_soon(self.show)

    def show(self) -> None:
        """Shows everything that has changed. Without effect if nothing has."""
        if self._due is None:
            return
        self._due.cancel()
        self._due = None
        before = self.shown
        step = step_between(before, self._collect(before.memory))
        self._shown = step.now
        self._show(step)
        look_at = step.now.shortages.look_at
        if look_at is not None and self._timer is None:
            wait = max(0.0, look_at - step.now.clock)
            self._timer = asyncio.get_running_loop().call_later(wait, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.soon()

    def now(self) -> Now:
        """What is true now, once everything that has changed is shown."""
        if self._due is None:
            return self._collect(self.shown.memory)
        self.show()
        return self.shown

    def first_observer(self) -> None:
        """Counts what is held as shown: observers alone get that, and there were none."""
        now = self._collect(self.shown.memory)
        self._shown = replace(self.shown, held=now.held, tokens=now.tokens)

    def close(self) -> None:
        """Shows nothing that has changed until now."""
        for waiting in (self._due, self._timer):
            if waiting is not None:
                waiting.cancel()
        self._due = self._timer = None


def nothing(now: Now) -> Now:
    """The moment before the first one: everything that there is appears after it."""
    return replace(
        now,
        plans=0,
        shortages=EntriesNow(now.shortages.outcomes),
        backends={},
        resources={},
        holdings={},
        held=(),
        differences={},
        tokens=dict,
        claimed=(),
        moves=(),
        verdicts=VerdictsNow(),
        memory=Memory(),
    )


def step_between(before: Now, now: Now) -> Step:
    """What differs between two moments, of which the second one remembers the first one."""
    lists = tuple(changes(before, now))
    same = {name for name in now.resources if is_same(before, now, name)}
    removals = {name: one for name, one in before.memory.removals.items() if name in same}
    reasons: dict[str, Reasons] = {name: one for name, one in before.memory.reasons.items() if name in same}
    changed = {one.resource: one for one in lists if one.resource in same}
    for name in changed.keys() | removals.keys():
        one, known = changed.get(name), removals.pop(name, Removals())
        left, came = (one.left, one.appeared) if one else ({}, ())
        known = known.after(left, came, now.resources[name].snapshot.devices, now.at)
        if known.leaving or known.departed:
            removals[name] = known
    for one in lists:
        if one.resource in now.resources and (
            found := device_log.reasons(reasons.pop(one.resource, {}), one)
        ):
            reasons[one.resource] = found
    entries = shortages(before, now) if now.plans else None
    memory = Memory(removals, reasons, lost(now) if now.holdings else Lost(), entries)
    return Step(before, replace(now, shortages=entries or now.shortages, memory=memory), lists)


R = TypeVar("R")

Tokens = Mapping[Token, Sequence[Held]]


def tokens(held: Iterable[Held], holdings: Mapping[str, Holding]) -> Tokens:
    """What containers have through the device plugin, without what they are about to get."""
    groups: dict[tuple[str, int], tuple[tuple[str, ...], list[Held]]] = {}
    for one in held:
        if one.side == PLUGIN and one.resource in holdings:
            groups.setdefault((one.resource, id(one.tokens)), (one.tokens, []))[1].append(one)
    found: dict[Token, Sequence[Held]] = {}
    for (resource, _), (names, group) in groups.items():
        parts, pending = tuple(group), holdings[resource].pending
        found.update(((resource, token), parts) for token in names if token not in pending)
    return found


class EventPublisher:
    """The events that observers get, as functions of a step. It costs nothing while there is no observer.

    Only what containers get is published at once, because it is an occurrence and no state: the tokens of one
    container may be those of another one before the next look.
    """

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._gifts: list[tuple[str, str, Given]] = []
        """What containers got and no observer knows, each with resource and backend."""
        self._handed_out: dict[Token, Sequence[Held]] = {}
        """What containers got since the last step, as far as observers know it."""

    def follow(self, step: Step) -> None:
        """Publishes what has changed."""
        if self._observers:
            batches = Batches(step.now.at, step.now.generation)
            self._publish(changed(step, batches))
            self.flush(step.before)
            self._publish(held_otherwise(step, self._handed_out, batches))
        self._handed_out = {}

    def allocated(self, resource: str, backend: str, given: Given) -> None:
        """A container gets these tokens, each with its devices. Published by a step, or :meth:`flush`."""
        if self._observers:
            self._gifts.append((resource, backend, given))

    def flush(self, shown: Now) -> None:
        """Publishes what containers got; earlier holders of the tokens have released them."""
        gifts, self._gifts = self._gifts, []
        for resource, backend, given in gifts:
            released, got = _Parts(), _Parts()
            made: dict[int, tuple[Held, ...]] = {}
            for token, devices in given.items():
                where = resource, token
                released.add(token, self._handed_out.get(where) or shown.tokens().get(where, ()))
                if id(devices) not in made:
                    made[id(devices)] = tuple(
                        Held(resource, (), backend, device, True, None) for device in devices
                    )
                self._handed_out[where] = made[id(devices)]
                got.add(token, made[id(devices)])
            batches = Batches(time.time(), shown.generation)
            self._publish((batches.released(released), batches.allocated(got)))

    def everything(self, shown: Now) -> Iterator[Batch]:
        """The present state as events, for a new observer."""
        batches = Batches(time.time(), shown.generation)
        for resource in shown.resources.values():
            members = list(resource.snapshot.present().values())
            yield batches.appeared(resource.name, resource.entry.backend, members)
        unnamed, named = _Parts(), _Parts()
        for (_, token), parts in {**shown.tokens(), **self._handed_out}.items():
            (named if parts and parts[0].holder else unnamed).add(token, parts)
        yield batches.allocated(unnamed)
        yield batches.named(named)
        yield batches.prepared(shown.claimed)
        yield batches.backends(list(_degraded(shown).items()))
        yield batches.judged(shown.verdicts.in_force)

    def _publish(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self._observers.publish(batch)


def changed(step: Step, batches: Batches) -> Iterator[Batch]:
    """What has changed of the configuration, verdicts, devices, backends and claims."""
    before, now = step.before, step.now
    if now.last_reload is not before.last_reload:
        yield batches.configuration(str(now.configuration.file), now.last_reload.complaints)
    if now.verdicts.in_force != before.verdicts.in_force:
        known, present = frozenset(before.verdicts.in_force), frozenset(now.verdicts.in_force)
        yield batches.judged([one for one in before.verdicts.in_force if one not in present], in_force=False)
        yield batches.judged([one for one in now.verdicts.in_force if one not in known])
    for one in step.lists:
        yield from batches.changed(one)
    degraded, was_degraded = _degraded(now), _degraded(before)
    turned: list[tuple[str, str | None]] = [
        (name, reason) for name, reason in degraded.items() if name not in was_degraded
    ]
    turned += [(name, None) for name in was_degraded if name in now.backends and name not in degraded]
    yield batches.backends(turned)
    if now.claimed is not before.claimed:
        earlier, later = ({one.key: one for one in moment.claimed} for moment in (before, now))
        yield batches.unprepared([one for key, one in earlier.items() if key not in later])
        yield batches.prepared(
            [one for key, one in later.items() if key not in earlier or not one.pods <= earlier[key].pods]
        )


def held_otherwise(step: Step, handed_out: Tokens, batches: Batches) -> Iterator[Batch]:
    """Who has released what, and who holds what; ``handed_out`` is what containers got since."""
    if step.now.held is step.before.held and not handed_out:
        return
    known, present = {**step.before.tokens(), **handed_out}, step.now.tokens()
    gone, named = _Parts(), _Parts()
    for where, parts in known.items():
        if where not in present:
            gone.add(where[1], parts)
    differences: dict[tuple[int, int], _Difference] = {}
    for where, parts in present.items():
        before = known.get(where, ())
        which = id(before), id(parts)
        if which not in differences:
            differences[which] = _difference(before, parts)
        ended, new = differences[which]
        gone.add(where[1], ended)
        named.add(where[1], new)
    yield batches.released(gone)
    yield batches.named(named)


def _degraded(now: Now) -> dict[str, str]:
    conditions = ((name, one.condition) for name, one in now.backends.items())
    return {name: one.reason for name, one in conditions if one.state is BackendState.DEGRADED}


class Batches:
    """Makes events that became known at one time, in wall-clock seconds, under one configuration."""

    def __init__(self, at: float, generation: int) -> None:
        self._common: dict[str, Any] = {"at": at, "generation": generation}

    def _of(
        self, kind: type[observe.News], about: Sequence[R], facts: Callable[[R], Mapping[str, Any]]
    ) -> Batch:
        """Events of one kind, one for each item of ``about``."""
        return Batch(kind, len(about), lambda: [kind(**self._common, **facts(one)) for one in about])

    def configuration(self, file: str, complaints: Sequence[str]) -> Batch:
        return self._of(observe.ConfigurationRead, [file], lambda _: {"file": file, "complaints": complaints})

    def changed(self, changes: Changes) -> Iterator[Batch]:
        """Devices of a resource appeared, left, or became unhealthy or healthy."""
        before, after = changes.before, changes.after
        about = changes.resource, changes.backend
        turned = [name for name in (*changes.unhealthy, *changes.healthy_again) if name in before]
        yield self._of(
            observe.Left,
            tuple(changes.left.items()),
            lambda one: {**_about(*about, before[one[0]].device), "reason": one[1].text},
        )
        yield self.appeared(*about, [after[name] for name in changes.appeared])
        yield self._of(
            observe.HealthChanged,
            turned,
            lambda name: {
                **_about(*about, after[name].device),
                "health": after[name].health,
                "previous": before[name].health,
            },
        )

    def appeared(self, resource: str, backend: str, members: Sequence[Member]) -> Batch:
        return self._of(
            observe.Appeared,
            members,
            lambda member: {**_about(resource, backend, member.device), "health": member.health},
        )

    def allocated(self, parts: _Parts) -> Batch:
        return self._of(observe.Allocated, parts.by_device(), _HeldDevice.facts)

    def named(self, parts: _Parts) -> Batch:
        return self._of(observe.Held, parts.by_device(), _HeldDevice.facts_and_holder)

    def released(self, parts: _Parts) -> Batch:
        return self._of(observe.Released, parts.by_device(), _HeldDevice.facts_and_holder)

    def prepared(self, claims: Sequence[Claimed]) -> Batch:
        return self._of(observe.ClaimPrepared, claims, _claim)

    def unprepared(self, claims: Sequence[Claimed]) -> Batch:
        return self._of(observe.ClaimUnprepared, claims, _claim)

    def backends(self, states: Sequence[tuple[str, str | None]]) -> Batch:
        return self._of(
            observe.BackendChanged,
            states,
            lambda one: {"backend": one[0], "degraded": one[1] is not None, "reason": one[1]},
        )

    def judged(self, verdicts: Sequence[Verdict], *, in_force: bool = True) -> Batch:
        return self._of(
            observe.VerdictChanged,
            verdicts,
            lambda one: {
                "in_force": in_force,
                "file": one.file,
                "kind": one.kind.value,
                "devices": one.names,
                "reason": one.reason,
                "by": one.by,
                "since": one.since,
                "until": one.until,
            },
        )


class _HeldDevice:
    """A device that a container holds, with all tokens by which it holds it."""

    def __init__(self, held: Held) -> None:
        self.first = held
        self.tokens: list[tuple[str, ...]] = []

    def facts(self) -> dict[str, Any]:
        held, tokens = self.first, self.tokens
        whole = tokens[0] if len(tokens) == 1 else tuple(chain.from_iterable(tokens))
        return {**_about(held.resource, held.backend, held.device), "tokens": whole}

    def facts_and_holder(self) -> dict[str, Any]:
        return {**self.facts(), "holder": self.first.holder}


class _Parts:
    """Tokens, and the devices behind them; tokens with one tuple of devices are treated together."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Sequence[Held], list[str]]] = {}

    def add(self, token: str, devices: Sequence[Held]) -> None:
        if devices:
            self._found.setdefault(id(devices), (devices, []))[1].append(token)

    def by_device(self) -> list[_HeldDevice]:
        """A container may have several tokens of one device, and several devices by one token."""
        parts: dict[tuple[str, str, str, AnyHolder | None], _HeldDevice] = {}
        for devices, some in self._found.values():
            tokens = tuple(some)
            for one in devices:
                key = one.resource, one.backend, one.device.id, one.holder
                parts.setdefault(key, _HeldDevice(one)).tokens.append(tokens)
        return list(parts.values())


_Difference = tuple[tuple[Held, ...], tuple[Held, ...]]


def _difference(before: Sequence[Held], now: Sequence[Held]) -> _Difference:
    """Of what a token represented and represents: what its holder has no longer, and what one has now."""
    if [(one.key, one.device, one.holder) for one in before] == [
        (one.key, one.device, one.holder) for one in now
    ]:
        return (), ()
    holder = now[0].holder if now else None
    same = {held.key for held in before if held.holder == holder}
    ended = tuple(held for held in before if held.holder and held.holder != holder)
    return ended, tuple(held for held in now if held.holder and held.key not in same)


def _claim(one: Claimed) -> Mapping[str, Any]:
    about = _about(one.resource, one.backend, one.device)
    return {**about, "claim": one.claim, "pods": tuple(sorted(one.pods)), "shares": one.shares}


def _about(resource: str, backend: str, device: Device) -> dict[str, Any]:
    return {"resource": resource, "backend": backend, "device": device}
