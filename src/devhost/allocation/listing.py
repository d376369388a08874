"""The kubelet's answer to the question which containers have what. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from devhost.backend.frozen import frozen
from devhost.backend.model import Holder

Kubelet = tuple[int, ...]
"""One kubelet from its start to its end: device, inode and change time of its podresources socket, and how
often another kubelet.sock was seen until then."""


@frozen
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


@frozen
class ClaimUse:
    """The containers that use a claim, in the kubelet's order, and the devices that it gives them."""

    holders: tuple[Holder, ...]
    devices: tuple[ClaimUseDevice, ...]


Claims = Mapping[tuple[str, str], ClaimUse]
"""The claims by namespace and name. The kubelet does not list their uids."""


@frozen
class Listing:
    """A complete answer of a kubelet.

    ``began`` is the monotonic time at which it was asked, ``pods`` how many pods it named, with devices or
    without, ``holders`` who holds what: by resource, then by token; ``None`` for a container without name.
    ``containers`` are all containers that it names, and whether each has devices of device plugins.
    ``claims`` are the ResourceClaims that containers use, of all DRA drivers.
    """

    kubelet: Kubelet
    began: float
    pods: int
    holders: Mapping[str, Mapping[str, Holder | None]]
    containers: Mapping[Holder, bool] = field(default_factory=dict)
    claims: Claims = field(default_factory=dict)
