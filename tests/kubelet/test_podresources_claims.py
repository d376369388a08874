"""The claims of pods in the kubelet's list, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from devhost_testing.kubelet import ClaimDevice, KubeletSimulator

from devhost.allocation.allocations import Allocations
from devhost.allocation.leases import ClaimUse, ClaimUseDevice
from devhost.backend.model import Device, Holder
from devhost.kubelet.podresources_poller import PodResources
from devhost.planning.settings import Settings

GPU = "gpu.example.com"
NIC = "nic.example.com"


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[KubeletSimulator]:
    async with KubeletSimulator(tmp_path / "kubelet", pod_resources=tmp_path / "pods") as simulator:
        yield simulator


def client(kubelet: KubeletSimulator) -> PodResources:
    assert kubelet.pod_resources is not None
    return PodResources(kubelet.pod_resources)


async def test_a_claim_is_listed_with_its_containers_and_the_devices_of_every_driver(kubelet) -> None:
    gpu = ClaimDevice(GPU, "node-1", "gpu-0", ("k8s.gpu.example.com/claim=gpu-0",), "share-1")
    nic = ClaimDevice(NIC, "node-1", "eth0")
    kubelet.use_claim("job", "main", "both", [gpu, nic])
    kubelet.use_claim("job", "side", "both", [nic])
    listing = await client(kubelet).list()
    assert listing.claims == {
        ("default", "both"): ClaimUse(
            (Holder("default", "job", "main"), Holder("default", "job", "side")),
            (
                ClaimUseDevice(GPU, "node-1", "gpu-0", "share-1", ("k8s.gpu.example.com/claim=gpu-0",)),
                ClaimUseDevice(NIC, "node-1", "eth0", "", ()),
            ),
        )
    }


async def test_claims_are_kept_apart_by_name(kubelet) -> None:
    kubelet.use_claim("job", "main", "one", [ClaimDevice(GPU, "node-1", "gpu-0")])
    kubelet.use_claim("job", "main", "two", [ClaimDevice(GPU, "node-1", "gpu-1")])
    claims = (await client(kubelet).list()).claims
    assert {name: [one.device for one in use.devices] for (_, name), use in claims.items()} == {
        "one": ["gpu-0"],
        "two": ["gpu-1"],
    }


async def test_a_container_with_claims_only_has_no_devices_of_plugins(kubelet) -> None:
    kubelet.use_claim("job", "main", "one", [ClaimDevice(GPU, "node-1", "gpu-0")])
    listing = await client(kubelet).list()
    assert listing.containers[Holder("default", "job", "main")] is False
    assert listing.holders == {}


async def test_a_claim_leaves_the_list_with_its_pod(kubelet) -> None:
    kubelet.use_claim("job", "main", "one", [ClaimDevice(GPU, "node-1", "gpu-0")])
    assert (await client(kubelet).list()).claims
    assert kubelet.release("job")
    assert (await client(kubelet).list()).claims == {}


async def test_claims_are_listed_after_a_restart_of_the_kubelet(kubelet) -> None:
    kubelet.use_claim("job", "main", "one", [ClaimDevice(GPU, "node-1", "gpu-0")])
    before = (await client(kubelet).list()).claims
    await kubelet.restart(forget=True)
    assert (await client(kubelet).list()).claims == before != {}


async def test_a_device_that_a_listed_claim_names_counts_as_held_by_its_container(kubelet) -> None:
    allocations = Allocations(lambda: 0.0)
    nic = Device("0000:3b:00.0", claims=frozenset({"pci:0000:3b:00.0"}))
    allocations.observe({"nic": {nic.id: nic}}, Settings())
    kubelet.use_claim("job", "main", "one", [ClaimDevice(NIC, "node-1", "0000-3b-00-0")])
    allocations.apply(await client(kubelet).list())
    assert [(one.device, one.holder) for one in allocations.held()] == [
        (nic, Holder("default", "job", "main"))
    ]
