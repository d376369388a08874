"""Tests on real NVIDIA GPUs. Their results are in the table at the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import combinations
from pathlib import Path

import pytest
from devhost_gpu import Gpu
from devhost_gpu.nvidia.allocation import VISIBLE, VOLUMES
from devhost_gpu.options import GpuOptions
from lab.waiting import until
from realgpu import sees
from realgpu.enclosure import Enclosure

from devhost.discovery.runner import ServiceContext

GPUS = "nvidia.com/gpu"
PROBES = 5
PATIENCE = 60.0
"""Seconds to wait for changes that devhost reports by itself."""

CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm"}
PROGRAM = [sys.executable, "-I", sees.__file__]
NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE``."""

CTK = Path("/usr/bin/nvidia-ctk")


@pytest.fixture
def whole(gpus, instances):
    """The UUIDs of what can be allocated: GPUs, and the instances of those that are split."""
    return instances | {gpu.uuid for gpu in gpus if not gpu.split}


@pytest.fixture
def entry(whole):
    """A resource of just these: a container may see more GPUs in sysfs than it may use."""
    return {
        "name": GPUS,
        "backend": "gpu",
        "where": {"vendor": "nvidia", "uuid": sorted(whole)},
        "whenEmpty": "register",
    }


@asynccontextmanager
async def backend() -> AsyncIterator[Gpu]:
    """The backend in this process, after its first scan; its events are consumed."""
    context = ServiceContext("gpu", Path("/"), ("*",))
    gpu = Gpu(GpuOptions(), context)
    await asyncio.to_thread(gpu.discover)

    async def listen():
        async for _ in gpu.watch():
            pass

    listening = asyncio.create_task(listen())
    try:
        yield gpu
    finally:
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        context.close()


def given(allocation):
    """The nodes that a container gets: paths in it, and on the host."""
    return {spec.container_path: spec.host_path for spec in allocation.response.devices}


def programs(pid):
    """The running processes of devhost that use NVML."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has just ended
            children = (task / "children").read_text().split()
            found += [one for one in children if b"nvml" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return [int(child) for child in found]


def resident(pid):
    """Resident memory in MB (10⁶ bytes)."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def digits(uuid):
    """The hex digits of a UUID."""
    return uuid.partition("-")[2].replace("-", "")


async def test_every_gpu_is_found_as_nvidia_smi_reports_it(node, entry, gpus, instances, results):
    node.write(entry)
    began = time.monotonic()
    found = await node.look()
    took = time.monotonic() - began
    versions = set()
    for gpu in gpus:
        device = found[gpu.uuid]
        attributes = device.attributes
        assert device.health, device.health.reason
        assert (attributes["product"], attributes["index"]) == (gpu.product, gpu.index)
        assert attributes["pciBusID"] == gpu.address
        assert attributes["driverVersion"] == gpu.driver
        assert attributes.get("computeCapability", "") == gpu.compute_capability
        # without the megabytes that the firmware keeps for itself, depending on the version of nvidia-smi
        assert abs(int(attributes.get("memory", 0)) - gpu.memory) <= gpu.memory // 50
        if gpu.serial:
            assert attributes["serial"] == gpu.serial
        versions.add(str(attributes["cudaVersion"]))
    assert {name for name, device in found.items() if device.attributes["kind"] == "mig"} == instances
    models = sorted({f"{gpu.product}, {gpu.memory} MiB, {gpu.compute_capability}" for gpu in gpus})
    results.say("GPUs", f"{len(gpus)} ({'; '.join(models)}), {len(instances)} MIG instances")
    results.say("driver", f"{gpus[0].driver}, CUDA {', '.join(versions)}")
    results.say("discovery", f"all found, attributes as nvidia-smi says, in {took:.1f} s from nothing")


async def test_links_are_the_same_both_ways(whole, results):
    async with backend() as gpu:
        devices = [device for device in gpu.discover() if device.id in whole]
        counts = {}
        for a, b in combinations(devices, 2):
            counts[a.id, b.id] = await asyncio.to_thread(gpu.links, a, b)
            assert counts[a.id, b.id] == await asyncio.to_thread(gpu.links, b, a) >= 0
    many = ", ".join(str(count) for count in sorted(set(counts.values())))
    results.say("NVLinks between two", many or "there is only one")


async def test_probes_find_every_gpu_well(whole, results):
    async with backend() as gpu:
        devices = [device for device in gpu.discover() if device.id in whole]
        times = []
        for _ in range(PROBES):
            began = time.monotonic()
            verdicts = await asyncio.to_thread(gpu.probe, devices)
            times.append(time.monotonic() - began)
            assert {name: health.reason for name, health in verdicts.items() if not health} == {}
    results.say("probe", f"all well, {PROBES} times; the longest took {max(times) * 1000:.0f} ms")


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
async def test_the_container_runtime_gets_the_name_of_the_gpu(node, entry, whole, results, strategy):
    await node.serve(entry, backends={"gpu": {"deviceListStrategy": strategy}})
    await node.shows(GPUS, healthy=len(whole))
    allocation = await node.admit("pod", GPUS)
    (uuid,) = allocation.device_ids
    mounts = {mount.container_path: mount.host_path for mount in allocation.response.mounts}
    envs = dict(allocation.response.envs)
    if strategy == "envvar":
        assert (envs, mounts) == ({VISIBLE: uuid}, {})
    else:
        assert (envs, mounts) == ({VISIBLE: VOLUMES}, {f"{VOLUMES}/{uuid}": "/dev/null"})
    assert given(allocation) == {}
    results.say(f"Allocate, {strategy}", "its UUID")


async def test_the_specification_names_the_gpu_and_files_that_are_there(
    node, entry, whole, results, directory
):
    options = {"deviceListStrategy": "cdi", "cdiDirectories": [str(directory)]}
    await node.serve(entry, backends={"gpu": options})
    if not CTK.exists():
        await node.shows(GPUS, healthy=0, total=len(whole))
        async with asyncio.timeout(PATIENCE):
            while "nvidia-ctk" not in (await node.device(GPUS, min(whole)))["reason"]:
                await asyncio.sleep(0.1)
        results.say("Allocate, cdi", "there is no nvidia-ctk: every GPU is Unhealthy and says so")
        return
    await node.shows(GPUS, healthy=len(whole))
    allocation = await node.admit("pod", GPUS)
    (name,) = (device.name for device in allocation.response.cdi_devices)
    kind, _, device = name.partition("=")
    assert (device,) == allocation.device_ids
    (file,) = directory.glob("*.json")
    specification = json.loads(file.read_text())
    assert specification["kind"] == kind
    named = [one["name"] for one in specification["devices"]]
    assert set(whole) <= set(named)
    mounts = specification["containerEdits"].get("mounts", [])
    assert [mount["hostPath"] for mount in mounts if not Path(mount["hostPath"]).exists()] == []
    results.say("Allocate, cdi", f"a name in a specification by nvidia-ctk, {len(mounts)} mounts")


async def test_a_cuda_program_sees_just_the_gpus_that_were_handed_out(node, entry, whole, results, directory):
    enclosure = Enclosure(directory)
    if reason := enclosure.why_not():
        pytest.skip(reason)
    await node.serve(entry, backends={"gpu": {"deviceListStrategy": "device-specs"}})
    await node.shows(GPUS, healthy=len(whole))
    seen = {}
    for number in range(len(whole)):
        allocation = await node.admit(f"pod{number}", GPUS)
        nodes = given(allocation)
        assert nodes.keys() >= CONTROL
        assert all(Path(host).is_char_device() for host in nodes.values())
        done = await asyncio.to_thread(enclosure.run, nodes, PROGRAM)
        assert done.returncode == 0, done.stderr
        (uuid,) = allocation.device_ids
        seen[uuid] = json.loads(done.stdout)
    assert seen == {uuid: {"gpus": [digits(uuid)]} for uuid in whole}
    results.say("Allocate, device-specs", "its nodes and the control nodes; all exist")
    results.say(
        "CUDA program", f"sees just the one it was given and works on it, {len(whole)} of {len(whole)}"
    )


async def test_a_cuda_program_that_was_given_no_gpu_sees_none(results, directory):
    enclosure = Enclosure(directory)
    if reason := enclosure.why_not():
        pytest.skip(reason)
    nodes = {path: path for path in CONTROL if Path(path).exists()}
    done = await asyncio.to_thread(enclosure.run, nodes, PROGRAM)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) in ({"error": NO_DEVICE, "call": "cuInit"}, {"gpus": []})
    results.say("CUDA program without a GPU", "sees none")


async def test_the_health_loop_runs_in_a_separate_process_and_outlives_it(node, entry, whole, results):
    await node.serve(entry)
    await node.shows(GPUS, healthy=len(whole))
    (program,) = await until("one process uses NVML", lambda: programs(node.pid))
    threads = len(list(Path(f"/proc/{program}/task").iterdir()))
    assert threads > 1  # one answers, others wait for events
    assert not any(path.startswith("/dev/nvidia") for path in node.open_files())
    own, other = resident(node.pid), resident(program)
    results.say("resident memory", f"devhost {own:.1f} MB, the process with NVML {other:.1f} MB")

    since = node.kubelet.events.position
    os.kill(program, signal.SIGKILL)
    await until("another one is there", lambda: set(programs(node.pid)) - {program}, seen=node.said)
    await node.shows(GPUS, healthy=len(whole))
    assert all(len(one.devices) == len(whole) for one in node.lists(GPUS, since))
    (fresh,) = set(programs(node.pid)) - {program}
    assert await node.stop() == 0
    await until("the driver is let go", lambda: not Path(f"/proc/{fresh}").exists())
    results.say("health", f"{threads} threads of the process with NVML; killed, it is started anew")


async def test_a_container_gets_as_many_as_it_asks_for(node, entry, whole, results):
    await node.serve(entry, backends={"gpu": {"deviceListStrategy": "envvar"}})
    await node.shows(GPUS, healthy=len(whole))
    took = []
    for count in range(1, len(whole) + 1):
        began = time.monotonic()
        allocation = await node.admit(f"pod{count}", GPUS, count)
        took.append(time.monotonic() - began)
        assert len(set(allocation.device_ids)) == count
        assert sorted(allocation.response.envs[VISIBLE].split(",")) == sorted(allocation.device_ids)
        node.kubelet.release(f"pod{count}")
    results.say("preference and Allocate", f"1 to {len(whole)}; the longest took {max(took) * 1000:.0f} ms")
