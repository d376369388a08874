"""NVIDIA's GPUs through a whole host: what the kubelet and pods see when a GPU, or NVML, fails."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from devhost_testing.node import QUICK, Node
from gpu_nvidia import DGX, NvidiaMachine, dgx
from gpu_setup import gpu_timed

GPU, FUSE = "nvidia.com/gpu", "example.com/fuse"
SPLIT = {"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1c.3g.40gb": 2}

CONFIG = """
resources:
- name: nvidia.com/gpu
  backend: gpu
  where: {vendor: nvidia, kind: gpu}
- name: nvidia.com/mig-{profile}
  backend: gpu
  where: {vendor: nvidia, kind: mig}
- name: example.com/fuse
  backend: udev
  where: {subsystem: misc}
"""


class Dgx(Node):
    """A DGX with devhost and a kubelet on it."""

    def __init__(self, place: Path, machine: NvidiaMachine) -> None:
        kind = gpu_timed(
            check=0.1, hold=0.3, alone_every=0.2, first_answer=4.0, overtake=0.1, silence=0.3, compare=0.2
        )
        super().__init__(place, kind, root=machine.root, timing=replace(QUICK, first_plan=0.2))
        self.machine = machine
        machine.tree.device("virtual/misc/fuse", "misc", "fuse", "10:229")
        self.configure(CONFIG)

    async def settled(self, gpus: int, **split: int) -> None:
        """Waits until the kubelet can hand out so many GPUs, and instances of each profile."""
        await self.offers({GPU: gpus, FUSE: 1, **(split or SPLIT)}, only=True)


@pytest.fixture
async def node(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Dgx]:
    machine = dgx(tmp_path / "root", nvml_library)
    monkeypatch.setenv("NVML_STUB", os.fspath(machine.nvml.file))
    async with Dgx(tmp_path, machine) as made:
        yield made


async def test_one_gpu_off_the_bus_leaves_the_others_and_returns_after_its_reset(
    node: Dgx,
) -> None:
    lost = node.machine.uuids[DGX[0]]
    async with node.served():
        await node.settled(6)
        node.machine.lose(DGX[0])
        node.machine.nvml.event(lost, 79)
        await node.settled(5)
        # a check may find it before its event does
        await node.until(lambda: "fallen off the bus (Xid 79)" in node.devices("gpu")[lost].health.reason)
        for number in range(5):
            pod = await node.kubelet.admit(f"pod-{number}", "main", GPU, 1)
            assert lost not in pod.device_ids
        node.machine.reset(DGX[0])
        await node.offers({GPU: 6})
        pod = await node.kubelet.admit("last", "main", GPU, 1)
        assert set(pod.device_ids) == {lost}


async def test_nvml_that_hangs_delays_no_pod(node: Dgx) -> None:
    async with node.served():
        await node.settled(6)
        hang = node.machine.nvml.fault("*", hang=60)
        node.look("gpu", "udev")
        for number in range(6):
            await node.kubelet.admit(f"pod-{number}", "main", GPU, 1)
        await node.kubelet.admit("other", "main", FUSE, 1)
        node.machine.nvml.fix(hang)
        await node.settled(6)


async def test_a_driver_that_hangs_from_the_start_hides_no_other_device(
    node: Dgx,
) -> None:
    hang = node.machine.nvml.fault("nvmlInit_v2", hang=60)
    async with node.served({FUSE: 1}):
        await node.kubelet.admit("other", "main", FUSE, 1)
        node.machine.nvml.fix(hang)
        await node.settled(6)


async def test_one_gpu_that_hangs_from_the_start_is_the_only_one_the_kubelet_lacks(node: Dgx) -> None:
    uuid = node.machine.uuids[DGX[2]]
    hang = node.machine.nvml.fault("nvmlDeviceGetUUID", uuid, hang=600)
    async with node.served():
        await node.settled(5)
        assert "NVML" in node.devices("gpu")[uuid].health.reason
        for number in range(5):
            pod = await node.kubelet.admit(f"pod-{number}", "main", GPU, 1)
            assert uuid not in pod.device_ids
        node.machine.nvml.fix(hang)
        await node.settled(6)


async def test_another_partition_changes_only_its_resources(node: Dgx) -> None:
    async with node.served():
        await node.settled(6)
        for uuid in [name for name, mig in node.machine.nvml.migs.items() if "3g.40gb" in str(mig["name"])]:
            del node.machine.nvml.migs[uuid]
        node.machine.mig(DGX[7], 9, 0, "2g.20gb")
        gone = {"nvidia.com/mig-3g.40gb": 0, "nvidia.com/mig-1c.3g.40gb": 0}
        await node.settled(6, **{"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-2g.20gb": 1, **gone})


async def test_a_verdict_on_a_gpu_counts_for_its_mig_instances(node: Dgx, tmp_path: Path) -> None:
    node.state = tmp_path / "state"
    (node.state / "verdicts").mkdir(parents=True)
    uuid = node.machine.uuids[DGX[7]]
    file = node.state / "verdicts/dcgm.json"
    file.write_text(json.dumps({"devices": [uuid], "kind": "unhealthy", "reason": "XID 79", "by": "dcgm"}))
    async with node.served():
        await node.settled(6, **{**dict.fromkeys(SPLIT, 0), "nvidia.com/mig-1g.10gb": 7})
        file.unlink()
        await node.settled(6)


async def test_one_process_uses_nvml_and_none_when_devhost_has_ended(node: Dgx) -> None:
    async with node.served():
        await node.settled(6)
        found: list[list[str]] = []
        await node.until(lambda: found.append(node.machine.users()) or len(found[-1]) == 1)
        (first,) = found[-1]
        node.configure(f"{CONFIG}backends: {{gpu: {{ignoreXids: [63]}}}}")
        await node.reload()
        await node.until(lambda: node.machine.users() not in ([], [first]) and len(node.machine.users()) == 1)
        await node.settled(6)
    await node.until(lambda: not node.machine.users())
