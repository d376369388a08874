"""A node with cards that claims get: an API server with claims, a backend, a ledger, and a CDI directory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.allocation.cdi.claim_metadata import MetadataFiles
from devhost.allocation.claims import ClaimedDevice
from devhost.allocation.resource_backend import ResourceBackend
from devhost.backend import AllocateRequest, Device, DeviceNode, Edits, option
from devhost.backend.errors import AllocationError
from devhost.backend.model import HEALTHY, ClaimHolder, Health
from devhost.discovery.runner import BackendRunner
from devhost.dra.inventory import DraDevice
from devhost.dra.kube import ApiError, Unreachable
from devhost.dra.prepare import Preparer
from devhost.planning.settings import DraTerms, ResourceSettings, Serve, Share
from devhost.planning.timing import AllocationTiming
from kit.allocator import Ledger, NotingScanner
from kit.backend import Plain

DRIVER = "devhost.example.com"
RESOURCE = "example.com/card"
POOL = "node-1/example-com-card"
KIND = f"{DRIVER}/claim"
PATIENT = AllocationTiming(allocate=1e6, prepare=1e6)
"""No deadline that a busy machine, or a clock that jumps, could miss."""


def uid(number: int) -> str:
    """A uid as the API server makes them."""
    return f"{number:08x}-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class CardOptions:
    mode: Literal["fast", "safe"] = option("safe", "how it runs")
    depth: int = option(0, "how deep its queue is")


class Cards(Plain):
    """Cards; what each adds is a variable of its own, and with ``together`` one that lists them all."""

    name = "cards"
    ResourceOptions = CardOptions
    together: ClassVar[bool] = False
    cdi: ClassVar[bool] = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.prepared: list[list[str]] = []
        self.refuse: set[str] = set()
        self.node = "/dev/null"

    def allocate(self, request: AllocateRequest) -> Edits:
        ids = [device.id for device in request.devices]
        if refused := self.refuse.intersection(ids):
            raise AllocationError(f"{min(refused)} is being reset")
        env = {f"CARD_{one.upper()}_MODE": request.options.mode for one in ids}
        if self.together:
            env["CARDS"] = ",".join(ids)
        nodes = tuple(DeviceNode(self.node, f"/dev/card-{one}") for one in ids)
        names = tuple(f"example.com/extra={one}" for one in ids) if self.cdi else ()
        return Edits(nodes=nodes, env=env, cdi_devices=(*names, "example.com/driver=lib") if self.cdi else ())

    def prepare(self, request: AllocateRequest) -> None:
        self.prepared.append([device.id for device in request.devices])


class Together(Cards):
    """Several cards give more than each by itself."""

    together = True


class WithCdi(Cards):
    """Each card comes with CDI names that another program defines."""

    cdi = True


class FakeApi:
    """The ResourceClaims of an API server."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        self.down = False
        self.error: ApiError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.slow: set[str] = set()
        self.gets: list[str] = []
        self.answering: Callable[[], Awaitable[None]] | None = None
        """Is awaited before each answer."""
        self.most = 0
        """The most requests at a time."""
        self._now = 0

    async def get(self, path: str) -> dict[str, Any]:
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            if self.answering is not None:
                await self.answering()
            return await self._get(path)
        finally:
            self._now -= 1

    async def _get(self, path: str) -> dict[str, Any]:
        *_, namespace, kind, name = path.split("/")
        assert path == f"/apis/resource.k8s.io/v1/namespaces/{namespace}/{kind}/{name}"
        assert kind == "resourceclaims"
        self.gets.append(name)
        if not self.slow or name in self.slow:
            await self.gate.wait()
        if self.down:
            raise Unreachable("cannot connect to the API server 10.0.0.1:443: connection refused")
        if self.error is not None:
            raise self.error
        try:
            return self.claims[namespace, name]
        except KeyError:
            raise ApiError(404, "NotFound", f'resourceclaims "{name}" not found') from None


@dataclass
class Resources:
    """The devices that are offered, by name."""

    offered: dict[str, DraDevice] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def find(self, pool: str, device: str) -> DraDevice | None:
        return self.offered.get(device) if pool == POOL else None

    def claimed(self, pool: str, device: str, share: str) -> ClaimedDevice | None:
        if (found := self.find(pool, device)) is None:
            return None
        return ClaimedDevice("", pool, device, share, found.key, found.resource)

    def missing(self, pool: str, device: str) -> str:
        return self.reasons.get(device, "")

    def is_gone(self, key: tuple[str, str]) -> bool:
        return key[1] in self.gone


def claim_files(place: Path, boot: str = "boot-1") -> ClaimFiles:
    """The files of claims, in this boot."""
    file = place / "boot_id"
    file.write_text(f"{boot}\n")
    metadata = MetadataFiles(place / "plugins")
    return ClaimFiles(place / "cdi", deadline=PATIENT.allocate, boot_id=file, metadata=metadata)


def result(request: str, device: str, driver: str = DRIVER, **more: Any) -> dict[str, Any]:
    """One device of an allocation."""
    return {"request": request, "driver": driver, "pool": POOL, "device": device, **more}


def config(options: Any, source: str = "FromClass", *requests: str, driver: str = DRIVER) -> dict[str, Any]:
    """An opaque configuration with these options of the backend."""
    parameters = {"apiVersion": "devhost/v1", "kind": "DeviceOptions", "options": options}
    return {"source": source, "requests": [*requests], "opaque": {"driver": driver, "parameters": parameters}}


class Scene:
    """The cards ``a`` to ``d``, and a preparer of their claims."""

    def __init__(
        self,
        place: Path,
        kind: type[Cards] = Cards,
        replicas: int = 1,
        options: object = CardOptions(),
        **more: Any,
    ) -> None:
        self.place = place
        self.boot = "boot-1"
        self.api = FakeApi()
        self.files = claim_files(place)
        self.entry = ResourceSettings(
            0,
            RESOURCE,
            kind.name,
            share=Share(replicas),
            options=options,
            serve=Serve.DRA,
            dra=DraTerms(claim_options=("mode",)),
        )
        self.runner = BackendRunner(kind, kind.Options(), Path("/"))
        self.scanner = NotingScanner(self.runner)
        self.backend = ResourceBackend(RESOURCE, self.scanner, self.entry)
        self.resources = Resources()
        for name in "abcd":
            self.offer(name, replicas=replicas)
        self.restart(**more)

    def restart(self, driver: str = DRIVER, **more: Any) -> None:
        """Another run of devhost, which has not read the files yet."""
        self.files.close()
        self.files = claim_files(self.place, self.boot)
        self.node = Ledger()
        self.ledger = self.node.allocations.claims
        self.preparer = Preparer(driver, self.api, self.resources, self.ledger, self.files, **more)

    @property
    def held(self) -> list[str]:
        """The ids of the devices that claims hold, once for each share."""
        return sorted(one.device.id for one in self.ledger.held())

    @property
    def cards(self) -> Cards:
        """The backend object."""
        backend = self.runner.backend
        assert isinstance(backend, Cards)
        return backend

    async def start(self) -> Scene:
        """Starts the backend."""
        self.runner.discover([])
        return self

    def close(self) -> None:
        self.runner.close()
        self.files.close()

    def offer(self, name: str, health: Health = HEALTHY, replicas: int = 1) -> None:
        """Offers a card."""
        key = ("cards", name)
        self.resources.offered[name] = DraDevice(
            key, Device(name), health, RESOURCE, self.entry, self.backend, replicas
        )

    def claim(
        self,
        number: int,
        *results: Mapping[str, Any],
        config: Sequence[Mapping[str, Any]] = (),
        name: str = "",
        pod_claim: str = "",
    ) -> ClaimHolder:
        """A claim with an allocation; not allocated without results.

        With ``pod_claim``, its name in a pod, it was made from a template.
        """
        name = name or f"claim-{number}"
        status: dict[str, Any] = {}
        if results:
            status = {"allocation": {"devices": {"results": [*results], "config": [*config]}}}
        annotations = {"annotations": {"resource.kubernetes.io/pod-claim-name": pod_claim}}
        self.api.claims["team", name] = {
            "metadata": {
                "namespace": "team",
                "name": name,
                "uid": uid(number),
                **(annotations if pod_claim else {}),
            },
            "status": status,
        }
        return ClaimHolder("team", name, uid(number))

    async def prepare(self, *refs: ClaimHolder) -> list[Sequence[ClaimedDevice] | str]:
        """The answers for these claims, in order."""
        answers = await self.preparer.prepare(refs)
        assert list(answers) == [ref.uid for ref in refs]
        return [answers[ref.uid] for ref in refs]

    async def devices(self, ref: ClaimHolder) -> Sequence[ClaimedDevice]:
        """The devices of a claim that can be prepared."""
        (answer,) = await self.prepare(ref)
        assert not isinstance(answer, str), answer
        return answer

    async def error(self, ref: ClaimHolder) -> str:
        """Why a claim cannot be prepared."""
        (answer,) = await self.prepare(ref)
        assert isinstance(answer, str)
        return answer

    async def unprepare(self, *refs: ClaimHolder) -> list[str]:
        answers = await self.preparer.unprepare(refs)
        return [answers[ref.uid] for ref in refs]

    @property
    def left(self) -> list[str]:
        """The files in the CDI directory, hidden ones too."""
        directory = self.place / "cdi"
        return sorted(path.name for path in directory.iterdir()) if directory.exists() else []

    def file(self, ref: ClaimHolder) -> Path:
        """The file that a claim has once it is prepared."""
        return self.place / f"cdi/devhost-dra_{ref.uid}.json"

    def spec(self, ref: ClaimHolder) -> dict[str, Any]:
        """The specification of a claim."""
        found = json.loads(self.file(ref).read_text())
        assert isinstance(found, dict)
        return found

    def container(self, ref: ClaimHolder, devices: Sequence[ClaimedDevice]) -> dict[str, str]:
        """The variables that a container with these devices has of the claim."""
        spec = self.spec(ref)
        by_name = {f"{spec['kind']}={one['name']}": one["containerEdits"] for one in spec["devices"]}
        names = [name for device in devices for name in device.cdi_ids if name.startswith(f"{spec['kind']}=")]
        env = [one.partition("=") for name in names for one in by_name[name].get("env", ())]
        return {name: value for name, _, value in env if name != "DEVHOST"}
