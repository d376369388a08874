"""Allocate, GetPreferredAllocation and PreStartContainer: the kubelet's calls for a pod."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from conformance_node import OTHER, OTHER_LINE, TOY, TOY_LINE, WAIT
from devhost_testing.kubelet import ContainerStartError, UnexpectedAdmissionError
from devhost_testing.kubelet import events as ev
from scraped_series import samples

from devhost.backend import AllocateRequest
from devhost.backend.model import Device, DeviceNode, Edits, Mount, unhealthy
from devhost.kubelet.api import PRE_START_DEADLINE
from devhost.kubelet.api import api_pb2 as pb
from devhost.planning.timing import ALLOCATION as NODE
from devhost.telemetry.metrics import Metrics


def ask(*containers: list[str]) -> pb.AllocateRequest:
    requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    return pb.AllocateRequest(container_requests=requests)


EDITS = Edits(
    nodes=(DeviceNode("/dev/null", "/dev/toy", "rwm"), DeviceNode("/dev/absent", required=False)),
    mounts=(Mount("/etc", "/opt/toy", read_only=True), Mount("/absent", "/x", required=False)),
    env={"TOY": "d0"},
    annotations={"example.com/toy": "d0"},
    cdi_devices=("example.com/toy=d0",),
)


@pytest.mark.conformance(44)
async def test_a_container_gets_exactly_what_its_devices_need(rig, kubelet, dial):
    rig.classes["toy"].allocate = lambda self, request: EDITS
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host, dial(host, TOY) as stub:
        answer = await stub.Allocate(ask(["d0"]), timeout=WAIT)
    assert list(answer.container_responses) == [
        pb.ContainerAllocateResponse(
            envs={"TOY": "d0"},
            mounts=[pb.Mount(container_path="/opt/toy", host_path="/etc", read_only=True)],
            devices=[pb.DeviceSpec(container_path="/dev/toy", host_path="/dev/null", permissions="rwm")],
            annotations={"example.com/toy": "d0"},
            cdi_devices=[pb.CDIDevice(name="example.com/toy=d0")],
        )
    ]


@pytest.mark.conformance(45)
async def test_several_containers_get_as_many_answers_in_their_order(rig, kubelet, dial, devices):
    rig.scripts["toy"].devices = devices(4)
    async with rig.running(TOY_LINE, allocatable={TOY: 4}) as host, dial(host, TOY) as stub:
        answer = await stub.Allocate(ask(["d2"], ["d3", "d1"], ["d0"]), timeout=WAIT)
    assert [response.envs["DEVICES"] for response in answer.container_responses] == ["d2", "d3,d1", "d0"]


@pytest.mark.conformance(46, 48)
@pytest.mark.field_failure("F13")
@pytest.mark.parametrize(
    ("ids", "code", "text"),
    [
        (["d0", "nobody"], grpc.StatusCode.INVALID_ARGUMENT, "there is no device 'nobody'"),
        (["d0", "d1"], grpc.StatusCode.FAILED_PRECONDITION, "d1 is unhealthy: too hot"),
        ([], grpc.StatusCode.INVALID_ARGUMENT, "the request names no device"),
        (["d0", "d0"], grpc.StatusCode.INVALID_ARGUMENT, "the request names 'd0' more than once"),
    ],
    ids=["unknown", "unhealthy", "none", "twice"],
)
async def test_unusable_ids_fail_before_anything_is_done(rig, kubelet, dial, devices, ids, code, text):
    asked: list[object] = []
    good = devices(2)
    rig.scripts["toy"].devices = [good[0], replace(good[1], health=unhealthy("too hot"))]
    rig.scripts["toy"].on_allocate = asked.append
    async with rig.running(TOY_LINE, allocatable={TOY: 1}) as host:
        async with dial(host, TOY) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stub.Allocate(ask(ids), timeout=WAIT)
            assert (refusal.value.code(), refusal.value.details()) == (code, f"{TOY}: {text}")
            assert asked == []
            assert not any(token in host.services[TOY].inventory.allocations for token in ("d0", "d1"))
            assert len((await stub.Allocate(ask(["d0"]), timeout=WAIT)).container_responses) == 1
        shown = {device.id: device.health for device in kubelet.devices(TOY)}
    assert shown == {"d0": "Healthy", "d1": "Unhealthy"}


@pytest.mark.conformance(47)
async def test_the_same_devices_again_get_the_same_answer(rig, kubelet, dial):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        first = await kubelet.admit("pod", "init", TOY, 2, role="init")
        again = await kubelet.admit("pod", "main", TOY, 2)
        assert set(again.device_ids) == set(first.device_ids)
        async with dial(host, TOY) as stub:
            replayed = await stub.Allocate(ask(list(first.device_ids)), timeout=WAIT)
    assert again.response == first.response == replayed.container_responses[0]


@pytest.mark.conformance(49)
@pytest.mark.field_failure("F13")
async def test_a_missing_path_fails_the_pod_by_its_name_and_makes_only_its_device_unhealthy(
    rig, kubelet, tmp_path
):
    nodes = {name: tmp_path / name for name in ("d0", "d1")}
    for node in nodes.values():
        node.touch()
    rig.scripts["toy"].nodes = {name: str(node) for name, node in nodes.items()}
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        nodes["d1"].unlink()
        with pytest.raises(UnexpectedAdmissionError, match=f"{nodes['d1']} does not exist"):
            await kubelet.admit("pod", "main", TOY, 2)
        await rig.offers({TOY: 1})
        assert kubelet.healthy(TOY) == {"d0"}
        nodes["d1"].touch()
        host.scanners["toy"].request_scan()
        await rig.offers({TOY: 2})


@pytest.mark.conformance(50)
@pytest.mark.field_failure("F12")
async def test_a_hung_allocate_ends_at_its_deadline_and_delays_no_other_call(rig, kubelet, dial, hang):
    assert NODE.allocate <= 10
    rig.hurry_allocation(allocate=3.0)  # the other calls end before that, also on a busy machine
    rig.scripts["toy"].on_allocate = lambda devices: hang.wait()
    rig.write(TOY_LINE, OTHER_LINE)
    running = rig.running(allocatable={TOY: 2, OTHER: 1})
    async with running as host, dial(host, TOY) as stub, dial(host, OTHER) as other:
        stuck = asyncio.ensure_future(stub.Allocate(ask(["d0"])))
        await stub.GetDevicePluginOptions(pb.Empty(), timeout=WAIT)
        await other.Allocate(ask(["d0"]), timeout=WAIT)
        assert not stuck.done()
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await stuck
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.conformance(51)
async def test_the_answer_for_a_device_is_the_same_after_devhost_restarts(rig, kubelet, dial):
    rig.classes["toy"].allocate = lambda self, request: EDITS
    rig.write(TOY_LINE)
    answers = []
    for _ in range(2):
        async with rig.running(allocatable={TOY: 2}) as host, dial(host, TOY) as stub:
            answers.append(await stub.Allocate(ask(["d0"]), timeout=WAIT))
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 0}, WAIT)
        rig.scripts["toy"].devices.reverse()
    assert answers[0] == answers[1]


def prefer(available: list[str], must: list[str], size: int) -> pb.PreferredAllocationRequest:
    request = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    return pb.PreferredAllocationRequest(container_requests=[request])


ALL = [f"d{n}" for n in range(8)]  # even ones on NUMA node 0, odd ones on node 1


@pytest.mark.conformance(53)
@pytest.mark.parametrize("order", [1, -1], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("available", "must", "size"),
    [(ALL, [], 1), (ALL, [], 4), (ALL, ["d3"], 3), (ALL[:5], ["d0", "d1"], 4), (ALL, [], 8), (["d6"], [], 1)],
)
async def test_a_preference_is_complete_and_uses_as_few_numa_nodes_as_possible(
    rig, kubelet, dial, devices, available, must, size, order
):
    rig.scripts["toy"].devices = devices(8)
    async with rig.running(TOY_LINE, allocatable={TOY: 8}) as host, dial(host, TOY) as stub:
        first, second = [
            (await stub.GetPreferredAllocation(prefer(offer, must, size), timeout=WAIT))
            for offer in (available[::order], available[::-order])
        ]
    (answer,) = first.container_responses
    chosen = list(answer.deviceIDs)
    assert sorted(chosen) == sorted(second.container_responses[0].deviceIDs)
    assert set(must) <= set(chosen) <= set(available)
    assert len(chosen) == len(set(chosen)) == size
    nodes = {int(name[1:]) % 2 for name in chosen}
    least = 1 if size <= 4 and len({int(name[1:]) % 2 for name in must}) < 2 else 2
    assert len(nodes) == least


@pytest.mark.conformance(54)
@pytest.mark.field_failure("F13")
@pytest.mark.parametrize(
    ("available", "must", "size", "chosen"),
    [
        (["d0", "d1"], [], 0, []),
        (["d0", "d1"], [], 5, ["d0", "d1"]),
        (["d0"], ["d1"], 1, ["d0"]),
        (["d0"], ["nobody"], 1, ["d0"]),
        (["nobody"], [], 1, []),
        ([], [], 1, []),
        (["d0", "d1"], [], -1, []),
    ],
)
async def test_a_preference_that_cannot_be_met_gets_the_best_choice_and_no_error(
    rig, kubelet, dial, available, must, size, chosen
):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host, dial(host, TOY) as stub:
        answer = await stub.GetPreferredAllocation(prefer(available, must, size), timeout=WAIT)
    assert [sorted(response.deviceIDs) for response in answer.container_responses] == [chosen]


@pytest.mark.conformance(54)
@pytest.mark.field_failure("F13")
async def test_a_bug_in_the_choice_leaves_the_choice_to_the_kubelet(rig, kubelet):
    def broken(*_: object, **__: object) -> list[str]:
        raise ZeroDivisionError

    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        host.services[TOY].allocator.prefer = broken
        assert len((await kubelet.admit("pod", "main", TOY, 1)).device_ids) == 1
    (asked,) = kubelet.events.of(ev.PreferenceAsked)
    assert asked.answer == ()


@pytest.mark.conformance(55, 56)
async def test_a_method_that_was_not_requested_is_never_called_but_answers(rig, kubelet, dial):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        await kubelet.admit("pod", "main", TOY, 1)
        await kubelet.start_container("pod", "main")
        assert not kubelet.events.of(ev.PreStarted)
        async with dial(host, TOY) as stub:
            request = pb.PreStartContainerRequest(devices_ids=["d0"])
            assert await stub.PreStartContainer(request, timeout=WAIT) == pb.PreStartContainerResponse()


@pytest.mark.conformance(56)
async def test_each_container_start_prepares_again_and_a_failure_may_be_retried(rig, kubelet):
    prepared: list[list[str]] = []

    def prepare(self, request: AllocateRequest) -> None:
        prepared.append([device.id for device in request.devices])
        if len(prepared) == 1:
            raise OSError("the reset did not finish")

    assert NODE.prepare < PRE_START_DEADLINE
    rig.classes["toy"].prepare = prepare
    rig.write(TOY_LINE)
    metrics = Metrics()
    async with rig.running(allocatable={TOY: 2}, metrics=metrics):
        held = list((await kubelet.admit("pod", "main", TOY, 1)).device_ids)
        with pytest.raises(
            ContainerStartError, match="backend toy failed: OSError: the reset did not finish"
        ):
            await kubelet.start_container("pod", "main")
        await kubelet.start_container("pod", "main")
        await kubelet.start_container("pod", "main")
        counted = {
            (sample.name, sample.labels.get("reason")): sample.value
            for sample in samples(metrics)
            if sample.name.startswith(("devhost_prepare_", "devhost_alloc")) and sample.value
        }
    assert prepared == [held, held, held]
    assert counted["devhost_prepare_failures_total", "error"] == 1
    assert counted["devhost_prepare_seconds_count", None] == 3
    assert counted["devhost_allocate_seconds_count", None] == 1
    assert not any(name == "devhost_allocation_failures_total" for name, _ in counted)


@pytest.mark.conformance(57)
async def test_a_hundred_allocations_at_once_get_their_own_devices(rig, kubelet, dial):
    rig.scripts["toy"].devices = [
        Device(id=f"r{n % 20}-d{n}", attributes={"model": f"m{n % 20}", "index": n}) for n in range(100)
    ]
    async with rig.running("name: 'example.com/{model}', backend: toy") as host:
        await kubelet.wait_for(lambda: sum(kubelet.allocatable().values()) == 100, WAIT)

        async def allocate(device: Device) -> tuple[str, str]:
            async with dial(host, f"example.com/{device.attributes['model']}") as stub:
                answer = await stub.Allocate(ask([device.id]), timeout=WAIT)
            return device.id, answer.container_responses[0].envs["DEVICES"]

        got = await asyncio.gather(*map(allocate, rig.scripts["toy"].devices))
    assert len(got) == 100
    assert all(asked == answered for asked, answered in got)
