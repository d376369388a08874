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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from devhost.backend.model import Device, Holder
from devhost.planning.claims import Key
from devhost.planning.plan import Found

from .given import Token
from .leases import ClaimUseDevice, Listing

_PCI = "pci:"
_NO_LABEL = re.compile(r"[^a-z0-9]")


def folded(text: str) -> str:
    """A text in the form in which names are compared."""
    return _NO_LABEL.sub("-", text.lower())


class OtherDrivers:
    """What the kubelet's newest list has of drivers that are not devhost's own, in the terms of tokens.

    ``held`` is whether a driver's token counts as held, so that its names are kept when a list lacks it.
    """

    def __init__(self, held: Callable[[str, str], bool]) -> None:
        self._held = held
        self._own: set[str] = set()
        self._names: dict[Token, frozenset[str]] = {}
        """What the tokens of the newest list, and those that are held, are called; by driver and token."""
        self.listing: Listing | None = None
        """The newest list as one whose resources are drivers, and whose devices theirs."""
        self._index: dict[str, _Index] = {}

    def own(self, driver: str) -> None:
        """Counts a driver as devhost's own from now on."""
        if driver not in self._own:
            self._own.add(driver)
            if self.listing is not None:
                self.take(self.listing)

    def take(self, listing: Listing) -> Listing:
        """Keeps the claims in a list."""
        holders: dict[str, dict[str, Holder | None]] = {}
        names: dict[Token, set[str]] = {}
        users: set[Holder] = set()
        for use in listing.claims.values():
            users.update(use.holders)
            for device in use.devices:
                if device.driver not in self._own:
                    token = f"{device.pool}/{device.device}"
                    holders.setdefault(device.driver, {}).setdefault(token, use.holders[0])
                    names.setdefault((device.driver, token), set()).update(_names(device))
        kept = {token: known for token, known in self._names.items() if self._held(*token)}
        self._names = kept | {token: frozenset(known) for token, known in names.items()}
        containers = dict.fromkeys(listing.containers, False) | dict.fromkeys(users, True)
        self.listing = replace(listing, holders=holders, containers=containers)
        return self.listing

    def named(self, driver: str, token: str, found: Found) -> dict[Key, Device]:
        """The devices that a token means."""
        named: dict[Key, Device] = {}
        for name in self._names.get((driver, token), ()):
            for backend, devices in found.items():
                index = self._index.get(backend)
                if index is None or index.devices is not devices:
                    index = self._index[backend] = _Index(devices)
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
