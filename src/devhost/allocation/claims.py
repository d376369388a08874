"""Which devices a ResourceClaim holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from devhost.backend.errors import AllocationError
from devhost.backend.model import AnyHolder, Device
from devhost.planning.claims import Key


class DeviceHeld(AllocationError):
    """A container or another claim holds a device, or hardware that conflicts with it."""

    def __init__(self, message: str, held_by: Sequence[AnyHolder] = ()) -> None:
        super().__init__(message)
        self.held_by = tuple(held_by)


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """One device of a claim.

    ``exclusive`` is whether the resource shares its devices with no other, ``request`` the claim's request,
    ``share`` the share id of a device that several claims use. ``admin`` access neither checks nor holds.
    ``replicas`` is how many claims may use the device at once.
    """

    key: Key
    device: Device
    resource: str
    exclusive: bool
    request: str
    share: str = ""
    admin: bool = False
    replicas: int = 1
