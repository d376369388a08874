"""Shared by the tests of `inject: cdi`: the specifications of a rig, as a runtime reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from devhost.allocation.cdi import spec
from devhost.allocation.cdi.files import SpecFiles
from devhost.allocation.cdi.spec import applied
from devhost.backend import Edits

TOY, OTHER = "example.com/toy", "example.com/other"
TOY_LINE = "name: example.com/toy, backend: toy, inject: cdi"
OTHER_LINE = "name: example.com/other, backend: other"


def alone(allocate):
    def each(self, request):
        parts = [allocate(self, replace(request, devices=(device,))) for device in request.devices]
        return replace(Edits.merge(parts), env={f"DEVICE_{device.id}": "1" for device in request.devices})

    return each


class Specs:
    def __init__(self, rig, together):
        self._rig = rig
        self.together = together
        """What the backend's ``allocate`` was, with a variable that lists all devices."""

    def path(self, resource=TOY):
        directory = SpecFiles(self._rig.cdi, str(self._rig.kubelet_dir))
        directory.close()
        return directory.path(resource)

    def kind(self, resource=TOY):
        directory = SpecFiles(self._rig.cdi, str(self._rig.kubelet_dir))
        directory.close()
        return spec.kind(resource, directory.owner)

    def document(self, resource=TOY):
        return json.loads(self.path(resource).read_text())

    def devices(self, resource=TOY):
        if not self.path(resource).exists():
            return {}
        return {one["name"]: one["containerEdits"] for one in self.document(resource)["devices"]}

    def resolve(self, response, resource=TOY):
        """What a container has after its runtime has applied the names in the answer."""
        document = self.document(resource)
        parts = []
        for device in response.cdi_devices:
            kind, _, name = device.name.partition("=")
            assert kind == document["kind"]
            parts.append(self.devices(resource)[name])
        return applied(parts)


def each_list(rig, look):
    """The ``changed`` of a host that calls ``look`` with the ids of each list, before any of it is sent."""
    seen = set()

    def changed():
        for service in rig.host.services.values():
            if service not in seen:
                seen.add(service)
                service.inventory.subscribe(partial(published, service.inventory))

    def published(inventory):
        entries = inventory.snapshot.entries
        look(set(entries), {name for name, entry in entries.items() if entry.health.healthy})

    return changed
