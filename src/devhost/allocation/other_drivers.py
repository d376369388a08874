"""The devices that other DRA drivers give to pods, as far as backends find them, too. Pure.

The kubelet lists the devices of all drivers by the names that the drivers give them. A device that is named
so counts as held by the container, like one of which another plugin allocated a token, and by the same rules
(see :mod:`.leases`): the driver is the resource, and ``pool/device`` for the token.

A name means a device if it is the device's id or its PCI address (of a claim ``pci:<address>``), after both
have been made lower case, with ``-`` for every character that is no letter and no digit. Names in slices are
DNS labels, so ``0000:3b:00.0`` appears as ``0000-3b-00-0``. Names such as ``gpu-0`` mean no device here.

The list does not show whether a claim has admin access, which takes nothing from anybody; such a device
counts as held.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from devhost.backend.model import Device, Holder
from devhost.planning.claims import Held, Key
from devhost.planning.plan import Found

from .leases import ClaimUseDevice, Kubelet, Listing

_PCI = "pci:"
_NO_LABEL = re.compile(r"[^a-z0-9]")


def folded(text: str) -> str:
    """A text in the form in which names are compared."""
    return _NO_LABEL.sub("-", text.lower())


class DriverAllocations(Protocol):
    """What containers have of one driver: :class:`devhost.allocation.allocations.ResourceAllocations`."""

    def __contains__(self, token: object) -> bool: ...
    def held(self) -> Iterator[Held]: ...
    def held_devices(self) -> Iterator[Key]: ...
    def due(self, last: float, *, awaited: bool = False) -> float | None: ...
    def recalls(self, listing: Listing) -> bool: ...
    def apply(self, listing: Listing, *, recalls: bool = False) -> tuple[bool, tuple[str, ...]]: ...
    def unresolved(self) -> list[str]: ...
    def infer(self, tokens: Iterable[str], devices: Mapping[Key, Device]) -> None: ...


class OtherDrivers:
    """What containers have of each driver that is not devhost's own.

    ``make`` makes the allocations of a driver, given its name.
    """

    def __init__(self, make: Callable[[str], DriverAllocations]) -> None:
        self._make = make
        self._own: set[str] = set()
        self._followed: dict[str, DriverAllocations] = {}
        self._names: dict[tuple[str, str], frozenset[str]] = {}
        """What the tokens of the newest list, and those that are held, are called; by driver and token."""
        self._listing: Listing | None = None
        self._recalling: Kubelet | None = None
        self._index: dict[str, _Index] = {}

    def own(self, driver: str) -> bool:
        """Counts a driver as devhost's own from now on; true if its devices counted as held until now."""
        if driver in self._own:
            return False
        self._own.add(driver)
        counted = self._followed.pop(driver, None) is not None
        if self._listing is not None:
            self._take(self._listing)
        return counted

    def held(self) -> Iterator[Held]:
        """Each device that a container has from another driver, in a stable order."""
        for _, found in sorted(self._followed.items()):
            yield from found.held()

    def held_devices(self) -> Iterator[Key]:
        """The same devices; one may come more than once. May be called from any thread."""
        for found in tuple(self._followed.values()):
            yield from found.held_devices()

    def due(self, last: float, *, awaited: bool) -> Iterator[float]:
        """When each driver wants the next list, see :meth:`.DriverAllocations.due`."""
        for found in self._followed.values():
            if (wish := found.due(last, awaited=awaited)) is not None:
                yield wish

    def apply(self, listing: Listing) -> bool:
        """Takes a list of the kubelet; true when a holder has changed."""
        view = self._take(listing)
        if self._recalling != listing.kubelet and any(a.recalls(view) for a in self._followed.values()):
            self._recalling = listing.kubelet
        return any([self._apply_to(found, view) for found in self._followed.values()])

    def resolve(self, found: Found) -> None:
        if not self._names or self._listing is None:
            return
        for driver, tokens in self._listing.holders.items():
            if driver not in self._followed and any(self._named(driver, token, found) for token in tokens):
                followed = self._followed[driver] = self._make(driver)
                self._apply_to(followed, self._listing)
        for driver, followed in self._followed.items():
            for token in followed.unresolved():
                followed.infer((token,), self._named(driver, token, found))

    def _take(self, listing: Listing) -> Listing:
        """Keeps the claims in a list: as one whose resources are drivers, and whose devices theirs."""
        holders: dict[str, dict[str, Holder | None]] = {}
        names: dict[tuple[str, str], set[str]] = {}
        users: set[Holder] = set()
        for use in listing.claims.values():
            users.update(use.holders)
            for device in use.devices:
                if device.driver not in self._own:
                    token = f"{device.pool}/{device.device}"
                    holders.setdefault(device.driver, {}).setdefault(token, use.holders[0])
                    names.setdefault((device.driver, token), set()).update(_names(device))
        kept = {
            (driver, token): known
            for (driver, token), known in self._names.items()
            if driver in self._followed and token in self._followed[driver]
        }
        self._names = kept | {token: frozenset(known) for token, known in names.items()}
        containers = dict.fromkeys(listing.containers, False) | dict.fromkeys(users, True)
        self._listing = replace(listing, holders=holders, containers=containers)
        return self._listing

    def _apply_to(self, followed: DriverAllocations, view: Listing) -> bool:
        changed, _ = followed.apply(view, recalls=self._recalling == view.kubelet)
        return changed

    def _named(self, driver: str, token: str, found: Found) -> dict[Key, Device]:
        named: dict[Key, Device] = {}
        for backend, devices in found.items():
            index = self._index.get(backend)
            if index is None or index.devices is not devices:
                index = self._index[backend] = _Index(devices)
            for name in self._names.get((driver, token), ()):
                named.update({(backend, device.id): device for device in index.called(name)})
        return named


def _names(device: ClaimUseDevice) -> Iterator[str]:
    """What a driver calls a device."""
    yield folded(device.device)
    for name in device.cdi_names:
        yield folded(name.partition("=")[2])


class _Index:
    """The devices of one backend by the names that drivers may give them."""

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self.devices = devices
        self._called: dict[str, dict[str, Device]] = {}
        for device in devices.values():
            addresses = (claim.removeprefix(_PCI) for claim in device.claims if claim.startswith(_PCI))
            for name in (device.id, *addresses):
                self._called.setdefault(folded(name), {})[device.id] = device

    def called(self, name: str) -> Sequence[Device]:
        return tuple(self._called.get(name, {}).values())
