"""The ResourceClaims that pods use, as the kubelet lists them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from devhost.backend.model import Holder


@dataclass(frozen=True, slots=True)
class ClaimUseDevice:
    """One device of a claim: the driver that gave it, and the driver's names for it.

    ``share`` is the share id of a device that several claims use, or empty. ``cdi_names`` are qualified:
    ``vendor/class=name``.
    """

    driver: str
    pool: str
    device: str
    share: str = ""
    cdi_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """The containers that use a claim, in the kubelet's order, and the devices that it gives them."""

    holders: tuple[Holder, ...]
    devices: tuple[ClaimUseDevice, ...]


Claims = Mapping[tuple[str, str], ClaimUse]
"""The claims by namespace and name. The kubelet does not list their uids."""
