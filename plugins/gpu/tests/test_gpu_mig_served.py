"""MIG instances on demand through a whole host: from the slices to the pod that ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from devhost_gpu.environment import Environment, Timings
from gpu_nvidia import DGX, NvidiaMachine
from gpu_setup import gpu_with
from kit.dra import QUICK, DraNode

A = DGX[0]
ENTRY = "{name: example.com/mig, backend: gpu, where: {kind: mig}, serve: dra, dra: {counters: true}}"


class MigNode(DraNode):
    """A node whose GPU is divided on demand."""

    def __init__(self, place: Path, machine: NvidiaMachine) -> None:
        timings = Timings(check=0.1, first_delay=0.1, kept=0.0, first_answer=60.0, instances=30.0)
        super().__init__(place, QUICK, gpu_with(Environment(timings)))
        self.machine = machine
        self.configure("dynamic")

    def configure(self, mig: str) -> None:  # type: ignore[override]
        self.node.configure(
            "dra: {driver: devhost.example.com, metadata: true, status: true}\n"
            f"resources: [{ENTRY}]\nbackends: {{gpu: {{mig: {mig}}}}}"
        )

    def metadata(self) -> dict[str, Any]:
        """The attributes in the only metadata file."""
        (file,) = (self.options.plugins_dir / "devhost.example.com" / "dra-device-metadata").iterdir()
        content = json.loads(file.read_text().splitlines()[0])
        ((device,),) = [one["devices"] for one in content["requests"]]
        return dict(device["attributes"])

    def id(self, label: str) -> str:
        return f"{self.machine.uuids[A].lower()}-{label}"

    def made(self) -> list[tuple[int, int]]:
        found = [one for one in self.machine.nvml.instances() if one["word"] == "gi"]
        return sorted((int(one["start"]), int(one["size"])) for one in found)


@pytest.fixture
async def node(tmp_path: Path, nvidia: NvidiaMachine) -> AsyncIterator[MigNode]:
    nvidia.divisible(A)
    async with MigNode(tmp_path, nvidia) as made:
        yield made


async def test_a_claim_has_its_instance_from_prepare_to_unprepare(node: MigNode) -> None:
    async with node.served():
        await node.node.until(lambda: len(node.published().get("example.com/mig", ())) == 25)
        await node.node.until(lambda: any(one.get("sharedCounters") for one in node.slices()))
        claim = node.allocate("training", node.name_of(node.id("3g40gb-4")), pod="p")
        answer = (await node.prepare(claim))[claim.uid]
        env = [text for edits in node.edits(answer) for text in edits.get("env", ())]
        (mig,) = [one for one in node.machine.nvml.instances() if one["word"] == "mig"]
        assert f"NVIDIA_VISIBLE_DEVICES={mig['uuid']}" in env
        assert node.made() == [(4, 4)]
        other = node.allocate("other", node.name_of(node.id("1g10gb-5")), pod="q")
        refused = await node.refusal(other)
        assert "#memory-slice-5" in refused and node.id("3g40gb-4") in refused
        assert node.made() == [(4, 4)]
        await node.unprepare(claim)
        await node.node.until(lambda: not node.made())
        await node.prepared(other)
        assert node.made() == [(5, 1)]


async def test_metadata_has_the_uuid_of_an_instance_that_slices_do_not_have(node: MigNode) -> None:
    async with node.served():
        await node.node.until(lambda: node.published().get("example.com/mig"))
        claim = node.allocate("training", node.name_of(node.id("3g40gb-4")), pod="p")
        await node.prepared(claim)
        (mig,) = [one for one in node.machine.nvml.instances() if one["word"] == "mig"]
        assert node.metadata()["uuid"] == {"string": mig["uuid"]}
        assert not any(
            "uuid" in one["attributes"] for spec in node.slices() for one in spec.get("devices", ())
        )
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim.name}"

        def states() -> list[str]:
            (stored,) = node.server.stored(path)
            devices = stored["status"].get("devices", ())
            return [one["conditions"][0]["status"] for one in devices]

        await node.node.until(lambda: states() == ["True"])
        before = node.metadata()
    async with node.served():
        await node.node.until(lambda: node.published().get("example.com/mig"))
        await node.node.until(lambda: node.report())
        node.node.look()
        await node.settled()
        assert node.metadata() == before


async def test_an_instance_outlives_a_restart_as_long_as_its_claim(node: MigNode) -> None:
    async with node.served():
        await node.node.until(lambda: node.published().get("example.com/mig"))
        kept = node.allocate("kept", node.name_of(node.id("2g20gb-0")), pod="p")
        gone = node.allocate("gone", node.name_of(node.id("2g20gb-2")), pod="q")
        await node.prepare(kept, gone)
        assert node.made() == [(0, 2), (2, 2)]
    async with node.served():
        await node.unprepare(gone)
        await node.node.until(lambda: node.made() == [(0, 2)])
        await node.prepared(kept)
        await node.settled()
        assert node.made() == [(0, 2)]


async def test_without_the_key_an_instance_is_not_offered_while_its_claim_holds_it(node: MigNode) -> None:
    async with node.served():
        await node.node.until(lambda: node.published().get("example.com/mig"))
        claim = node.allocate("training", node.name_of(node.id("2g20gb-0")), pod="p")
        await node.prepare(claim)
        (mig,) = [one["uuid"] for one in node.machine.nvml.instances() if one["word"] == "mig"]
        theirs = node.machine.nvml.partition(node.machine.uuids[A], "1g.10gb", 4)
        node.configure("static")
        await node.node.reload()
        await node.node.until(lambda: node.published().get("example.com/mig") == {theirs})
        await node.settled()
        assert node.published()["example.com/mig"] == {theirs}
        await node.unprepare(claim)
        node.node.look()
        await node.node.until(lambda: node.published()["example.com/mig"] == {theirs, mig})
        assert node.made() == [(0, 2), (4, 1)]


async def test_an_error_of_the_driver_is_what_the_kubelet_shows(node: MigNode) -> None:
    node.machine.nvml.fault("nvmlGpuInstanceCreateComputeInstance", error=4)
    async with node.served():
        await node.node.until(lambda: node.published().get("example.com/mig"))
        claim = node.allocate("training", node.name_of(node.id("1g10gb-0")), pod="p")
        error = await node.refusal(claim)
        assert error.endswith(
            "cannot create a compute instance in a GPU instance 1g.10gb at memory slice 0: permission denied "
            "(run devhost as root)"
        )
        await node.node.until(lambda: not node.made())  # no half of it stays
