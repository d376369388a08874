"""Device nodes that a container gets with a device that does not claim them.

A backend may forget a claim, or misspell what it claims. What a container can open decides who else may open
it, so a node counts although its device does not name it:

* the device is then part of the node. Devices of the same backend may be given the node, too, because the
  backend decided that; a device that claims the node is not given to another pod meanwhile;
* if a second backend hands out the same node, its devices claim the node.

What counts as a node is in :mod:`.resource_backend`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from devhost.backend.model import Device
from devhost.planning.claims import Key
from devhost.planning.plan import Found


class UnclaimedNodes:
    """Remembers which unclaimed nodes devices were given, as long as the devices exist."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        """The backend that handed out a node first, by its claim."""
        self._of: dict[str, dict[str, frozenset[str]]] = {}
        self._made: dict[Key, tuple[Device, Device]] = {}
        self._completed: dict[str, tuple[Mapping[str, Device], Mapping[str, Device]]] = {}

    def add(self, key: Key, nodes: Collection[str]) -> None:
        """A container gets these nodes with a device."""
        backend, device = key
        known = self._of.setdefault(backend, {}).get(device, frozenset())
        new = frozenset(nodes) - known
        if new:
            self._of[backend][device] = known | new
            for text in new:
                self._first.setdefault(text, backend)
            self._completed.pop(backend, None)
            self._made.pop(key, None)

    def device(self, key: Key, device: Device) -> Device:
        """The device with the nodes that it was given; unchanged ones stay the same object."""
        nodes = self._of.get(key[0], {}).get(key[1], frozenset()) - device.claims - device.part_of
        if not nodes:
            return device
        made = self._made.get(key)
        if made is None or made[0] is not device:
            parts = {text for text in nodes if self._first[text] == key[0]}
            whole = replace(device, claims=device.claims | (nodes - parts), part_of=device.part_of | parts)
            made = self._made[key] = device, whole
        return made[1]

    def completed(self, found: Found) -> Found:
        """All devices, each with the nodes that it was given. Forgets the nodes of those that are gone."""
        self._forget(found)
        if not self._of:
            return found
        return {backend: self._of_backend(backend, devices) for backend, devices in found.items()}

    def _of_backend(self, backend: str, devices: Mapping[str, Device]) -> Mapping[str, Device]:
        given = self._of.get(backend)
        if not given:
            return devices
        before = self._completed.get(backend)
        if before is None or before[0] is not devices:
            made = {name: self.device((backend, name), devices[name]) for name in given}
            before = self._completed[backend] = devices, {**devices, **made}
        return before[1]

    def _forget(self, found: Found) -> None:
        gone = [
            (backend, device)
            for backend, given in self._of.items()
            for device in given
            if device not in found.get(backend, ())
        ]
        for backend, device in gone:
            del self._of[backend][device]
            self._made.pop((backend, device), None)
        if gone:
            self._of = {backend: given for backend, given in self._of.items() if given}
            kept = {
                (text, backend)
                for backend, given in self._of.items()
                for text in set[str]().union(*given.values())
            }
            self._first = {text: one for text, one in self._first.items() if (text, one) in kept}
            for text, backend in sorted(kept):
                self._first.setdefault(text, backend)
            self._completed.clear()
            self._made.clear()
