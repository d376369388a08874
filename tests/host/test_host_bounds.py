"""What kubelets, pods, scrapes and watchers make devhost do grows at most linearly with the list.

Work is counted in executed lines of devhost, in all threads, not in seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from devhost_testing.kubelet.wire import CallError, PluginConnection
from devhost_testing.node import Node
from kit.http import get
from kit.waiting import until
from work import Work, counted, grows_linearly, least, prompt, rested

from devhost.allocation.inventory import Inventory
from devhost.allocation.leases import Listing
from devhost.backend import AllocateRequest, Backend, Device, DeviceNode, Edits, Event, unhealthy
from devhost.backend.model import Holder
from devhost.host.host import Host
from devhost.host.shown.gauges import gauges
from devhost.host.shown.shortages import holders
from devhost.host.shown.status import captured
from devhost.kubelet.api import RECEIVE_LIMIT
from devhost.planning.timing import KubeletTiming, Timing
from devhost.runtime.http import HttpServer, Listen, page
from devhost.runtime.worker import PIECE
from devhost.telemetry.document import complete, json_line
from devhost.telemetry.exposition import CONTENT_TYPE
from devhost.telemetry.metrics import Metrics
from devhost.telemetry.page import StatusPage

NAME = "example.com/card"

PER_TOKEN = 1000
"""Most lines of any request for each token of the list, with what follows the answer. An Allocate and its
accounting take about 60 for each of the tokens of one device, and 460 for each device, and more on a slow
machine, which looks at what containers have more often."""

CONSTANT = 40_000
"""Lines that any request may take besides, and what devhost does at the same time by itself."""

TURN = 400_000
"""Most lines between two turns of the event loop: about 50 ms, eight lines in a microsecond."""


@dataclass
class Shape:
    """How many tokens a list has, and of what."""

    name: str
    devices: Callable[[int], int]
    entry: Callable[[int], str]
    options: dict[str, Any] = field(default_factory=dict)


SHAPES = (
    Shape("replicas", lambda n: 1, lambda n: f"share: {{replicas: {n}}}"),
    Shape("devices", lambda n: n, lambda n: "prefer: pack"),
    Shape("together", lambda n: 40, lambda n: f"share: {{of: all, replicas: {n}}}"),
    Shape("cdi", lambda n: 1, lambda n: f"share: {{replicas: {n}}}, inject: cdi"),
)


class HasDevices(Backend):
    """A backend whose devices a test changes."""

    exist: ClassVar[list[Device]]


def cards(count: int, *, share: bool) -> type[HasDevices]:
    """A backend with so many devices, all of whose hooks a kubelet can cause to be called."""
    found = [Device(f"card{n:05}", numa_nodes=(n % 2,)) for n in range(count)]

    class Cards(HasDevices):
        name = "card"
        takes_shares: ClassVar[bool] = share
        exist: ClassVar[list[Device]] = found

        def discover(self) -> list[Device]:
            return found

        def allocate(self, request: AllocateRequest) -> Edits:
            return Edits(nodes=(DeviceNode("/dev/null"),), env={"CARDS": str(len(request.devices))})

        def prepare(self, request: AllocateRequest) -> None:
            pass

    return Cards


@dataclass
class Scene:
    """A served list, and a connection like that of a kubelet."""

    host: Host
    plugin: PluginConnection
    tokens: list[str]
    exist: list[Device]
    """The devices that the backend finds."""

    @property
    def inventory(self) -> Inventory:
        return self.host.services[NAME].inventory

    async def listed(self) -> None:
        async for message in self.plugin.lists():
            assert len(message.devices) == len(self.tokens)
            break
        self.plugin.cut()

    async def preferred(self) -> None:
        answer = await self.plugin.preference(self.tokens, (), len(self.tokens) // 2)
        assert len(answer.container_responses[0].deviceIDs) == len(self.tokens) // 2

    async def allocated(self) -> None:
        half = self.tokens[: len(self.tokens) // 2]
        await self.plugin.allocate(half)
        assert self.host.allocations.of(NAME).tokens() >= set(half)

    async def refused(self) -> None:
        for wrong in ("nobody", self.tokens[0]):
            with pytest.raises(CallError):
                await self.plugin.allocate([*self.tokens, wrong])

    async def prepared(self) -> None:
        await self.plugin.pre_start(self.tokens[: len(self.tokens) // 2], 60)

    async def pods(self) -> None:
        half = self.tokens[: len(self.tokens) // 2]
        holder = Holder("default", "train", "main")
        self.take(dict.fromkeys(half, holder), {holder: True})
        assert self.inventory.allocations.leases.holder(half[0]) == holder

    async def ended(self) -> None:
        self.take({}, {Holder("default", "other", "main"): True})
        self.take({}, {Holder("default", "other", "main"): True}, later=60.0)
        assert not self.host.allocations.of(NAME).is_held()

    async def planned(self) -> None:
        self.host.replan()

    async def changed(self) -> None:
        """One more device becomes unhealthy."""
        number = next(n for n, device in enumerate(self.exist) if n >= 7 and device.health.healthy)
        self.exist[number] = replace(self.exist[number], health=unhealthy("hot"))
        self.host.backends.dispatch(Event("", "change", f"/sys/card{number}"))
        name = self.exist[number].id
        await until(lambda: not self.inventory.snapshot.entries[name].health.healthy)

    async def scraped(self) -> None:
        """The whole exposition with the names of pods, over HTTP."""
        metrics = Metrics()
        metrics.name_gauges(lambda: gauges(self.host.now(), pods=True))
        server = HttpServer({"/metrics": page(metrics.render, CONTENT_TYPE)})
        place = await server.start(Listen("127.0.0.1", 0))
        try:
            status, text = await asyncio.to_thread(get, place, "/metrics")
        finally:
            await server.stop()
        assert status == 200
        assert text.count(NAME) >= len(list(holders(self.host.now()))) > 0

    async def shown(self) -> None:
        assert len(json_line(complete(captured(self.host)()))) > len(self.tokens)

    async def viewed(self) -> None:
        shown = StatusPage(lambda: captured(self.host), node="n1")
        await shown.routes()["/"]()

    def take(self, held: Any, containers: Any, later: float = 0.0) -> None:
        """Another list of who holds what."""
        now = asyncio.get_running_loop().time() + later + 1
        self.host.allocations.apply(Listing((1,), now, 1, {NAME: held}, containers))


PLAN = "a plan while pods hold half"

ROWS: tuple[tuple[str, Callable[[Scene], Awaitable[None]]], ...] = (
    ("ListAndWatch", Scene.listed),
    ("GetPreferredAllocation", Scene.preferred),
    ("Allocate", Scene.allocated),
    ("Allocate again", Scene.allocated),
    ("Allocate, refused", Scene.refused),
    ("PreStartContainer", Scene.prepared),
    ("podresources", Scene.pods),
    (PLAN, Scene.planned),
    ("/metrics with pods over HTTP", Scene.scraped),
    ("status", Scene.shown),
    ("the page", Scene.viewed),
    ("GetPreferredAllocation of what pods hold", Scene.preferred),
    ("pods end", Scene.ended),
)


@asynccontextmanager
async def serving(place: Path, shape: Shape, size: int) -> AsyncIterator[Scene]:
    place.mkdir()
    kind = cards(shape.devices(size), share=shape.name in ("replicas", "cdi"))
    timing = prompt(
        Timing(kubelet=KubeletTiming(given=3600.0))
    )  # nothing looks at everything from time to time
    async with Node(place, kind, timing=timing) as node:
        (node.root / "dev").mkdir(parents=True)
        (node.root / "dev/null").touch()
        node.configure(f"resources: [{{name: {NAME}, backend: card, {shape.entry(size)}}}]")
        async with node.served({NAME: size}):
            path = node.kubelet.directory / node.kubelet.endpoints(NAME)[0]
            plugin = PluginConnection(NAME, path.name, str(path), RECEIVE_LIMIT)
            await plugin.dial(60.0)
            tokens = list(node.host.services[NAME].inventory.snapshot.entries)
            await rested()
            yield Scene(node.host, plugin, tokens, kind.exist)
            await plugin.close()


@pytest.mark.parametrize(
    "shape",
    [pytest.param(one, marks=pytest.mark.slow) if one.name == "devices" else one for one in SHAPES],
    ids=lambda shape: shape.name,
)
async def test_work_for_any_request_grows_linearly_with_the_list(tmp_path: Path, shape: Shape) -> None:
    sizes = (600, 1200)
    found: dict[str, list[int]] = {}
    for size in sizes:
        async with serving(tmp_path / str(size), shape, size) as scene:
            for name, row in ROWS:
                lines, _ = await (least if name == PLAN else counted)(partial(row, scene))
                found.setdefault(name, []).append(lines)
    grows_linearly(found, PLAN, CONSTANT)
    for name, (_, large) in found.items():
        assert large <= PER_TOKEN * sizes[1] + CONSTANT, f"{name}: {large} lines for {sizes[1]} tokens"


async def test_a_change_of_one_device_looks_at_no_other_one(tmp_path: Path) -> None:
    """Only the kubelet's answer to which devices are allocatable is read as a whole: two lines for each."""
    sizes, found = (600, 1200), []
    for size in sizes:
        async with serving(tmp_path / str(size), SHAPES[1], size) as scene:
            lines, _ = await least(scene.changed)  # a busy machine may read that answer twice
            found.append(lines)
    assert found[1] - found[0] <= 3 * (sizes[1] - sizes[0]), f"{found[0]} lines, {found[1]} for twice as many"


async def test_what_is_shown_is_collected_without_a_look_at_any_device(tmp_path: Path) -> None:
    found = []
    for size in (600, 1200):
        async with serving(tmp_path / str(size), SHAPES[1], size) as scene:
            await scene.allocated()
            scene.host.now()  # what has changed is looked at once
            work = Work()
            with work.counted():
                scene.host.now()
            found.append(work.of_loop)
    assert found[0] == found[1] < 300, f"{found[0]} lines, {found[1]} for twice as many"


REQUESTS = (Scene.listed, Scene.preferred, Scene.allocated, Scene.refused, Scene.prepared, Scene.scraped)


@pytest.mark.slow
@pytest.mark.parametrize("shape", (SHAPES[0], SHAPES[2]), ids=lambda shape: shape.name)
async def test_no_request_keeps_the_loop_for_long_at_a_list_of_many_pieces(
    tmp_path: Path, shape: Shape
) -> None:
    async with serving(tmp_path / "node", shape, 8 * PIECE) as scene:
        for row in REQUESTS:
            _, longest = await counted(partial(row, scene))
            assert longest <= TURN, f"{row.__name__}: {longest} lines in one go"
