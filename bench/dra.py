"""Dynamic Resource Allocation: memory, slices and prepared claims, beside a simulated API server."""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from devhost_testing.kubelet.wire import PluginConnection

from devhost.kubelet.api import RECEIVE_LIMIT

from . import measures
from .measure import Measure, Result, percentile
from .process import Running, devhost, resource, synthetic, workplace

CHANGES = 12
APART = 6.0
"""Seconds between two changes: devhost waits for 5 between two rounds of writes."""

WARM_UP = 50
CALLS = 300
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
REST = 0.02
"""Seconds after a claim was released, so that the plan that follows is not measured."""

MANY = 10_000
PATIENCE = 120.0

sys.path.append(str(Path(__file__).parents[1] / "tests"))
dra_node: Any = importlib.import_module("kit.dra")


@asynccontextmanager
async def driver(
    *, resources: int, devices: int, plugin: bool = False, terms: Sequence[str] = (), parts: int = 0
) -> AsyncIterator[tuple[Any, Any]]:
    """A cluster, and a function that runs devhost there with ``resources`` resources that DRA serves.

    Args:
        plugin: whether the last resource is served by the device plugin instead.
        terms: further keys of the other entries.
        parts: how many parts each of their devices has.

    The files of claims are in memory, as in ``/var/run`` on a node.
    """
    with tempfile.TemporaryDirectory(prefix="devhost-bench-", dir="/dev/shm") as memory_directory:
        async with _driver(memory_directory, resources, devices, plugin, terms, parts) as found:
            yield found


@asynccontextmanager
async def _driver(
    cdi: str, resources: int, devices: int, plugin: bool, terms: Sequence[str], parts: int
) -> AsyncIterator[tuple[Any, Any]]:
    async with workplace() as (directory, kubelet):
        cluster = dra_node.Cluster(directory)
        config = synthetic(directory, resources=resources, devices=devices)
        config = config.replace("fresh: false", f"fresh: false, lasting: false, parts: {parts}")
        lines = config.splitlines()
        served = [number for number, line in enumerate(lines) if line.startswith("  - name: ")]
        for number in reversed(served[:-1] if plugin else served):
            lines[number + 1 : number + 1] = ["    serve: dra", *(f"    {one}" for one in terms)]
        lines[1:1] = [f"dra: {{driver: {dra_node.DRIVER}}}", f"cdi: {{directory: {cdi}}}"]
        options = cluster.options
        words = [
            *("--plugins-registry", str(options.plugins_registry), "--plugins-dir", str(options.plugins_dir)),
            *("--node-name", dra_node.NODE, "--kubeconfig", str(options.kubeconfig)),
            *("--listen", "127.0.0.1:0"),
        ]
        async with cluster:
            yield cluster, lambda: devhost(directory, kubelet, "\n".join(lines) + "\n", *words)


def published(cluster: Any) -> int:
    """The number of devices in slices."""
    return sum(len(one.get("devices", ())) for one in cluster.slices())


async def until_published(cluster: Any, count: int) -> float:
    """The monotonic time at which slices have so many devices.

    Raises:
        TimeoutError: they never have.
    """
    async with asyncio.timeout(PATIENCE):
        while published(cluster) != count:  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.02)
    return time.monotonic()


async def memory() -> AsyncIterator[Result]:
    """Resident memory after slices were published and claims prepared."""
    async with driver(resources=10, devices=10) as (cluster, run), run() as running:
        await until_published(cluster, 100)
        await cluster.register()
        for number in range(10):
            claim = cluster.allocate(f"claim-{number}", cluster.name_of(f"synthetic-{number:05}"))
            assert not (await cluster.prepare(claim))[claim.uid].error
        for _ in range(3):
            await running.scrape()
            await asyncio.sleep(5.0)
        yield Result(measures.MEMORY_DRA, (running.resident(),))


async def slices() -> AsyncIterator[Result]:
    """Many devices are published; a restart writes nothing."""
    async with driver(resources=1, devices=MANY) as (cluster, run):
        async with run() as running:
            shown = await until_published(cluster, MANY)
            yield Result(measures.PUBLISHED, (shown - running.began,), note=f"{len(cluster.slices())} slices")
            await asyncio.sleep(3.0)
        before = len(cluster.server.writes)
        async with run():
            await asyncio.sleep(20.0)
        yield Result(measures.WRITES_AGAIN, (float(len(cluster.server.writes) - before),))


async def capacity() -> AsyncIterator[Result]:
    """Many devices that claims share by amount are published."""
    share = "share: {capacity: {memory: {total: 80Gi, min: 1Gi}, cores: {total: 100, min: 1}}, limit: none}"
    async with driver(resources=1, devices=MANY, terms=[share]) as (cluster, run), run() as running:
        shown = await until_published(cluster, MANY)
        yield Result(
            measures.SHARED_PUBLISHED, (shown - running.began,), note=f"{len(cluster.slices())} slices"
        )


async def changes() -> AsyncIterator[Result]:
    """From a device's new health to its taint at the API server."""
    async with driver(resources=10, devices=10) as (cluster, run), run() as running:
        await until_published(cluster, 100)
        samples = []
        for number in range(CHANGES):
            await asyncio.sleep(APART)
            samples.append(await _change(cluster, running, number))
        yield Result(measures.CHANGE_TO_SLICE, tuple(samples))


async def _change(cluster: Any, running: Running, number: int) -> float:
    name = f"synthetic-{number:05}"

    def tainted() -> bool:
        devices = (device for one in cluster.slices() for device in one.get("devices", ()))
        return any(
            device.get("taints") for device in devices if device["attributes"]["id"] == {"string": name}
        )

    began = time.monotonic()
    running.tell(f"unhealthy {number}")
    async with asyncio.timeout(PATIENCE):
        while not tainted():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.01)
    return time.monotonic() - began


@asynccontextmanager
async def _reader(cluster: Any) -> AsyncIterator[Callable[[str], Awaitable[float]]]:
    """The milliseconds in which another process reads a claim, as devhost does within Prepare."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.claim_reader", str(cluster.options.kubeconfig)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    words, answers = process.stdin, process.stdout

    async def read_one(name: str) -> float:
        words.write(f"{CLAIMS}/{name}\n".encode())
        return float(await answers.readline())

    try:
        yield read_one
    finally:
        words.close()
        await process.wait()


async def prepare() -> AsyncIterator[Result]:
    """Prepare of one claim with one device, and Allocate of one device, in turn."""
    prepared, read, allocated = await _in_turn(10)
    yield Result(measures.PREPARE, tuple(prepared), note=f"of it {percentile(read, 50):.2f} for the claim")
    yield _ratio(measures.PREPARE_RATIO, prepared, read, allocated)


async def prepare_part() -> AsyncIterator[Result]:
    """The same with a device that is one of seven parts, of eight devices with shared counters."""
    found = await _in_turn(64, terms=["dra: {counters: true}"], parts=7, device="synthetic-00002")
    yield _ratio(measures.PREPARE_PART, *found)


def _ratio(
    measure: Measure, prepared: Sequence[float], read: Sequence[float], allocated: Sequence[float]
) -> Result:
    middle = [percentile(samples, 50) for samples in (prepared, read, allocated)]
    return Result(measure, ((middle[0] - middle[1]) / middle[2],), note=f"Allocate p50 {middle[2]:.2f} ms")


async def _in_turn(
    devices: int, device: str = "synthetic-00000", **more: Any
) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """The milliseconds of Prepare, of reading the claim alone, and of Allocate."""
    async with driver(resources=2, devices=devices, plugin=True, **more) as (cluster, run), run() as running:
        await until_published(cluster, devices)
        await running.kubelet.all_listed(1, devices)
        path = running.kubelet.resources[resource(1)].socket
        real = PluginConnection(resource(1), path, path, RECEIVE_LIMIT)
        await real.dial(10.0)
        place = cluster.name_of(device)
        prepared, read, allocated = [], [], []
        async with cluster.channel() as calls, _reader(cluster) as read_one:
            for number in range(WARM_UP + CALLS):
                claim = cluster.allocate(f"claim-{number}", place)
                began = time.perf_counter()
                answer = await calls.prepare(claim)
                prepared.append((time.perf_counter() - began) * 1e3)
                assert not answer[claim.uid].error
                await asyncio.sleep(REST)
                read.append(await read_one(claim.name))
                await calls.unprepare(claim)
                cluster.delete_claim(claim.name)
                await asyncio.sleep(REST)
                began = time.perf_counter()
                await real.allocate(["synthetic-00001"])
                allocated.append((time.perf_counter() - began) * 1e3)
        await real.close()
    return prepared[WARM_UP:], read[WARM_UP:], allocated[WARM_UP:]
