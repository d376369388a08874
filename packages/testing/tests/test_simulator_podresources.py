"""The podresources socket of the simulated kubelet behaves like that of a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from devhost_testing.api import podresources_pb2_grpc
from devhost_testing.kubelet import KubeletSimulator, Point, answer, disturbances, events, fail, refuse
from devhost_testing.kubelet.podresources import BYSTANDER

from devhost.backend.errors import EnvironmentFailure
from devhost.kubelet.api import podresources_pb2

RESOURCE = "example.com/tiny"


@asynccontextmanager
async def asking(kubelet: KubeletSimulator) -> AsyncIterator[podresources_pb2_grpc.PodResourcesListerStub]:
    options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(f"unix:{kubelet.pod_resources}", options=options) as channel:
        yield podresources_pb2_grpc.PodResourcesListerStub(channel)


async def held(kubelet: KubeletSimulator) -> dict[str, dict[str, list[str]]]:
    """Pod → container → ids, without the pod that holds nothing."""
    async with asking(kubelet) as stub:
        answer = await stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=240)
    pods = {
        pod.name: {
            container.name: [
                i for d in container.devices if d.resource_name == RESOURCE for i in d.device_ids
            ]
            for container in pod.containers
        }
        for pod in answer.pod_resources
    }
    assert pods.pop(BYSTANDER[1]) == {BYSTANDER[2]: []}
    return pods


@pytest.fixture
def pods_dir(plugin_dir: Path) -> Path:
    return plugin_dir / "pods"


@pytest.fixture
async def kubelet(plugin_dir, pods_dir, profile, tiny) -> AsyncIterator[KubeletSimulator]:
    async with KubeletSimulator(plugin_dir, profile, pod_resources=pods_dir) as simulator:
        plugin = await tiny()
        await plugin.register()
        await simulator.wait_for(lambda: simulator.allocatable().get(RESOURCE) == 2)
        yield simulator


def test_podresources_is_served_only_next_to_a_directory_with_the_kubelet_name(plugin_dir):
    beside = KubeletSimulator(plugin_dir / "device-plugins").pod_resources
    assert beside == plugin_dir / "pod-resources" / "kubelet.sock"
    assert KubeletSimulator(plugin_dir).pod_resources is None


async def test_a_list_has_the_devices_of_each_container_until_its_pod_ends(kubelet):
    assert await held(kubelet) == {}
    await kubelet.admit("one", "main", RESOURCE, 1)
    await kubelet.admit("two", "main", RESOURCE, 1)
    assert await held(kubelet) == {"one": {"main": ["a"]}, "two": {"main": ["b"]}}
    kubelet.release("one")
    assert await held(kubelet) == {"two": {"main": ["b"]}}
    listed = kubelet.events.of(events.PodsListed)
    assert [(event.pods, event.reason) for event in listed] == [(1, ""), (3, ""), (2, "")]


async def test_an_init_container_that_ends_is_not_listed_and_a_sidecar_is(kubelet):
    await kubelet.admit("pod", "setup", RESOURCE, 1, role="init")
    assert await held(kubelet) == {"pod": {}}
    await kubelet.admit("pod", "side", RESOURCE, 1, role="sidecar")
    assert await held(kubelet) == {"pod": {"side": ["a"]}}


@pytest.mark.parametrize("crash", [False, True])
async def test_the_devices_of_pods_are_listed_again_after_a_restart(kubelet, pods_dir, crash):
    await kubelet.admit("pod", "setup", RESOURCE, 1, role="init")
    await kubelet.admit("pod", "main", RESOURCE, 1)
    before = (pods_dir / "kubelet.sock").stat()
    await kubelet.stop(crash)
    assert (pods_dir / "kubelet.sock").exists() is crash
    await kubelet.start()
    after = (pods_dir / "kubelet.sock").stat()
    assert (before.st_ino, before.st_ctime_ns) != (after.st_ino, after.st_ctime_ns)
    assert await held(kubelet) == {"pod": {"main": ["a"]}}


async def test_a_list_can_be_refused_cut_garbled_and_emptied(kubelet):
    kubelet.faults.inject(Point.POD_RESOURCES, refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "too often"))
    kubelet.faults.inject(Point.POD_RESOURCES, fail("EOF"))
    kubelet.faults.inject(Point.POD_RESOURCES, answer(b""))
    async with asking(kubelet) as stub:
        for code, text in (
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "too often"),
            (grpc.StatusCode.UNKNOWN, "EOF"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=240)
            assert (error.value.code(), error.value.details()) == (code, text)
        assert not (await stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=240)).pod_resources
    assert await held(kubelet) == {}
    reasons = [event.reason for event in kubelet.events.of(events.PodsListed)]
    assert reasons == ["too often", "EOF", "an answer of 0 bytes", ""]
    disturbances.lose_pod_resources(kubelet)
    disturbances.lose_pod_resources(kubelet)
    assert kubelet.pod_resources is not None
    assert not kubelet.pod_resources.exists()


async def test_a_directory_that_cannot_be_created_is_an_error_and_no_kubelet_starts(plugin_dir, pods_dir):
    pods_dir.touch()
    kubelet = KubeletSimulator(plugin_dir, pod_resources=pods_dir)
    with pytest.raises(EnvironmentFailure, match="cannot create"):
        await kubelet.start()
    assert not kubelet.running
