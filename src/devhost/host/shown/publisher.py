"""Publishes events to observers. It costs nothing while there is no observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from devhost.allocation.allocations import Allocations
from devhost.allocation.claims import Claimed
from devhost.allocation.inventory import Changes, Given, Member
from devhost.backend import observe
from devhost.backend.model import AnyHolder, Device
from devhost.discovery.observers import Batch, Observers
from devhost.discovery.scanner import BackendCondition, BackendState
from devhost.planning.claims import Held

if TYPE_CHECKING:
    from devhost.discovery.maintenance.files import Verdict

R = TypeVar("R")

Token = tuple[str, str]
"""A resource and one of its tokens."""

Present = tuple[str, str, Mapping[str, Member]]
"""A resource, its backend, and the devices it has now, by id."""


class Generation(Protocol):
    """The number of configurations that have taken effect."""

    @property
    def generation(self) -> int: ...


class Presence(Protocol):
    """What is served."""

    def present(self) -> Iterable[Present]:
        """Every resource with its backend and its devices."""


class EventPublisher:
    """Publishes events to observers; each method is named after an event."""

    def __init__(
        self,
        observers: Observers,
        allocations: Allocations,
        configuration: Generation,
        services: Presence,
    ) -> None:
        self._observers = observers
        self._allocations = allocations
        self._configuration = configuration
        self._services = services
        self._published: Sequence[Held] = ()
        self._allocated_to: dict[Token, tuple[Held, ...]] = {}
        self._degraded: dict[str, str] = {}
        self._claimed: Mapping[object, Claimed] = {}
        self._in_force: Sequence[Verdict] = ()

    def changed(self, resource: str, backend: str, changes: Changes) -> None:
        """Devices of a resource appeared, left, or became unhealthy or healthy."""
        if not self._observers:
            return
        before, after = changes.before, changes.after
        turned = [name for name in (*changes.unhealthy, *changes.healthy_again) if name in before]
        self._observers.publish(
            self._batch(
                observe.Left,
                tuple(changes.left.items()),
                lambda one: {**_about(resource, backend, before[one[0]].device), "reason": one[1].text},
            )
        )
        self._observers.publish(self._appeared(resource, backend, [after[name] for name in changes.appeared]))
        self._observers.publish(
            self._batch(
                observe.HealthChanged,
                turned,
                lambda name: {
                    **_about(resource, backend, after[name].device),
                    "health": after[name].health,
                    "previous": before[name].health,
                },
            )
        )

    def allocated(self, resource: str, backend: str, given: Given) -> None:
        """A container gets these tokens, each with its devices; an earlier holder has released them."""
        if not self._observers:
            return
        before, now = _Parts(), _Parts()
        made: dict[int, tuple[Held, ...]] = {}
        for token, devices in given.items():
            before.add(token, self._allocated_to.pop((resource, token), ()))
            if id(devices) not in made:
                made[id(devices)] = tuple(
                    Held(resource, (), backend, device, True, None) for device in devices
                )
            self._allocated_to[resource, token] = made[id(devices)]
            now.add(token, made[id(devices)])
        self._released(before)
        self._observers.publish(self._handed_out(now))

    def held(self) -> None:
        """The allocations may have changed."""
        if not self._observers or self._allocations.held() is self._published:
            return
        known, self._allocated_to = self._allocated_to, self._held_now()
        gone, named = _Parts(), _Parts()
        for where, parts in known.items():
            if where not in self._allocated_to:
                gone.add(where[1], parts)
        differences: dict[tuple[int, int], _Difference] = {}
        for where, parts in self._allocated_to.items():
            before = known.get(where, ())
            which = id(before), id(parts)
            if which not in differences:
                differences[which] = _difference(before, parts)
            ended, new = differences[which]
            gone.add(where[1], ended)
            named.add(where[1], new)
        self._released(gone)
        self._observers.publish(self._named(named))

    def backends(self, conditions: Iterable[tuple[str, BackendCondition]]) -> None:
        states = dict(conditions)
        degraded = {name: c.reason for name, c in states.items() if c.state is BackendState.DEGRADED}
        known, self._degraded = self._degraded, degraded
        changed: list[tuple[str, str | None]] = [
            (name, reason) for name, reason in degraded.items() if name not in known
        ]
        changed += [(name, None) for name in known if name in states and name not in degraded]
        if changed and self._observers:
            self._observers.publish(self._backends(changed))

    def claims(self) -> None:
        """Claims may hold other devices, or be used by other pods."""
        if not self._observers:
            return
        before, self._claimed = self._claimed, self._claimed_now()
        gone = [one for key, one in before.items() if key not in self._claimed]
        new = [
            one for key, one in self._claimed.items() if key not in before or not one.pods <= before[key].pods
        ]
        self._observers.publish(self._batch(observe.ClaimUnprepared, gone, _claim))
        self._observers.publish(self._batch(observe.ClaimPrepared, new, _claim))

    def verdicts(self, in_force: Sequence[Verdict]) -> None:
        before, self._in_force = self._in_force, in_force
        if before != in_force and self._observers:
            known, now = frozenset(before), frozenset(in_force)
            self._observers.publish(self._judged([one for one in before if one not in now], in_force=False))
            self._observers.publish(self._judged([one for one in in_force if one not in known]))

    def configuration_read(self, file: str, complaints: tuple[str, ...] = ()) -> None:
        """The configuration was read again; with complaints, it was refused."""
        if self._observers:
            self._observers.publish(
                self._batch(
                    observe.ConfigurationRead, [file], lambda _: {"file": file, "complaints": complaints}
                )
            )

    def everything(self) -> Iterator[Batch]:
        """The present state as events, for a new observer."""
        if not self._observers:
            self._allocated_to, self._claimed = self._held_now(), self._claimed_now()
        for resource, backend, devices in self._services.present():
            yield self._appeared(resource, backend, list(devices.values()))
        unnamed, named = _Parts(), _Parts()
        for (_, token), parts in self._allocated_to.items():
            (named if parts and parts[0].holder else unnamed).add(token, parts)
        yield self._handed_out(unnamed)
        yield self._named(named)
        yield self._batch(observe.ClaimPrepared, list(self._claimed.values()), _claim)
        yield self._backends(list(self._degraded.items()))
        yield self._judged(self._in_force)

    def _claimed_now(self) -> Mapping[object, Claimed]:
        return {one.key: one for one in self._allocations.claims.claimed()}

    def _held_now(self) -> dict[Token, tuple[Held, ...]]:
        """What containers hold, without what they are about to get."""
        self._published = self._allocations.held()
        groups: dict[tuple[str, int], tuple[tuple[str, ...], list[Held]]] = {}
        for held in self._published:
            groups.setdefault((held.resource, id(held.tokens)), (held.tokens, []))[1].append(held)
        found: dict[Token, tuple[Held, ...]] = {}
        for (resource, _), (tokens, group) in groups.items():
            parts = tuple(group)
            for token in tokens:
                if self._allocations.is_held(resource, token):
                    found[resource, token] = parts
        return found

    def _appeared(self, resource: str, backend: str, members: Sequence[Member]) -> Batch:
        return self._batch(
            observe.Appeared,
            members,
            lambda member: {**_about(resource, backend, member.device), "health": member.health},
        )

    def _handed_out(self, parts: _Parts) -> Batch:
        return self._batch(observe.Allocated, parts.by_device(), _HeldDevice.facts)

    def _named(self, parts: _Parts) -> Batch:
        return self._batch(observe.Held, parts.by_device(), _HeldDevice.facts_and_holder)

    def _released(self, parts: _Parts) -> None:
        self._observers.publish(
            self._batch(observe.Released, parts.by_device(), _HeldDevice.facts_and_holder)
        )

    def _backends(self, states: Sequence[tuple[str, str | None]]) -> Batch:
        return self._batch(
            observe.BackendChanged,
            states,
            lambda one: {"backend": one[0], "degraded": one[1] is not None, "reason": one[1]},
        )

    def _judged(self, verdicts: Sequence[Verdict], *, in_force: bool = True) -> Batch:
        return self._batch(
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

    def _batch(
        self, kind: type[observe.News], about: Sequence[R], facts: Callable[[R], Mapping[str, Any]]
    ) -> Batch:
        """Events of one kind, one for each item of ``about``."""
        common: dict[str, Any] = {"at": time.time(), "generation": self._configuration.generation}
        return Batch(kind, len(about), lambda: [kind(**common, **facts(one)) for one in about])


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
        self._found: dict[int, tuple[tuple[Held, ...], list[str]]] = {}

    def add(self, token: str, devices: tuple[Held, ...]) -> None:
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


def _difference(before: tuple[Held, ...], now: tuple[Held, ...]) -> _Difference:
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
