"""Publishes events to observers. It costs nothing while there is no observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from devhost.allocation.allocations import Allocations
from devhost.allocation.inventory import Changes, Given, Member
from devhost.backend import observe
from devhost.backend.model import AnyHolder, Device
from devhost.discovery.observers import Batch, Observers
from devhost.discovery.scanner import Condition, State
from devhost.planning.claims import Held

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
    """Publishes events to observers; each method is named after an event.

    Args:
        observers: receive the events.
        allocations: what containers hold.
        configuration: its generation is part of each event.
        services: every resource with its devices.
    """

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
        before = [self._allocated_to.pop((resource, token), ()) for token in given]
        self._released([held for parts in before for held in parts])
        for token, devices in given.items():
            self._allocated_to[resource, token] = tuple(
                Held(resource, token, backend, device, True, None) for device in devices
            )
        now = [held for token in given for held in self._allocated_to[resource, token]]
        self._observers.publish(self._handed_out(now))

    def held(self) -> None:
        """The allocations may have changed."""
        if not self._observers or self._allocations.held() is self._published:
            return
        known, self._allocated_to = self._allocated_to, self._held_now()
        gone = [held for token, parts in known.items() if token not in self._allocated_to for held in parts]
        named: list[Held] = []
        for token, parts in self._allocated_to.items():
            before = known.get(token, ())
            if parts == before:
                continue
            same = {(held.backend, held.device.id) for held in before if held.holder == parts[0].holder}
            named += [held for held in parts if held.holder and (held.backend, held.device.id) not in same]
            gone += [held for held in before if held.holder and held.holder != parts[0].holder]
        self._released(gone)
        self._observers.publish(self._named(named))

    def backends(self, conditions: Iterable[tuple[str, Condition]]) -> None:
        """The conditions of the backends may have changed."""
        states = dict(conditions)
        degraded = {name: c.reason for name, c in states.items() if c.state is State.DEGRADED}
        known, self._degraded = self._degraded, degraded
        changed: list[tuple[str, str | None]] = [
            (name, reason) for name, reason in degraded.items() if name not in known
        ]
        changed += [(name, None) for name in known if name in states and name not in degraded]
        if changed and self._observers:
            self._observers.publish(self._backends(changed))

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
            self._allocated_to = self._held_now()
        for resource, backend, devices in self._services.present():
            yield self._appeared(resource, backend, list(devices.values()))
        hands = [held for parts in self._allocated_to.values() for held in parts]
        yield self._handed_out([held for held in hands if not held.holder])
        yield self._named([held for held in hands if held.holder])
        yield self._backends(list(self._degraded.items()))

    def _held_now(self) -> dict[Token, tuple[Held, ...]]:
        """What containers hold, without what they are about to get."""
        self._published = self._allocations.held()
        found: dict[Token, tuple[Held, ...]] = {}
        for held in self._published:
            if self._allocations.is_held(held.resource, held.token):
                token = held.resource, held.token
                found[token] = (*found.get(token, ()), held)
        return found

    def _appeared(self, resource: str, backend: str, members: Sequence[Member]) -> Batch:
        return self._batch(
            observe.Appeared,
            members,
            lambda member: {**_about(resource, backend, member.device), "health": member.health},
        )

    def _handed_out(self, held: Iterable[Held]) -> Batch:
        return self._batch(observe.Allocated, _by_device(held), _Part.facts)

    def _named(self, held: Iterable[Held]) -> Batch:
        return self._batch(observe.Held, _by_device(held), _Part.facts_and_holder)

    def _released(self, held: Iterable[Held]) -> None:
        self._observers.publish(self._batch(observe.Released, _by_device(held), _Part.facts_and_holder))

    def _backends(self, states: Sequence[tuple[str, str | None]]) -> Batch:
        return self._batch(
            observe.BackendChanged,
            states,
            lambda one: {"backend": one[0], "degraded": one[1] is not None, "reason": one[1]},
        )

    def _batch(
        self, kind: type[observe.News], about: Sequence[R], facts: Callable[[R], Mapping[str, Any]]
    ) -> Batch:
        """Events of one kind, one for each item of ``about``."""
        common: dict[str, Any] = {"at": time.time(), "generation": self._configuration.generation}
        return Batch(kind, len(about), lambda: [kind(**common, **facts(one)) for one in about])


class _Part:
    """A device that a container holds, with all tokens by which it holds it."""

    def __init__(self, held: Held) -> None:
        self.first = held
        self.tokens: list[str] = []

    def facts(self) -> dict[str, Any]:
        held = self.first
        return {**_about(held.resource, held.backend, held.device), "tokens": tuple(self.tokens)}

    def facts_and_holder(self) -> dict[str, Any]:
        return {**self.facts(), "holder": self.first.holder}


def _by_device(held: Iterable[Held]) -> list[_Part]:
    """A container may have several tokens of one device, and several devices by one token."""
    parts: dict[tuple[str, str, str, AnyHolder | None], _Part] = {}
    for one in held:
        key = one.resource, one.backend, one.device.id, one.holder
        parts.setdefault(key, _Part(one)).tokens.append(one.token)
    return list(parts.values())


def _about(resource: str, backend: str, device: Device) -> dict[str, Any]:
    return {"resource": resource, "backend": backend, "device": device}
