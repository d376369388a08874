"""podresources: who holds what, and when it is released."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest
from conformance_node import TOY, TOY_LINE, WAIT
from devhost_testing.kubelet import (
    Gate,
    KubeletSimulator,
    Point,
    answer,
    cut,
    disturbances,
    events,
    hang,
    refuse,
)
from status_values import Json, status

from devhost.backend.model import Device
from devhost.host.host import Host

THROTTLED = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")


@pytest.fixture(autouse=True)
def _soon_again(rig) -> None:
    """A kubelet that refuses is asked again soon."""
    rig.hurry(question_failed=(0.05, 1.0))


def shown(host: Host) -> Iterator[Json]:
    for resource in status(host)["resources"]:
        yield from resource["devices"]


def holders(host: Host) -> dict[str, str]:
    """The pod of each device in the status; ``?`` if a pod holds it and is unknown."""
    return {
        device["id"]: device["holder"]["pod"] if device["holder"] else "?"
        for device in shown(host)
        if device["allocated"]
    }


def listed(kubelet: KubeletSimulator) -> dict[str, str]:
    return {device.id: device.health for device in kubelet.devices(TOY)}


@pytest.mark.conformance(60)
async def test_a_vanished_device_leaves_the_list_when_its_pod_has_released_it(rig, kubelet, devices):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(lambda: holders(host) == {"d0": "pod"}, WAIT)
        rig.change("toy", devices(2)[1:])
        await kubelet.wait_for(lambda: listed(kubelet) == {"d0": "Unhealthy", "d1": "Healthy"}, WAIT)
        kubelet.release("pod")
        await kubelet.wait_for(lambda: listed(kubelet) == {"d1": "Healthy"}, WAIT)
        assert kubelet.capacity()[TOY] == 1


@pytest.mark.conformance(60)
async def test_a_released_device_is_no_longer_shown_as_held(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        await kubelet.admit("one", "main", TOY, 1)
        await kubelet.admit("two", "main", TOY, 1)
        await rig.until(lambda: holders(host) == {"d0": "one", "d1": "two"}, WAIT)
        kubelet.release("one")
        await rig.until(lambda: holders(host) == {"d1": "two"}, WAIT)
        assert listed(kubelet) == {"d0": "Healthy", "d1": "Healthy"}


@pytest.mark.conformance(60, 19)
async def test_a_device_held_from_before_the_start_stays_listed_when_it_vanishes(rig, kubelet, devices):
    rig.hurry_allocation(grace=0.2)
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        await kubelet.admit("pod", "main", TOY, 1)
    async with rig.running(allocatable={TOY: 2}) as host:
        await rig.until(lambda: holders(host) == {"d0": "pod"}, WAIT)
        rig.change("toy", [])
        await kubelet.wait_for(lambda: listed(kubelet) == {"d0": "Unhealthy"}, WAIT)
        kubelet.release("pod")
        await kubelet.wait_for(lambda: listed(kubelet) == {}, WAIT)


@pytest.mark.conformance(60)
@pytest.mark.parametrize(
    "fault",
    [THROTTLED, hang, cut, answer(b"\xff\xff\xff")],
    ids=["throttled", "hangs", "cut", "garbage"],
)
async def test_nothing_is_released_while_the_kubelet_does_not_answer(rig, kubelet, devices, fault):
    rig.hurry(list_pods=0.2)
    rig.timing = replace(rig.timing, first_plan=0.3)
    rig.hurry_allocation(grace=0.2)
    kubelet.faults.inject(Point.POD_RESOURCES, fault, times=None)
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(lambda: "asked yet" not in host.pod_resources.condition.reason, WAIT)
        kubelet.release("pod")
        rig.change("toy", devices(2)[1:])
        await kubelet.wait_for(lambda: listed(kubelet)["d0"] == "Unhealthy", WAIT)
        asked = len(kubelet.events.of(events.PodsListed))
        await rig.until(lambda: len(kubelet.events.of(events.PodsListed)) > asked or fault is hang, WAIT)
        assert holders(host) == {"d0": "?"}
        kubelet.faults.clear()
        await rig.until(lambda: status(host)["kubelet"]["podResources"]["known"], WAIT)


@pytest.mark.conformance(60)
async def test_devices_are_served_while_the_podresources_socket_is_missing(rig, kubelet):
    disturbances.lose_pod_resources(kubelet)
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(lambda: "does not exist" in host.pod_resources.condition.reason, WAIT)
        assert holders(host) == {"d0": "?"}
        await kubelet.restart()
        await rig.offers({TOY: 2})
        await rig.until(lambda: holders(host) == {"d0": "pod"}, WAIT)


@pytest.mark.conformance(60)
async def test_a_kubelet_that_has_just_started_and_knows_no_pods_releases_nothing(rig, kubelet, devices):
    rig.hurry_allocation(grace=0.2)
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(lambda: holders(host) == {"d0": "pod"}, WAIT)
        rig.change("toy", devices(2)[1:])
        await kubelet.wait_for(lambda: listed(kubelet)["d0"] == "Unhealthy", WAIT)
        await kubelet.stop()
        kubelet.faults.inject(Point.POD_RESOURCES, answer(b""), times=None)
        await kubelet.start()
        before = len(kubelet.events.of(events.PodsListed))
        await kubelet.wait_for(lambda: len(kubelet.events.of(events.PodsListed)) >= before + 4, WAIT)
        assert holders(host) == {"d0": "pod"}
        await kubelet.wait_for(lambda: listed(kubelet) == {"d0": "Unhealthy", "d1": "Healthy"}, WAIT)
        kubelet.faults.clear()
        kubelet.release("pod")
        asked = len(kubelet.events.of(events.PodsListed))
        await kubelet.wait_for(lambda: len(kubelet.events.of(events.PodsListed)) >= asked + 2, WAIT)
        assert holders(host) == {"d0": "pod"}  # this kubelet never named it: its release takes minutes


@pytest.mark.conformance(60)
async def test_one_list_serves_all_resources_and_none_is_requested_while_nothing_is_held(rig, kubelet):
    rig.hurry(question_new=0.0)  # as with a kubelet that has run for long
    rig.scripts["toy"].devices = [Device(id=f"d{n}", attributes={"index": n}) for n in range(30)]
    rig.write(*(f"name: example.com/r{n}, backend: toy, where: {{index: {n}}}" for n in range(30)))
    async with rig.running() as host:
        await kubelet.wait_for(lambda: sum(kubelet.allocatable().values()) == 30, WAIT)
        await rig.until(lambda: host.pod_resources.condition.last, WAIT)
        asked = len(kubelet.events.of(events.PodsListed))
        assert asked <= 2
        slow = Gate()  # as if the kubelet answered after all of them, however long they take
        kubelet.faults.inject(Point.POD_RESOURCES, slow.wait, times=None)
        await asyncio.gather(*(kubelet.admit(f"pod-{n}", "main", f"example.com/r{n}", 1) for n in range(30)))
        slow.open()
        await rig.until(lambda: len(holders(host)) == 30 and "?" not in holders(host).values(), WAIT)
        assert len(kubelet.events.of(events.PodsListed)) - asked < 30
        for n in range(30):
            kubelet.release(f"pod-{n}")
        await rig.until(lambda: not holders(host), WAIT)
        assert host.pod_resources.due() is None
