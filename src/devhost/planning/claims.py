"""What containers hold, and whether a device may therefore be offered through a resource. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from devhost.backend.model import Device, Holder
from devhost.telemetry.tables import few

Key = tuple[str, str]
"""A device across backends: the backend's name and the device's id."""

UNNAMED = "a container that the kubelet has not named yet"
"""The holder in words while the kubelet has not named it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a device is not available, and the containers that the text refers to.

    The text names no pod, because it is also shown to readers who must not see pod names. ``held_by`` has the
    names.
    """

    text: str
    held_by: tuple[Holder, ...] = ()


def pod(holder: Holder | None) -> str:
    """What a reason calls a container, without its name."""
    return "a pod" if holder else UNNAMED


def holder_field(held_by: Sequence[Holder]) -> dict[str, str]:
    """The field of a log line that names the containers to which its reason refers."""
    return {"holder": few([str(one) for one in held_by])} if held_by else {}


_UNTIL = "; it is free when that pod ends"


class Held(NamedTuple):
    """One device that a container holds, and the token through which it holds the device.

    ``exclusive`` is whether the resource shares its devices with no other, ``holder`` is ``None`` until the
    kubelet has named the container. A token may represent several devices, and several tokens one device.
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
        """A reason that refers to this container."""
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
        """Why a device must not be offered through a resource; ``None`` if it may be.

        A held device stays with the resource through which it is held. Another resource may offer it only if
        neither is exclusive. No resource offers a device whose claims conflict with those of a held device.

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
        # a set has no order, and the plan must be deterministic
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
