"""What containers hold, as the plan asks for it: may this device go through that resource? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from devhost.backend.model import Device, Holder
from devhost.telemetry.tables import few

Key = tuple[str, str]
"""A device across backends: the backend's name and the device's id."""

UNNAMED = "a container that the kubelet has not named yet"
"""The holder in words where none is known."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a device is not available, in words that name no pod, and the containers that these words mean.

    Reasons are shown to readers who must not see the names of pods: only ``held_by`` has them.
    """

    text: str
    held_by: tuple[Holder, ...] = ()


def pod(holder: Holder | None) -> str:
    """What a reason calls a container: it never says its name."""
    return "a pod" if holder else UNNAMED


def holder_field(held_by: Sequence[Holder]) -> dict[str, str]:
    """The field of a log line that names the containers which its reason means."""
    return {"holder": few([str(one) for one in held_by])} if held_by else {}


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

    def reason(self, text: str) -> Reason:
        """A reason that means this container."""
        return Reason(text, (self.holder,) if self.holder else ())


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

    def objection(self, key: Key, device: Device, resource: str, exclusive: bool) -> Reason | None:
        """Why a device must not be offered through a resource; ``None`` where nothing is in the way.

        A held device stays with the resource that it is held through, and with others only where neither
        side is exclusive. A device whose claims conflict with it is offered by no resource.

        Args:
            exclusive: whether the resource shares its devices with no other.
        """
        objections = [
            one.reason(f"{pod(one.holder)} holds it through {one.resource}{_UNTIL}")
            for one in self._through.get(key, {}).values()
            if one.resource != resource and (exclusive or one.exclusive)
        ]
        for claim, one in self._conflicts(device):
            if one.key != key:
                what = f"{one.device.id} of backend {one.backend} through {one.resource}"
                objections.append(one.reason(f"{claim} is in use: {pod(one.holder)} holds {what}{_UNTIL}"))
        # a set has no order, and the plan must not depend on one
        return min(objections, key=lambda one: (one.text, [*map(str, one.held_by)]), default=None)

    def _conflicts(self, device: Device) -> Iterator[tuple[str, Held]]:
        for claim in device.claims:
            for one in self._wholes.get(claim, ()):
                yield claim, one
            for one in self._parts.get(claim, ()):
                yield claim, one
        for claim in device.part_of:
            for one in self._wholes.get(claim, ()):
                yield claim, one
