"""What containers hold, as the plan asks for it: may this device go through that resource? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from devhost.backend.model import Device, Holder

Key = tuple[str, str]
"""A device across backends: the backend's name and the device's id."""

UNNAMED = "a container that the kubelet has not named yet"
"""The holder in words where none is known."""

_UNTIL = "; it is free when that pod ends"


class Held(NamedTuple):
    """One device that a container has, and the token of the resource by which it has it.

    ``exclusive`` is whether the resource shares its devices with no other, ``holder`` is ``None`` while the
    kubelet has not named the container. One token may stand for several devices, and several for one.
    """

    resource: str
    token: str
    backend: str
    device: Device
    exclusive: bool
    holder: Holder | None

    @property
    def key(self) -> Key:
        """The device across backends."""
        return self.backend, self.device.id

    @property
    def by(self) -> str:
        """The container, in words."""
        return str(self.holder or UNNAMED)


class ClaimIndex:
    """What containers hold, found by device and by claim."""

    def __init__(self, held: Iterable[Held]) -> None:
        self._through: dict[Key, dict[str, Held]] = {}
        self._wholes: dict[str, list[Held]] = {}
        self._parts: dict[str, list[Held]] = {}
        for one in held:
            resources = self._through.setdefault(one.key, {})
            if not resources:
                for claim in one.device.claims:
                    self._wholes.setdefault(claim, []).append(one)
                for claim in one.device.part_of:
                    self._parts.setdefault(claim, []).append(one)
            resources.setdefault(one.resource, one)

    def objection(self, key: Key, device: Device, resource: str, exclusive: bool) -> str:
        """Why a device must not be offered through a resource; empty where nothing is in the way.

        A held device stays with the resource that it is held through, and with others only where neither
        side is exclusive. A device whose claims conflict with it is offered by no resource.

        Args:
            exclusive: whether the resource shares its devices with no other.
        """
        objections = []
        for one in self._through.get(key, {}).values():
            if one.resource != resource and (exclusive or one.exclusive):
                objections.append(f"{one.by} holds it through {one.resource}{_UNTIL}")  # noqa: PERF401 - rarely reached
        for claim, one in self._conflicts(device):
            if one.key != key:
                objections.append(
                    f"{claim} is in use: {one.by} holds {one.device.id} of backend {one.backend} "
                    f"through {one.resource}{_UNTIL}"
                )
        return min(objections, default="")  # a set has no order, and the plan must not depend on one

    def _conflicts(self, device: Device) -> Iterator[tuple[str, Held]]:
        for claim in device.claims:
            for one in self._wholes.get(claim, ()):
                yield claim, one
            for one in self._parts.get(claim, ()):
                yield claim, one
        for claim in device.part_of:
            for one in self._wholes.get(claim, ()):
                yield claim, one
