"""The tokens of one resource that containers have, and the devices behind each. Pure.

An account outlives the resource: it is kept until nothing in it is held, whatever becomes of the
configuration, and is found again by the resource's name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from devhost.backend.model import Device, Holder
from devhost.planning.held import Held, Holding, Key, Kubelet, Listing
from devhost.planning.tokens import ALL, unit_of


@dataclass(slots=True)
class Devices:
    """The devices that containers have, of all resources, each with every claim it has had meanwhile.

    A device may gain or lose a claim while a container has it (it is bound to another driver); what it
    ever used up counts until it is released.
    """

    _newest: dict[Key, Device] = field(default_factory=dict)
    _joined: dict[Key, Device] = field(default_factory=dict)

    def __getitem__(self, key: Key) -> Device:
        return self._joined[key]

    def get(self, key: Key) -> Device | None:
        """The device, if somebody has it."""
        return self._joined.get(key)

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._joined))

    def see(self, key: Key, device: Device) -> bool:
        """Takes what a device is now; true when that tells of other claims or attributes than before."""
        if self._newest.get(key) is device:
            return False
        self._newest[key] = device
        known = self._joined.get(key)
        if known is not None:
            device = replace(
                device, claims=device.claims | known.claims, part_of=device.part_of | known.part_of
            )
        self._joined[key] = device
        return device != known

    def keep(self, keys: Collection[Key]) -> None:
        """Forgets the devices that nobody has any more."""
        for key in self._joined.keys() - keys:
            del self._joined[key], self._newest[key]


class ResourceAllocations:
    """What containers have of one resource.

    Args:
        resource: its name.
        clock: monotonic seconds.
        devices: where the devices are kept; those of the ledger.
        touched: called after each change, with whether the plan may be another because of it.
        known: whether the kubelet has said since the start who holds what.
    """

    def __init__(
        self,
        resource: str,
        clock: Callable[[], float],
        devices: Devices | None = None,
        touched: Callable[[bool], None] = lambda replan: None,
        known: Callable[[], bool] = lambda: True,
    ) -> None:
        self.resource = resource
        self.exclusive = True
        """Whether the resource shares its devices with no other; true where that is not known."""
        self.vanished: Collection[str] = ()
        """Tokens that are in the kubelet's list only because a container has them."""
        self.terms: dict[str, Any] = {}
        """The terms of the resource with which tokens were handed out, the latest last, as far as this run
        has done it."""
        self._holding = Holding(clock)
        self._devices = Devices() if devices is None else devices
        self._touched = touched
        self._known = known
        self._parts: dict[str, tuple[Key, ...]] = {}
        self._reserved: dict[str, list[tuple[Key, ...]]] = {}
        self._guessed: set[str] = set()
        self._alone: dict[str, bool] = {}

    def __contains__(self, token: object) -> bool:
        return token in self._holding

    def tokens(self) -> Collection[str]:
        """Every token that some container has, or that is on its way to one."""
        return self._holding.tokens() | self._reserved.keys()

    def untouched(self) -> bool:
        """Whether it is known that no container has anything of the resource."""
        return self._known() and not self.tokens()

    def holder(self, token: str) -> Holder | None:
        """Which container has this token; ``None`` where none has, or the kubelet has not said which."""
        return self._holding.holder(token)

    def named_by(self, token: str) -> Kubelet | None:
        """The kubelet that named the holder of this token last; ``None`` if none has since its Allocate."""
        return self._holding.named_by(token)

    def forgotten(self) -> dict[str, Holder]:
        """The tokens that the kubelet has forgotten, each with the container that holds it."""
        return self._holding.forgotten()

    def has_ended(self, token: str) -> bool:
        """Whether the newest list shows that the container that held this token has ended."""
        return self._holding.has_ended(token)

    def given(self, token: str) -> tuple[str, ...]:
        """Ids of the devices that the container got which has this token, as far as that is known."""
        if token in self._guessed:
            return ()
        return tuple(device for _, device in self._parts.get(token, ()))

    def in_hands(self, token: str) -> frozenset[Key]:
        """The devices that a container has, or is about to get, by this token."""
        parts = set(self._parts.get(token, ()))
        return frozenset(parts.union(*self._reserved.get(token, ())))

    def alone(self, token: str) -> bool:
        """Whether its container was to have the devices for itself; true where that is not known."""
        known = self._alone.get(token)
        return unit_of(token) in (token, ALL) if known is None else known

    def held(self) -> Iterator[Held]:
        """Each token with each device behind it."""
        for token in sorted(self.tokens()):
            holder = self._holding.holder(token)
            for key in sorted(self.in_hands(token)):
                yield Held(self.resource, token, key[0], self._devices[key], self.exclusive, holder)

    def devices(self) -> Iterator[Key]:
        """Every device that is held; one may come more than once."""
        for parts in tuple(self._parts.values()):
            yield from parts
        for several in tuple(self._reserved.values()):
            for parts in tuple(several):
                yield from parts

    @contextmanager
    def reserved(
        self, backend: str, wanted: Mapping[str, Iterable[Device]], alone: Collection[str] = ()
    ) -> Iterator[None]:
        """Counts tokens, each with its devices, as held while it is worked out what a container gets.

        Else a plan that is made meanwhile could give them to somebody else.

        Args:
            alone: those of the tokens whose devices are handed out once only.
        """
        mine: dict[str, tuple[Key, ...]] = {}
        for token, devices in wanted.items():
            mine[token] = self._see(backend, devices)
            self._reserved.setdefault(token, []).append(mine[token])
            self._alone[token] = token in alone
        self._touched(False)
        try:
            yield
        finally:
            for token, parts in mine.items():
                self._reserved[token].remove(parts)
                if not self._reserved[token]:
                    del self._reserved[token]
                    if token not in self._holding:
                        del self._alone[token]
            given = all(set(parts) <= set(self._parts.get(token, ())) for token, parts in mine.items())
            self._touched(not given)

    def allocated(
        self,
        backend: str,
        given: Mapping[str, Iterable[Device]],
        alone: Collection[str] = (),
        terms: object = None,
    ) -> None:
        """A container gets these tokens, and with each these devices. Who had them has them no more.

        Args:
            alone: those of the tokens whose devices are handed out once only.
            terms: what they are given with, see :class:`devhost.allocation.allocator.Terms`.
        """
        self._holding.allocated(given)
        for token, devices in given.items():
            self.terms.pop(token, None)
            if terms is not None:
                self.terms[token] = terms
            self._parts[token] = self._see(backend, devices)
            if token not in self._reserved:
                self._alone[token] = token in alone
            self._guessed.discard(token)
        self._touched(False)

    def recalls(self, listing: Listing) -> bool:
        """Whether the kubelet names a holder that an earlier kubelet named, see :meth:`.Holding.recalls`."""
        return self._holding.recalls(listing, self.resource)

    def heard(self, listing: Listing, *, recalls: bool = False) -> tuple[bool, tuple[str, ...]]:
        """Takes a list of the kubelet: whether that changed who has what, and which tokens were released.

        Args:
            recalls: whether this kubelet has shown that it read its checkpoint.
        """
        before, forgotten = self._holding.tokens(), self._holding.forgotten()
        changed = self._holding.heard(listing, self.resource, recalls=recalls)
        if not changed:
            return False, ()
        after = self._holding.tokens()
        released = tuple(token for token in before if token not in after)
        self._drop(released)
        self._touched(before != after or forgotten != self._holding.forgotten())
        return True, released

    def release(self, token: str) -> None:
        """Counts a token as free: its container has ended."""
        self._holding.release(token)
        if token not in self._reserved:
            self._drop([token])
        self._touched(True)

    def _drop(self, released: Iterable[str]) -> None:
        for token in released:
            self._parts.pop(token, None)
            self._alone.pop(token, None)
            self.terms.pop(token, None)
            self._guessed.discard(token)

    def guesses(self) -> list[str]:
        """Held tokens of whose devices there is only the kubelet's word, which names none."""
        return [
            token for token in self._holding.tokens() if token in self._guessed or token not in self._parts
        ]

    def guess(self, token: str, devices: Mapping[Key, Device]) -> None:
        """A token that the kubelet named stands, as far as can be told, for these devices among others."""
        known = self._parts.get(token, ())
        new = tuple(key for key in devices if key not in known)
        if not new:
            return
        for key in new:
            self._devices.see(key, devices[key])
        self._parts[token] = known + new
        self._guessed.add(token)
        self._touched(True)

    def due(self, last: float, *, awaited: bool = False) -> float | None:
        """When the next list of who holds what is wanted, see :meth:`.Holding.due`.

        Args:
            last: when the last list began.
            awaited: whether somebody waits for what is held here.
        """
        return self._holding.due(last, self._holding.tokens() if awaited else self.vanished)

    def _see(self, backend: str, devices: Iterable[Device]) -> tuple[Key, ...]:
        keys = {(backend, device.id): device for device in devices}
        for key, device in keys.items():
            self._devices.see(key, device)
        return tuple(keys)
