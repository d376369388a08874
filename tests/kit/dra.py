"""A node with both front ends: devhost, the simulated kubelet, and the simulated API server."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import grpc.aio
from devhost_testing.api import dra_v1_pb2_grpc as v1_grpc
from devhost_testing.api import registration_pb2_grpc
from devhost_testing.dra import ApiServer
from devhost_testing.dra.access import kubeconfig_text
from devhost_testing.dra.api_objects import claims as claims_of
from devhost_testing.node import QUICK as NODE_QUICK
from devhost_testing.node import Node

from devhost.backend import Attribute, Backend, Device, Edits, unhealthy
from devhost.dra.api import dra_v1_pb2 as v1
from devhost.dra.api import registration_pb2
from devhost.host.host import Host
from devhost.host.shown.status import captured
from devhost.planning.settings import DraOptions
from devhost.planning.sides import Moving
from devhost.planning.timing import DraTiming, Timing
from devhost.telemetry.document import json_line

DRIVER = "devhost.example.com"
NODE = "node-1"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TLS = Path(__file__).parents[1] / "dra" / "tls"
"""Certificates for localhost, made for tests and valid for a hundred years."""
QUICK = replace(
    NODE_QUICK,
    allocation=replace(NODE_QUICK.allocation, list_held=0.1, no_pods=0.1),
    dra=DraTiming(
        settle=0.02,
        gap=0.05,
        write=0.001,
        node=0.05,
        sockets=0.1,
        statuses=0.1,
        schedulers=0.3,
        recheck=0.1,
    ),
)
"""Both front ends without the pauses that spare schedulers, API servers and kubelets."""


class Cards(Backend):
    """Cards as the file ``cards`` of the tree lists them: an id, and ``ill`` for an unhealthy one.

    A number after the id is that of the card's IOMMU group.

    Nothing is found as long as there is a file ``hang``.
    """

    name = "cards"
    attributes: ClassVar = {"model": Attribute(str, "model", "x100")}

    def discover(self) -> list[Device]:
        while (self.context.root / "hang").exists():
            time.sleep(0.02)
        found = []
        for line in (self.context.root / "cards").read_text().splitlines():
            name, _, health = line.partition(" ")
            verdict = {"health": unhealthy("it is hot")} if health == "ill" else {}
            claims = {f"node:/dev/{name}", *([f"iommu:{health}"] if health.isdecimal() else [])}
            found.append(Device(name, {"model": "x100"}, claims=frozenset(claims), **verdict))
        return found

    def allocate(self, request: Any) -> Edits:
        return Edits(env={"CARDS": ",".join(device.id for device in request.devices)})


PATIENT: dict[str, Any] = {"wait_for_ready": True, "timeout": 60.0}
"""A driver that starts is waited for: a kubelet calls it only once it is registered."""


class Calls:
    """The calls of a kubelet to the driver over one connection."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    async def prepare(self, *claims: v1.Claim) -> Mapping[str, v1.NodePrepareResourceResponse]:
        """See :meth:`Cluster.prepare`."""
        request = v1.NodePrepareResourcesRequest(claims=claims)
        return dict((await self._stub.NodePrepareResources(request, **PATIENT)).claims)

    async def unprepare(self, *claims: v1.Claim) -> Mapping[str, v1.NodeUnprepareResourceResponse]:
        """See :meth:`Cluster.unprepare`."""
        request = v1.NodeUnprepareResourcesRequest(claims=claims)
        return dict((await self._stub.NodeUnprepareResources(request, **PATIENT)).claims)


class Cluster:
    """An API server with one node, and what the kubelet of that node asks a driver.

    Attributes:
        server: the API server; it runs while the cluster is entered.
        options: where devhost finds it, and where the kubelet finds the driver.
    """

    def __init__(self, place: Path) -> None:
        self.server = ApiServer(tls=certificate())
        self._kubeconfig = place / "kubeconfig"
        self.options = DraOptions(place / "registry", place / "plugins", NODE, self._kubeconfig)

    async def __aenter__(self) -> Self:
        await self.server.__aenter__()
        at = f"https://localhost:{self.server.port}"
        cluster = {"server": at, "certificate-authority": str(TLS / "authority.pem")}
        self._kubeconfig.write_text(kubeconfig_text(cluster, {"token": "secret"}))
        self.server.node(NODE, allocatable={})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.stop()

    @property
    def words(self) -> list[object]:
        """The options of ``devhost run`` on this node."""
        own = self.options
        words: list[object] = ["--plugins-registry", own.plugins_registry, "--plugins-dir", own.plugins_dir]
        return [*words, "--kubeconfig", self._kubeconfig, "--node-name", own.node]

    def slices(self) -> list[dict[str, Any]]:
        """The ``spec`` of each slice, by the slice's name."""
        return [one["spec"] for one in self.server.stored(SLICES)]

    def published(self) -> dict[str, set[str]]:
        """The ids of the devices in slices, by resource."""
        found: dict[str, set[str]] = {}
        for spec in self.slices():
            for device in spec.get("devices", ()):
                attributes = device["attributes"]
                found.setdefault(attributes["resource"]["string"], set()).add(attributes["id"]["string"])
        return found

    def name_of(self, card: str) -> tuple[str, str]:
        """The pool and the name under which a card is published."""
        for spec in self.slices():
            for device in spec.get("devices", ()):
                if device["attributes"]["id"] == {"string": card}:
                    return spec["pool"]["name"], device["name"]
        raise AssertionError(f"{card} is not published")

    def drivers(self) -> dict[str, set[str]]:
        """The ids of the devices in slices, by driver."""
        found: dict[str, set[str]] = {}
        for spec in self.slices():
            ids = found.setdefault(spec["driver"], set())
            ids.update(device["attributes"]["id"]["string"] for device in spec.get("devices", ()))
        return found

    def allocate(
        self,
        name: str,
        *devices: tuple[str, str],
        share: str = "",
        pod: str = "",
        drivers: Sequence[str] = (),
        consumed: Mapping[str, str] | None = None,
        config: Sequence[Mapping[str, Any]] = (),
    ) -> v1.Claim:
        """Makes a claim to which a scheduler has allocated devices, each as pool and name.

        ``drivers`` are those of the devices, if they are of several. With ``share``, the share id, it has one
        slot of each, or what is ``consumed``. It is reserved for ``pod``, if one is named. ``config`` has
        opaque configurations.
        """
        reserved = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}] if pod else []
        used = consumed or {f"{DRIVER}/slots": "1"}
        each = zip(devices, drivers or [DRIVER] * len(devices), strict=True)
        results: list[dict[str, Any]] = [
            {"request": "req", "driver": driver, "pool": pool, "device": device}
            for (pool, device), driver in each
        ]
        for number, one in enumerate(results if share else ()):
            one |= {"shareID": f"{share}-{number}" if number else share, "consumedCapacity": used}
        allocated = {"results": results, **({"config": [*config]} if config else {})}
        made = self.server.put(
            claims_of("default"),
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [{"name": "req"}]}},
                "status": {"allocation": {"devices": allocated}, "reservedFor": reserved},
            },
        )
        return v1.Claim(namespace="default", name=name, uid=made["metadata"]["uid"])

    def delete_claim(self, name: str) -> None:
        """Deletes a claim."""
        self.server.remove(f"{claims_of('default')}/{name}")

    async def prepare(
        self, *claims: v1.Claim, driver: str = DRIVER
    ) -> Mapping[str, v1.NodePrepareResourceResponse]:
        """What the driver answers to the kubelet for these claims, by uid."""
        async with self.channel(driver) as calls:
            return await calls.prepare(*claims)

    async def unprepare(
        self, *claims: v1.Claim, driver: str = DRIVER
    ) -> Mapping[str, v1.NodeUnprepareResourceResponse]:
        """The same when they are released."""
        async with self.channel(driver) as calls:
            return await calls.unprepare(*claims)

    @asynccontextmanager
    async def channel(self, driver: str = DRIVER) -> AsyncIterator[Calls]:
        """A connection to the driver."""
        async with channel(self.options.service_socket(driver)) as calls:
            yield Calls(v1_grpc.DRAPluginStub(calls))

    async def register(self, driver: str = DRIVER) -> None:
        """Asks the driver what it serves, and reports that the kubelet uses it."""
        async with channel(self.options.registration_socket(driver)) as calls:
            stub = registration_pb2_grpc.RegistrationStub(calls)
            assert (await stub.GetInfo(registration_pb2.InfoRequest())).name == driver
            await stub.NotifyRegistrationStatus(registration_pb2.RegistrationStatus(plugin_registered=True))

    def kubelet_reports(self, **allocatable: int) -> None:
        """Makes the kubelet update the status of the Node."""
        amounts = {name.replace("__", "/").replace("_", "."): str(n) for name, n in allocatable.items()}
        self.server.node(NODE, allocatable=amounts)


def channel(path: Path) -> grpc.aio.Channel:
    """A connection of a kubelet to a socket."""
    options = (("grpc.default_authority", "localhost"), ("grpc.initial_reconnect_backoff_ms", 50))
    return grpc.aio.insecure_channel(f"unix:{path}", options=options)


class DraNode(Cluster):
    """The node; everything runs while it is entered.

    Attributes:
        node: devhost, and the kubelet's device plugin side.
    """

    def __init__(self, place: Path, timing: Timing = QUICK, kind: type[Backend] = Cards) -> None:
        super().__init__(place)
        self.node = Node(place, kind, timing=timing, dra=self.options)
        self.node.root.mkdir(exist_ok=True)
        self.cards("c0", "c1")

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.node.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.node.__aexit__(kind, error, trace)
        await super().__aexit__(kind, error, trace)

    def cards(self, *cards: str) -> None:
        """Makes exactly these cards exist."""
        (self.node.root / "cards").write_text("\n".join(cards))

    def configure(self, *entries: str) -> None:
        """Makes the file hold these entries."""
        lines = "".join(f"  - {entry}\n" for entry in entries)
        self.node.configure(f"dra: {{driver: {DRIVER}}}\nresources:\n{lines}")

    @asynccontextmanager
    async def served(
        self,
        *entries: str,
        published: Mapping[str, set[str]] | None = None,
        drivers: Mapping[str, set[str]] | None = None,
        offers: Mapping[str, int] | None = None,
    ) -> AsyncIterator[None]:
        """Runs devhost, with these entries if any; first waits for what slices and device plugins have."""
        if entries:
            self.configure(*entries)
        async with self.node.served(offers):
            if published is not None:
                await self.until(lambda: self.published() == published)
            if drivers is not None:
                await self.until(lambda: self.drivers() == drivers)
                for driver in drivers:
                    await self.until(self.options.service_socket(driver).exists)
            yield

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition."""
        await self.node.until(condition)

    @property
    def host(self) -> Host:
        """The devhost that runs."""
        return self.node.host

    async def reload(self, *entries: str) -> None:
        """Makes devhost read the file again, with these entries if any."""
        if entries:
            self.configure(*entries)
        await self.node.reload()

    def taints(self, *fields: str) -> dict[str, list[tuple[str, ...]]]:
        """These fields of the taints of each published device that has some, by the device's name."""
        return {
            device["name"]: [tuple(taint[field] for field in fields) for taint in device["taints"]]
            for spec in self.slices()
            for device in spec.get("devices", ())
            if device.get("taints")
        }

    async def prepared(self, *claims: v1.Claim, driver: str = DRIVER) -> None:
        """The driver prepares these claims."""
        answers = await self.prepare(*claims, driver=driver)
        assert [answers[claim.uid].error for claim in claims] == [""] * len(claims)

    async def refusal(self, claim: v1.Claim, driver: str = DRIVER) -> str:
        """Why the driver does not prepare a claim; empty if it does."""
        return str((await self.prepare(claim, driver=driver))[claim.uid].error)

    async def released(self, *claims: v1.Claim, driver: str = DRIVER) -> None:
        """The driver releases these claims."""
        answers = await self.unprepare(*claims, driver=driver)
        assert [answers[claim.uid].error for claim in claims] == [""] * len(claims)

    async def register(self, driver: str = DRIVER) -> None:
        await self.until(self.options.registration_socket(driver).exists)
        await super().register(driver)

    async def settled(self, seconds: float = 0.3) -> None:
        """Lets some time pass in which something wrong would happen: several times that of :data:`QUICK`."""
        await asyncio.sleep(seconds)

    async def synced(self) -> None:
        """Waits until the slices agree with the devices."""

        await self.until(lambda: (report := self.report()) and report["syncedAt"])

    def report(self) -> Any:
        """The part of the status document that is about DRA; ``None`` until there is a driver."""
        return json.loads(json_line(captured(self.node.host)().dra))

    def moving(self) -> Sequence[Moving]:
        """The devices that change sides."""
        sides = self.node.host.dra.sides
        return sides.moving() if sides else []

    def edits(self, answer: v1.NodePrepareResourceResponse) -> Sequence[Mapping[str, Any]]:
        """What containers get for an answer, as the runtime reads it."""
        assert not answer.error
        return self.node.specified([name for device in answer.devices for name in device.cdi_device_ids])


def certificate(name: str = "server", *, clients: str = "") -> ssl.SSLContext:
    """What the server shows; with ``clients``, whom it accepts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / f"{name}.pem", TLS / f"{name}.key")
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(TLS / clients)
    return context
