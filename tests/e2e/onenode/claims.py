"""ResourceClaims, DeviceClasses and ResourceSlices of the cluster, and a devhost that serves them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .api import ApiError, Json
from .cluster import Cluster
from .plugin import Devhost
from .settings import DRIVER_DIRECTORY, NODE
from .waiting import until

DRIVER = "devhost.example.com"
API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
SLICES = f"{API}/resourceslices"
CARD = "example.com/card"

CARDS = '''
import asyncio

from devhost.backend import Attribute, Backend, Device, Edits, Event, hookimpl, unhealthy


class Cards(Backend):
    """Cards as the file "cards" beside this directory lists them: id, disk, and "ill" if it is unhealthy."""

    name = "cards"
    attributes = {"sysName": Attribute(str, "the disk beside it", "zram1")}

    def discover(self):
        for line in FILE.read_text().splitlines():
            name, disk, *ill = line.split()
            verdict = {"health": unhealthy("it is hot")} if ill else {}
            yield Device(name, {"sysName": disk}, claims=frozenset({f"fpga:{name}"}), **verdict)

    def allocate(self, request):
        return Edits(env={"CARDS": ",".join(one.id for one in request.devices)})

    async def watch(self):
        while True:
            yield Event()
            await asyncio.sleep(1.0)


@hookimpl
def devhost_backends():
    return [Cards]
'''
"""A backend of its own, because no real device of the machine can be made unhealthy."""


class Driver(Devhost):
    """A devhost that can serve claims.

    Args:
        resources: of the configuration.
        cards: see :meth:`cards`.
        backend: the source of the backend; ``FILE`` in it is a file with a line for each device.
        driver: the name of the DRA driver.
    """

    def __init__(
        self,
        cluster: Cluster,
        *resources: Mapping[str, Any],
        cards: Sequence[str] = (),
        backend: str = CARDS,
        driver: str = DRIVER,
    ) -> None:
        self._file: Path | None = None
        self._driver = driver
        super().__init__(cluster, {}, "driver", wait=False)
        self._file = self.config.with_name("cards")
        directory = self.config.with_name("backends")
        directory.mkdir()
        (directory / "cards.py").write_text(
            backend.replace("FILE.read_text", f"__import__('pathlib').Path({str(self._file)!r}).read_text")
        )
        self.cards(*cards)
        self.serve(*resources)

    def arguments(self) -> Sequence[str]:
        return "--kubeconfig", str(self._cluster.driver_kubeconfig), "--node-name", NODE

    def serve(self, *resources: Mapping[str, Any], **options: Any) -> None:
        """Replaces the configuration; ``options`` are further ones of ``dra``."""
        self.configure(
            {
                "version": 1,
                "dra": {"driver": self._driver, **options},
                "backendPaths": ["backends"],
                "resources": [{"backend": "udev", **resource} for resource in resources],
            }
        )

    def cards(self, *cards: str) -> None:
        """Replaces the devices of the backend: of the cards, each as ``id disk`` or ``id disk ill``."""
        assert self._file is not None
        new = self._file.with_suffix(".new")
        new.write_text("\n".join(cards))
        new.replace(self._file)

    def moving(self) -> set[str]:
        """The devices that change sides, by ``devhost status``."""
        dra = self.status().get("dra") or {"moving": ()}
        return {one["device"] for one in dra["moving"]}

    def registered(self) -> Driver:
        """Waits until the kubelet uses the driver and its slices are published; returns this devhost.

        Raises:
            TimeoutError: it does not.
        """
        until("the driver is registered", self._registered, seen=lambda: self.status().get("dra"))
        return self

    def _registered(self) -> bool:
        dra = self.status().get("dra")
        return bool(dra and dra["state"] == "registered" and dra["syncedAt"] and not dra["error"])


class Claims:
    """Creates claims and classes; :meth:`clear` removes everything of the driver from the cluster."""

    def __init__(self, cluster: Cluster, driver: str = DRIVER) -> None:
        self._cluster = cluster
        self._driver = driver
        self._made: list[str] = []
        self._classes: list[str] = []

    def classes(self, devhost: Devhost) -> None:
        """Creates the DeviceClasses that devhost prints for its configuration."""
        command = (sys.executable, "-m", "devhost", "dra", "classes", "--config", devhost.config)
        printed = self._cluster.namespaces.run(*command)
        assert printed.returncode == 0, printed.stderr
        self.add_class(printed.stdout)

    def add_class(self, manifest: str) -> None:
        """Creates DeviceClasses."""
        self._classes.append(manifest)
        self._cluster.kubectl.apply(manifest)

    def create(
        self, name: str, *requests: Mapping[str, Any], constraints: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Creates a claim; each request has a ``deviceClassName`` and what else ``exactly`` can have."""
        wanted = [{"name": f"r{number}", "exactly": dict(one)} for number, one in enumerate(requests)]
        self._cluster.api.post(
            CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name},
                "spec": {"devices": {"requests": wanted, "constraints": list(constraints)}},
            },
        )
        self._made.append(name)

    def allocated(self, name: str) -> list[Json]:
        """The devices of a claim; empty until a scheduler has allocated it."""
        status = self._cluster.api.get(f"{CLAIMS}/{name}").get("status", {})
        results: list[Json] = status.get("allocation", {}).get("devices", {}).get("results", [])
        return results

    def delete(self, name: str) -> None:
        """Deletes a claim and waits until it is gone."""
        self._cluster.api.delete(f"{CLAIMS}/{name}")
        until(f"claim {name} is gone", lambda: self._gone(name))
        self._made.remove(name)

    def slices(self) -> list[Json]:
        """The slices of the driver."""
        selector = f"fieldSelector=spec.driver%3D{self._driver}"
        items: list[Json] = self._cluster.api.get(f"{SLICES}?{selector}")["items"]
        return items

    def offered(self) -> dict[str, Json]:
        """The devices in slices by id; unhealthy ones have ``taints``."""
        return {
            device["attributes"]["id"]["string"]: device
            for one in self.slices()
            for device in one["spec"].get("devices", ())
        }

    def shows(self, *ids: str) -> None:
        """Waits until slices have exactly these devices.

        Raises:
            TimeoutError: they do not.
        """
        until(f"slices have {ids}", lambda: self.offered().keys() == set(ids), seen=self.offered)

    def clear(self) -> None:
        """Removes what the test has made, as if the node were new. No devhost and no pods run any more."""
        for name in list(self._made):
            self.delete(name)
        for printed in self._classes:
            self._cluster.kubectl.delete(printed)
        self._cluster.api.delete(f"{SLICES}?fieldSelector=spec.driver%3D{self._driver}")
        shutil.rmtree(self._cluster.namespaces.path(f"{DRIVER_DIRECTORY}/{self._driver}"), ignore_errors=True)

    def _gone(self, name: str) -> bool:
        try:
            self._cluster.api.get(f"{CLAIMS}/{name}")
        except ApiError as error:
            return error.status == 404
        return False
