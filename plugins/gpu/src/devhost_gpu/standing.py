"""How an adapter stands with its driver, as sysfs and ``/dev`` tell it: in words a user can act on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from devhost.backend import HEALTHY, Health, unhealthy
from devhost.backend.sysfs import Sysfs

from .adapter import Adapter


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether an adapter can be used: its health, and why it is not offered at all (else empty)."""

    health: Health = HEALTHY
    withheld: str = ""


def standing(
    sysfs: Sysfs, adapter: Adapter, drivers: Collection[str] = (), nodes: Collection[str] | None = None
) -> Standing:
    """How an adapter stands.

    One that another program than its driver has is withheld; one without a driver, or whose driver has given
    up, stays in its resource as Unhealthy.

    Args:
        sysfs: the machine.
        adapter: the adapter.
        drivers: the drivers that make a GPU of it; empty: any that makes DRM nodes.
        nodes: the paths of device nodes that are needed; ``None``: its own.
    """
    if adapter.num_vfs:
        are = "is" if adapter.num_vfs == 1 else "are"
        plural = "s" * (adapter.num_vfs > 1)
        text = f"it has {adapter.num_vfs} virtual function{plural}, which {are} offered instead"
        return Standing(_health(sysfs, adapter, adapter.nodes), text)
    if adapter.driver and drivers and adapter.driver not in drivers:
        text = f"it is bound to {adapter.driver}, which makes no GPU of it for containers"
        return Standing(unhealthy(f"it is bound to {adapter.driver}"), text)
    return Standing(_health(sysfs, adapter, adapter.nodes if nodes is None else nodes))


def _health(sysfs: Sysfs, adapter: Adapter, nodes: Collection[str]) -> Health:
    if not adapter.nodes:
        if not adapter.driver and adapter.address:
            return unhealthy("no driver is bound to it")
        return unhealthy(f"its driver {adapter.driver} has made no DRM device: see the kernel's log")
    for node in nodes:
        if not sysfs.exists(node):
            return unhealthy(f"{node} does not exist")
    return HEALTHY
