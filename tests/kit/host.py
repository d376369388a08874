"""A whole host in the test's event loop, with real sockets, the kubelet simulator, and a scripted backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pluggy
import pytest
from devhost_testing.kubelet import KubeletSimulator

from devhost import config
from devhost.backend import AllocateRequest, Attribute, Backend, Device, DeviceNode, Edits, Mount, NoOptions
from devhost.backend.base import Hooks
from devhost.backend.files import fingerprint
from devhost.config.loader import Loaded
from devhost.discovery.catalog import GROUP, Catalog, Installed, InstalledObserver
from devhost.host.host import Host
from devhost.planning.timing import AllocationTiming, ConfigTiming, KubeletTiming, Timing


@dataclass
class Script:
    """What the scripted backend does; tests change it."""

    devices: list[Device] = field(default_factory=list)
    on_discover: Callable[[], None] = lambda: None
    on_allocate: Callable[[Sequence[Device]], None] = lambda devices: None
    nodes: dict[str, str] = field(default_factory=dict)
    mounted: bool = False
    """Whether containers get the nodes as mounts."""
    looks: int = 0


def scripted(name: str, script: Script) -> type[Backend]:
    """A backend class that follows ``script``."""

    class Scripted(Backend):
        attributes: ClassVar = {
            "model": Attribute(str, "model", "x100"),
            "index": Attribute(int, "index", 0),
            "driver": Attribute(str, "driver", "toy"),
        }
        discover_deadline = 60.0
        Options = NoOptions

        def discover(self) -> list[Device]:
            script.looks += 1
            script.on_discover()
            return list(script.devices)

        def allocate(self, request: AllocateRequest) -> Edits:
            script.on_allocate(list(request.devices))
            paths = [script.nodes.get(device.id, "/dev/null") for device in request.devices]
            return Edits(
                nodes=tuple(DeviceNode(path) for path in paths if not script.mounted),
                mounts=tuple(Mount(path, path) for path in paths if script.mounted),
                env={"DEVICES": ",".join(device.id for device in request.devices)},
            )

    Scripted.name = name
    return Scripted


def devices(count: int, model: str = "x100") -> list[Device]:
    """Devices ``d0`` … with an index, alternately on NUMA nodes 0 and 1."""
    return [
        Device(id=f"d{n}", attributes={"model": model, "index": n}, numa_nodes=(n % 2,)) for n in range(count)
    ]


def observer(plugin: object, name: str) -> InstalledObserver:
    """An object with hooks, as the catalog has it after finding it in a package."""
    registry = pluggy.PluginManager(GROUP)
    registry.add_hookspecs(Hooks)
    registry.register(plugin)
    hooks = tuple(sorted(caller.name for caller in registry.get_hookcallers(plugin) or ()))
    backends = tuple(getattr(plugin, "for_backends", ()))
    return InstalledObserver(name, "tests", "1", hooks, plugin, registry.hook, backends)


FAST = Timing(
    allocation=AllocationTiming(
        grace=0.5,
        release_gap=0.1,
        admission=0.3,
        list_allocated=0.05,
        list_held=0.75,
        list_vanished=0.25,
        list_forgotten=0.1,
    ),
    config=ConfigTiming(settle=0.02),
    kubelet=KubeletTiming(
        poll=0.5,
        settle=0.05,
        given=0.25,
        ask=0.3,  # three answers without a device mean that the kubelet dropped it: its list may be late
        rivals_gap=0.05,
        rivals_changed=0.1,
        question_gap=0.05,
        question_first=0.1,
        lists=((4, 0.05),),
    ),
)
"""A node's timing, but with shorter pauses, and releases are believed sooner."""


class Rig:
    """The parts of one test: the file, the scripts by backend name, the kubelet's directory, the host."""

    def __init__(self, tmp_path: Path) -> None:
        self.config = tmp_path / "devhost.yaml"
        self.kubelet_dir = tmp_path / "kubelet"
        self.pod_resources = tmp_path / "pod-resources"
        self.kubelet_dir.mkdir()
        self.scripts: dict[str, Script] = {"toy": Script(devices(2)), "other": Script(devices(1))}
        self.classes = {name: scripted(name, script) for name, script in self.scripts.items()}
        self.host: Host
        self.kubelet: KubeletSimulator | None = None
        self.observers: tuple[InstalledObserver, ...] = ()
        self.timing = FAST

    def observe(self, *plugins: object) -> None:
        """Makes these objects with hooks the observers of the host, from its next load on."""
        self.observers = tuple(observer(plugin, f"observer{n}") for n, plugin in enumerate(plugins))

    def hurry(self, **durations: object) -> None:
        """Has the kubelet side of the next host wait for these durations instead."""
        self.timing = replace(self.timing, kubelet=replace(self.timing.kubelet, **durations))

    def hurry_discovery(self, **durations: object) -> None:
        """Has scans, probes and observers of the next host wait for these durations instead."""
        self.timing = replace(self.timing, discovery=replace(self.timing.discovery, **durations))

    def hurry_allocation(self, **durations: object) -> None:
        """Has Allocate, and the conclusions from lists, of the next host wait for these durations instead."""
        self.timing = replace(self.timing, allocation=replace(self.timing.allocation, **durations))

    def load(self, **options: float) -> Loaded:
        installed = {
            name: Installed(kind, "tests", "0", ("devhost_backends",)) for name, kind in self.classes.items()
        }
        catalog = Catalog(installed, observers=self.observers)
        seen = fingerprint(self.config)
        return Loaded(config.load(self.config, lambda _paths, _wanted: catalog, **options), catalog, seen)

    def write(self, *resources: str) -> None:
        """Makes the file hold these resources, each in YAML's flow style."""
        lines = "".join(f"  - {{{resource}}}\n" for resource in resources)
        self.config.write_text(f"version: 1\nresources:\n{lines}" if lines else "version: 1\nresources: []\n")

    def change(self, backend: str, changed: list[Device]) -> None:
        """Plugs and unplugs devices: the backend finds others, after an event."""
        self.scripts[backend].devices = changed
        self.host.scanners[backend].request_scan()

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Waits for a condition inside the host."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def running(
        self,
        *resources: str,
        allocatable: Mapping[str, int] | None = None,
        reload: Callable[[], Loaded] | None = None,
        **options: object,
    ) -> AsyncIterator[Host]:
        """Writes these resources, if any, and runs a host; first waits until exactly this is allocatable."""
        if resources:
            self.write(*resources)
        options.setdefault("timing", self.timing)
        self.host = Host(self.config, self.load(), reload or self.load, self.kubelet_dir, **options)
        async with self.runs(self.host):
            if allocatable is not None:
                await self.offers(allocatable)
            yield self.host

    async def offers(self, allocatable: Mapping[str, int]) -> None:
        """Waits until the plugins that run make exactly this allocatable."""
        kubelet = self.kubelet
        assert kubelet is not None
        await kubelet.wait_for(
            lambda: kubelet.allocatable() == allocatable and all(map(kubelet.settled, allocatable)), 60.0
        )

    @asynccontextmanager
    async def runs(self, host: Host) -> AsyncIterator[None]:
        """A host runs meanwhile; in the end the kubelet has noticed that its plugins are gone."""
        task = asyncio.create_task(host.run())
        try:
            yield
        finally:
            host.stop()
            await asyncio.wait_for(task, 60)
        if self.kubelet is not None and self.kubelet.running:
            await self.kubelet.wait_for(self.kubelet.settled)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture(params=[pytest.param("1.36", marks=pytest.mark.slow), "1.37"])
async def kubelet(request: pytest.FixtureRequest, rig: Rig) -> AsyncIterator[KubeletSimulator]:
    simulator = rig.kubelet = KubeletSimulator(
        rig.kubelet_dir, request.param, pod_resources=rig.pod_resources
    )
    await simulator.start()
    yield simulator
    if simulator.running:
        await simulator.stop()
