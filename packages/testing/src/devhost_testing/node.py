"""A whole node in a test: devhost on a modelled machine, between its configuration and a kubelet.

::

    async def test_a_pod_finds_its_card(tmp_path):
        async with Node(tmp_path, MyCard) as node:
            tree(node.root)
            node.configure("resources: [{name: example.com/card, backend: mycard}]")
            async with node.served({"example.com/card": 2}):
                started = await node.container({"example.com/card": 1})
                assert [one.host_path for one in started.devices] == ["/dev/mycard0"]

The same code as on a node runs in the event loop of the test: it reads the file, scans for devices below
``root`` and serves each resource on a socket, and the kubelet simulator calls it like a kubelet.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

from devhost import config
from devhost.allocation.cdi import spec
from devhost.backend import Backend
from devhost.backend.model import Device
from devhost.config.loader import Loaded
from devhost.discovery import catalog
from devhost.discovery.catalog import Catalog, Installed
from devhost.host.host import Host
from devhost.kubelet.api import api_pb2 as pb
from devhost.planning.settings import DraOptions
from devhost.planning.timing import AllocationTiming, ConfigTiming, DiscoveryTiming, KubeletTiming, Timing
from devhost.runtime.sockets import short_place

from .kubelet import KubeletSimulator, Profile

PATIENCE = 60.0
"""Seconds to wait for something that should happen at once: a busy machine must not cause a failure."""

QUICK = Timing(
    labels_settle=0.05,
    allocation=AllocationTiming(
        list_allocated=0.05, list_held=0.5, list_vanished=0.25, list_forgotten=0.1, release_gap=0.1
    ),
    config=ConfigTiming(settle=0.02),
    discovery=DiscoveryTiming(between_probes=0.1, releases=0.1),
    kubelet=KubeletTiming(
        poll=0.5,
        settle=0.05,
        rivals_gap=0.05,
        rivals_changed=0.1,
        question_gap=0.05,
        question_first=0.1,
        given=0.25,
    ),
)
"""The pauses that spare a kubelet or hardware are short; deadlines are those of a node."""


class Node:
    """A machine with devhost and a kubelet, which runs while the node is entered.

    Plain files represent device nodes, which only root can create; specifications treat them as device nodes.

    Args:
        place: an empty directory for everything but sockets, which are in a temporary directory.
        backends: classes in addition to the installed ones; they replace those with the same name.
        root: the directory to use as ``/``; ``place/root`` if not given.
        profile: the simulated kubelet version, see :class:`KubeletSimulator`.
        timing: how long devhost waits, by default :data:`QUICK`.
        dra: where the kubelet finds DRA drivers, and the access to an API server; ``None`` for no DRA.

    Attributes:
        root: the directory to use as ``/``, which the test fills.
        config: the configuration file.
        cdi: the directory for specifications, set by :meth:`configure`.
        infos: the directory for device-info files, set by :meth:`configure`.
        kubelet: the simulator, with its events and allocations.
        state: the directory for devhost's state, such as verdicts; ``None``, which is the default, for none.
    """

    def __init__(
        self,
        place: Path,
        *backends: type[Backend],
        root: Path | None = None,
        profile: Profile = "1.37",
        timing: Timing = QUICK,
        dra: DraOptions | None = None,
    ) -> None:
        self.root = root or place / "root"
        self.config = place / "devhost.yaml"
        self.cdi = place / "cdi"
        self.infos = place / "devinfo"
        self.state: Path | None = None
        place.mkdir(parents=True, exist_ok=True)
        # not below place, because pytest's directories have the login in their path
        self._sockets = tempfile.TemporaryDirectory(prefix="devhost-node-", dir=short_place())
        sockets = Path(self._sockets.name)
        pods = sockets / "pod-resources"
        self.kubelet = KubeletSimulator(sockets / "kubelet", profile, pod_resources=pods)
        self._backends = {
            kind.name: Installed(kind, "this test", "", (catalog.BACKENDS,)) for kind in backends
        }
        self._timing = timing
        self._dra = dra
        self._released = place / "released"
        self._pods = itertools.count()
        self._host: Host | None = None

    async def __aenter__(self) -> Self:
        await self.kubelet.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.kubelet.running:
                await self.kubelet.stop()
        finally:
            self._sockets.cleanup()

    def configure(self, text: str) -> None:
        """Writes the configuration: ``resources``, ``backends`` and other keys, as YAML.

        ``version``, and the directories for specifications and device-info files, are added.
        A running devhost notices the change within a second; :meth:`reload` waits until it has read the file.
        """
        own = f"cdi: {{directory: {self.cdi}}}\ndeviceInfo: {{directory: {self.infos}}}\n"
        self.config.write_text(f"version: 1\n{own}{text}\n", encoding="utf-8")

    @asynccontextmanager
    async def served(
        self, offers: Mapping[str, int] | None = None, *, only: bool = False
    ) -> AsyncIterator[None]:
        """Runs devhost with the configuration until left; it can be entered again, as for a restart.

        With ``offers``, it first waits for these numbers of healthy devices, as :meth:`offers` does.
        """
        host = Host(
            self.config,
            self._load(),
            self._load,
            self.kubelet.directory,
            self.root,
            pod_resources=self.kubelet.pod_resources,
            timing=self._timing,
            dra=self._dra,
            released=self._released,
            state_dir=self.state,
        )
        running = asyncio.create_task(host.run())
        self._host = host
        try:
            with mock.patch.object(spec, "host_node", _file_or_node):
                if offers is not None:
                    await self.offers(offers, only=only)
                yield
        finally:
            self._host = None
            host.stop()
            await asyncio.wait_for(running, PATIENCE)
        if self.kubelet.running:  # a restart must not find what was true before
            await self.kubelet.wait_for(self.kubelet.settled, PATIENCE)

    async def until(self, condition: Callable[[], object], patience: float = PATIENCE) -> None:
        """Waits for a condition that the kubelet has no event for, checking it repeatedly.

        Raises ``TimeoutError`` if it was not true within ``patience`` seconds.
        """
        async with asyncio.timeout(patience):
            while not condition():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.02)

    async def offers(self, wanted: Mapping[str, int], *, only: bool = False) -> None:
        """Waits until each of these resources has this number of healthy devices.

        With ``only``, other resources must not exist. How the devices are connected is known then, too.
        Raises ``TimeoutError`` if it was not true in time.
        """

        def there() -> bool:
            found = self.kubelet.allocatable()
            right = found == wanted if only else wanted.items() <= found.items()
            return right and all(map(self.kubelet.settled, wanted))

        def linked() -> bool:
            caches = [one.runner.link_cache for one in self.host.scanners.values()]
            return all(cache is None or cache.is_settled for cache in caches)

        await self.kubelet.wait_for(there, PATIENCE)
        await self.until(linked)

    async def container(
        self, wanted: Mapping[str, int], *, keep: bool = False
    ) -> pb.ContainerAllocateResponse:
        """What the container of a new pod gets that requests these numbers of resources.

        The pod has ended when this returns, unless ``keep`` is set: then ``kubelet.release`` ends it,
        by the name ``pod-0``, ``pod-1``, …, counted from the node's first. Raises
        ``UnexpectedAdmissionError`` if the pod was refused.
        """
        pod = f"pod-{next(self._pods)}"
        for resource, count in wanted.items():
            await self.kubelet.admit(pod, "main", resource, count)
        started = await self.kubelet.start_container(pod, "main")
        if not keep:
            self.kubelet.release(pod)
        return started

    def specified(self, names: Collection[str]) -> list[dict[str, Any]]:
        """The ``containerEdits`` of these qualified names in the CDI specifications, in order."""
        found: dict[str, dict[str, Any]] = {}
        for file in self.cdi.glob("*.json"):
            document = json.loads(file.read_text(encoding="utf-8"))
            for device in document["devices"]:
                found[f"{document['kind']}={device['name']}"] = device["containerEdits"]
        return [found[name] for name in names]

    def device_infos(self) -> dict[str, Any]:
        """The device-info files that network plugins read, by their names."""
        files = self.infos.glob("*-device.json")
        return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}

    def devices(self, backend: str) -> Mapping[str, Device]:
        """The devices of a backend, by id; empty before its first scan."""
        discovery = self.host.scanners.get(backend)
        return discovery.devices if discovery else {}

    def look(self, *backends: str) -> None:
        """Makes these backends scan and probe again, as after an event; all of them if none is named."""
        for name, discovery in self.host.scanners.items():
            if name in backends or not backends:
                discovery.recheck()

    async def reload(self) -> Sequence[str]:
        """Makes devhost read the file again, like SIGHUP; returns the errors in it."""
        self.host.reload()
        # this reload, not one that the edit of the file may have started before
        await self.until(lambda: "reload" not in self.host.tasks.named())
        return self.host.configuration.last_reload.complaints

    @property
    def host(self) -> Host:
        """The running devhost."""
        assert self._host is not None, "devhost does not run: use this within `async with node.served()`"
        return self._host

    def _load(self) -> Loaded:
        made: list[Catalog] = []

        def catalog_for(paths: Sequence[Path], wanted: Collection[str]) -> Catalog:
            found = catalog.load(paths, set(wanted) - self._backends.keys())
            made.append(Catalog({**found.installed, **self._backends}, found.refused, found.observers))
            return made[-1]

        settings = config.load(self.config, catalog_for)
        return Loaded(settings, made[-1] if made else Catalog())


_host_node = spec.host_node


def _file_or_node(path: str, root: Path) -> spec.HostNode:
    """A file of a tree, treated as the device node that it represents: another file has another number."""
    file = root / path.lstrip("/")
    if not file.is_file():
        return _host_node(path, root)
    inside = f"/{file.resolve().relative_to(root.resolve())}"
    return spec.HostNode(inside, "c", 240, file.stat().st_ino % (1 << 20), 0o660, 0, 0)
