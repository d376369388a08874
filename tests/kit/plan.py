"""What a configuration makes of devices, without a host."""

from __future__ import annotations

from collections.abc import Iterable

from devhost.backend.model import Device
from devhost.config import loads
from devhost.discovery import catalog
from devhost.dra.aliases import aliased
from devhost.dra.slices import DesiredSlice, LeftOut, Offered, Pool
from devhost.planning.plan import Plan


def offered(plan: Plan, resource: str) -> list[str]:
    """The ids of the devices that a resource has."""
    planned = plan.resources.get(resource)
    return [offer.device.id for offer in planned.offers] if planned else []


def sliced(
    backend: str, dra: str, devices: Iterable[Device], driver: str = "d"
) -> tuple[list[DesiredSlice], list[LeftOut]]:
    """The slices of these devices, as far as they are offered, for an entry with this value of ``dra``."""
    entry = f"{{name: a.b/c, backend: {backend}, serve: dra, dra: {dra}}}"
    text = f"version: 1\ndra: {{driver: {driver}}}\nresources: [{entry}]"
    (resource,) = loads(text, "f.yaml", catalog.load).resources
    found = {device.id: device for device in devices}
    offers = [
        Offered(device, device.health, aliased=aliased(resource.dra, resource.name, device, found))
        for device in found.values()
        if not device.withheld
    ]
    return Pool(driver, "node", resource.name, backend).slices(offers)
