"""What a kubelet makes the DRA driver do grows at most linearly with the claims and their devices.

Work is counted in executed lines of devhost, in all threads, not in seconds.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.api import health_v1_pb2_grpc
from devhost_testing.kubelet import ClaimDevice
from kit.dra import DRIVER, QUICK, Cards, DraNode, channel
from work import Work, counted, grows_linearly, least, prompt, rested

from devhost.allocation.leases import ClaimUse, ClaimUseDevice, Listing
from devhost.backend import Device, DeviceNode, Edits
from devhost.backend.model import Holder
from devhost.dra.api import dra_v1_pb2 as v1
from devhost.dra.api import health_v1_pb2
from devhost.host.host import Host
from devhost.host.shown.status import captured
from devhost.planning.timing import AllocationTiming, KubeletTiming
from devhost.telemetry.document import complete, json_line

PER_DEVICE = 4000
"""Most lines of any request for each device of its claims, if each claim has one device."""

CONSTANT = 10_000
"""Lines that any request may take besides, and what devhost does at the same time by itself."""

TURN = 400_000
"""Most lines between two turns of the event loop: about 50 ms, eight lines in a microsecond."""

MOST = 32
"""The most devices of a claim (``AllocationResultsMaxSize`` of Kubernetes)."""

RESOURCE = "example.com/card"


class WithNodes(Cards):
    """Cards that give a node of which they say nothing."""

    def discover(self) -> list[Device]:
        return [replace(one, claims=frozenset()) for one in super().discover()]

    def allocate(self, request: Any) -> Edits:
        return Edits(nodes=(DeviceNode("/dev/null"),))


@dataclass(frozen=True)
class Shape:
    """What the devices are, and how many of them each claim has."""

    name: str
    each: int
    sizes: tuple[int, int]
    kind: type[Cards] = Cards
    bound: bool = False
    shared: bool = False


SHAPES = (
    Shape("large", MOST, (6 * MOST, 12 * MOST)),
    Shape("small", 1, (60, 120)),
    Shape("shared", 1, (120, 240), shared=True),
    Shape("bound", 1, (60, 120), bound=True),
    Shape("unclaimed", 1, (60, 120), WithNodes),
)


@dataclass
class Scene:
    """A node that publishes cards, and claims that have all of them."""

    node: DraNode
    claims: Sequence[v1.Claim]
    missing: Sequence[v1.Claim]
    """Claims to which devices are allocated that do not exist."""
    size: int
    listing: Listing
    """A list of the kubelet with claims that have no record."""

    @property
    def host(self) -> Host:
        return self.node.host

    async def refused(self) -> None:
        answers = await self.node.prepare(*self.missing)
        assert all("not available" in one.error for one in answers.values())

    async def prepared(self) -> None:
        answers = await self.node.prepare(*self.claims)
        assert [one.error for one in answers.values() if one.error] == []

    async def planned(self) -> None:
        self.host.replan()

    async def shown(self) -> None:
        assert len(json_line(complete(captured(self.host)()))) > self.size

    async def watched(self) -> None:
        async with channel(self.node.options.service_socket(DRIVER)) as calls:
            stub = health_v1_pb2_grpc.DRAResourceHealthStub(calls)
            async for message in stub.NodeWatchResources(health_v1_pb2.NodeWatchResourcesRequest()):
                assert message.devices
                return

    async def unprepared(self) -> None:
        answers = await self.node.unprepare(*self.claims)
        assert [one.error for one in answers.values() if one.error] == []

    async def listed(self) -> None:
        """The kubelet lists the claims of an earlier run."""
        front_end = self.host.dra.front_ends[DRIVER]
        front_end.upkeep.hold(self.listing)
        assert self.host.allocations.claims.count == len(self.listing.claims)


PLAN = "a plan"

ROWS: tuple[tuple[str, Callable[[Scene], Awaitable[None]]], ...] = (
    ("NodePrepareResources, refused", Scene.refused),
    ("NodePrepareResources", Scene.prepared),
    ("NodePrepareResources again", Scene.prepared),
    ("NodeWatchResources", Scene.watched),
    (PLAN, Scene.planned),
    ("status", Scene.shown),
    ("NodeUnprepareResources", Scene.unprepared),
    ("NodeUnprepareResources again", Scene.unprepared),
    ("podresources", Scene.listed),
)


@asynccontextmanager
async def serving(shape: Shape, size: int) -> AsyncIterator[Scene]:
    """A node with so many devices, or so many shares of one."""
    once = KubeletTiming(question_new=0.0, given=3600.0)  # nothing looks at everything from time to time
    timing = prompt(replace(QUICK, allocation=AllocationTiming(no_pods=0.1, list_held=3600.0), kubelet=once))
    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as place:  # tmp_path is too long for a socket
        async with DraNode(Path(place), timing, shape.kind) as node:
            (node.node.root / "dev").mkdir()
            (node.node.root / "dev/null").touch()
            cards = [f"c{n}" for n in range(1 if shape.shared else size)]
            node.cards(*(f"{name} {n}" if shape.bound else name for n, name in enumerate(cards)))
            share = f", share: {{replicas: {size}}}" if shape.shared else ""
            node.configure(f"{{name: {RESOURCE}, backend: cards, serve: dra{share}}}")
            for n in range(size):  # claims of an earlier run whose devices are not known
                gone = ClaimDevice(DRIVER, "pool", f"gone-{n}", cdi_names=(_cdi_name(),))
                node.node.kubelet.use_claim(f"old-{n}", "main", f"old-{n}", [gone])
            async with node.served():
                await node.until(lambda: sum(map(len, node.published().values())) == len(cards))
                await node.synced()
                await rested()
                yield _scene(node, shape, size)


def _scene(node: DraNode, shape: Shape, size: int) -> Scene:
    published = _names(node)
    names = [published["c0" if shape.shared else f"c{n}"] for n in range(size)]
    several = [names[n : n + shape.each] for n in range(0, size, shape.each)]
    claims = [
        node.allocate(f"claim-{n}", *some, share=str(uuid.uuid4()) if shape.shared else "", pod=f"pod-{n}")
        for n, some in enumerate(several)
    ]
    missing = [
        node.allocate(f"missing-{n}", *((pool, f"{device}-x") for pool, device in some))
        for n, some in enumerate(several)
    ]
    uses = {("default", f"lost-{n}"): _use(f"lost-{n}", some) for n, some in enumerate(several)}
    began = asyncio.get_running_loop().time()
    return Scene(node, claims, missing, size, Listing((1,), began, size, {}, claims=uses))


def _names(node: DraNode) -> Mapping[str, tuple[str, str]]:
    """The pool and the name under which each card is published."""
    return {
        device["attributes"]["id"]["string"]: (spec["pool"]["name"], device["name"])
        for spec in node.slices()
        for device in spec.get("devices", ())
    }


def _use(name: str, devices: Sequence[tuple[str, str]]) -> ClaimUse:
    cdi_name = _cdi_name()
    some = (ClaimUseDevice(DRIVER, pool, device, cdi_names=(cdi_name,)) for pool, device in devices)
    return ClaimUse((Holder("default", name, "main"),), tuple(some))


def _cdi_name() -> str:
    """The name of a device of a new claim."""
    return f"{DRIVER}/claim={uuid.uuid4()}-req-0"


async def test_drivers_are_collected_without_a_look_at_any_device_or_claim() -> None:
    found = []
    for size in SHAPES[1].sizes:
        async with serving(SHAPES[1], size) as scene:
            await scene.prepared()
            scene.host.now()  # what has changed is looked at once
            work = Work()
            with work.counted():
                scene.host.now()
            found.append(work.of_loop)
    assert found[0] == found[1] < 300, f"{found[0]} lines, {found[1]} for twice as many"


@pytest.mark.parametrize(
    "shape",
    [pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one.name != "small")) for one in SHAPES],
)
async def test_work_for_any_request_to_the_driver_grows_linearly_with_its_claims(shape: Shape) -> None:
    found: dict[str, list[int]] = {}
    for size in shape.sizes:
        async with serving(shape, size) as scene:
            for name, row in ROWS:
                lines, longest = await (least if name == PLAN else counted)(partial(row, scene))
                found.setdefault(name, []).append(lines)
                assert longest <= TURN, f"{name}: {longest} lines in one go"
    grows_linearly(found, PLAN, CONSTANT)
    for name, (_, large) in found.items():
        most = PER_DEVICE * shape.sizes[1] + CONSTANT
        assert large <= most, f"{name}: {large} lines for {shape.sizes[1]} devices"
