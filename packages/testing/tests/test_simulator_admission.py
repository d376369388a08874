"""The allocation of devices to pods: selection, calls, errors, and stored answers."""

from __future__ import annotations

import asyncio

import pytest
from devhost_testing.kubelet import (
    ContainerStartError,
    KubeletSimulator,
    Point,
    UnexpectedAdmissionError,
    delay,
    events,
    fail,
    hang,
)
from devhost_testing.kubelet.admission import merge

from devhost.kubelet.api import api_pb2

RESOURCE = "example.com/tiny"


@pytest.fixture
async def plugin(kubelet, tiny, make_devices):
    """A registered plugin with devices a to d, a and b on NUMA node 0, c on 1, d on none."""
    made = await tiny()
    made.options = api_pb2.DevicePluginOptions(
        pre_start_required=True, get_preferred_allocation_available=True
    )
    made.devices = [*make_devices("a", "b", numa=0), *make_devices("c", numa=1), *make_devices("d")]
    await made.register()
    await kubelet.wait_for(lambda: kubelet.healthy(RESOURCE))
    return made


async def rejection(kubelet, count=1, pod="pod", **options) -> str:
    with pytest.raises(UnexpectedAdmissionError) as caught:
        await kubelet.admit(pod, "main", RESOURCE, count, **options)
    return caught.value.reason


async def test_allocate_carries_one_container_request_with_all_ids(kubelet, plugin):
    allocation = await kubelet.admit("pod", "main", RESOURCE, 3)
    (request,) = plugin.named("allocate")
    assert [list(c.devices_ids) for c in request.container_requests] == [["a", "b", "c"]]
    assert allocation.device_ids == ("a", "b", "c")
    assert allocation.response.envs["DEVICES"] == "a,b,c"
    assert kubelet.in_use(RESOURCE) == {"a", "b", "c"}


async def test_devices_in_use_stay_allocatable_and_are_not_allocated_twice(kubelet, plugin):
    await kubelet.admit("one", "main", RESOURCE, 2)
    second = await kubelet.admit("two", "main", RESOURCE, 2)
    assert second.device_ids == ("c", "d")
    assert kubelet.allocatable() == {RESOURCE: 4}
    assert await rejection(kubelet, 1) == (
        f"requested number of devices unavailable for {RESOURCE}. Requested: 1, Available: 0"
    )


async def test_a_released_pod_frees_its_devices_without_a_call(kubelet, plugin):
    await kubelet.admit("one", "main", RESOURCE, 4)
    calls = len(plugin.calls)
    assert kubelet.release("one")
    assert not kubelet.release("one")
    assert len(plugin.calls) == calls
    assert (await kubelet.admit("two", "main", RESOURCE, 4)).device_ids == ("a", "b", "c", "d")


async def test_an_unknown_resource_is_refused(kubelet):
    assert await rejection(kubelet) == f"cannot allocate unregistered device {RESOURCE}"


async def test_without_a_healthy_device_the_pod_is_rejected(kubelet, plugin):
    plugin.end_streams()
    await kubelet.wait_for(lambda: not kubelet.healthy(RESOURCE))
    assert (
        await rejection(kubelet)
        == f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"
    )


async def test_an_unhealthy_device_is_never_chosen(kubelet, plugin, make_devices):
    plugin.push(*make_devices("a", health="Unhealthy"), *make_devices("b"))
    await kubelet.wait_for(lambda: kubelet.healthy(RESOURCE) == {"b"})
    assert (await kubelet.admit("pod", "main", RESOURCE, 1)).device_ids == ("b",)


async def test_admitting_a_container_again_answers_from_the_cache(kubelet, plugin):
    first = await kubelet.admit("pod", "main", RESOURCE, 2)
    assert await kubelet.admit("pod", "main", RESOURCE, 2) == first
    assert len(plugin.named("allocate")) == 1


async def test_a_changed_request_is_refused(kubelet, plugin):
    await kubelet.admit("pod", "main", RESOURCE, 2)
    assert await rejection(kubelet, 3) == (
        f'pod "pod" container "main" changed request for resource "{RESOURCE}" from 2 to 3'
    )


async def test_a_held_device_that_turned_unhealthy_refuses_the_pods_second_admission(
    kubelet, plugin, make_devices
):
    await kubelet.admit("pod", "main", RESOURCE, 1)
    plugin.push(*make_devices("a", health="Unhealthy"), *make_devices("b"))
    await kubelet.wait_for(lambda: kubelet.healthy(RESOURCE) == {"b"})
    assert (await rejection(kubelet, 1)).startswith("previously allocated devices are no longer healthy")


async def test_the_plugins_error_becomes_the_pods_message_and_nothing_is_held(kubelet, plugin):
    plugin.failures["allocate"] = "/dev/x is gone"
    with pytest.raises(UnexpectedAdmissionError) as caught:
        await kubelet.admit("pod", "main", RESOURCE, 1)
    assert str(caught.value) == (
        "Allocate failed due to rpc error: code = FailedPrecondition desc = /dev/x is gone, "
        "which is unexpected"
    )
    assert kubelet.in_use(RESOURCE) == set()
    assert [e.reason for e in kubelet.events.of(events.AdmissionFailed)] == [caught.value.reason]


async def test_an_answer_without_a_container_is_an_error(kubelet, plugin):
    plugin.empty_answer = True
    assert await rejection(kubelet) == "no containers return in allocation response"


async def test_a_hung_allocate_blocks_every_other_admission(kubelet, plugin):
    kubelet.faults.inject(Point.ALLOCATE, hang)
    stuck = asyncio.create_task(kubelet.admit("one", "main", RESOURCE, 1))
    await kubelet.wait_for(lambda: kubelet.events.of(events.AllocateSent))
    behind = asyncio.create_task(kubelet.admit("two", "main", RESOURCE, 1))
    plugin.push(*plugin.devices)
    await kubelet.wait_for(lambda: len(kubelet.events.of(events.ListReceived)) >= 2)
    assert [event.pod for event in kubelet.events.of(events.AllocateSent)] == ["one"]
    stuck.cancel()
    assert (await behind).pod == "two"


async def test_the_end_of_the_kubelet_ends_waiting_admissions(kubelet, plugin):
    kubelet.faults.inject(Point.ALLOCATE, hang)
    stuck = asyncio.create_task(kubelet.admit("one", "main", RESOURCE, 1))
    await kubelet.wait_for(lambda: kubelet.events.of(events.AllocateSent))
    await kubelet.stop()
    with pytest.raises(UnexpectedAdmissionError, match="the kubelet has stopped"):
        await stuck


async def test_faults_delay_and_fail_the_calls_of_an_admission(kubelet, plugin):
    kubelet.faults.inject(Point.ALLOCATE, delay(0.01))
    await kubelet.admit("one", "main", RESOURCE, 1)
    kubelet.faults.inject(Point.PREFERENCE, fail("lost"))
    assert await rejection(kubelet) == "device plugin GetPreferredAllocation rpc failed with err: lost"
    kubelet.faults.inject(Point.PRE_START, fail("late"))
    with pytest.raises(
        ContainerStartError, match="device plugin PreStartContainer rpc failed with err: late"
    ):
        await kubelet.start_container("one", "main")
    await kubelet.start_container("one", "main")


async def test_preference_is_requested_even_without_a_choice_and_followed(kubelet, plugin):
    plugin.preferred = lambda request: ["d", "b"]
    assert (await kubelet.admit("one", "main", RESOURCE, 2)).device_ids == ("b", "d")
    await kubelet.admit("two", "main", RESOURCE, 2)
    first, second = plugin.named("preferred")
    assert list(first.available_deviceIDs) == ["a", "b", "c", "d"]
    assert (list(first.must_include_deviceIDs), first.allocation_size) == ([], 2)
    assert list(second.available_deviceIDs) == ["a", "c"]


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        ([], ("a", "b")),
        (["d"], ("d", "a")),
        (["zz", "c"], ("c", "a")),
        (["d", "c", "b", "a"], ("a", "b")),
    ],
    ids=["empty", "too few", "unknown ids", "too many"],
)
async def test_an_incomplete_or_excessive_preference_is_adjusted(kubelet, plugin, answer, given):
    plugin.preferred = lambda request: answer
    assert (await kubelet.admit("pod", "main", RESOURCE, 2)).device_ids == given


async def test_a_failing_preference_rejects_the_pod_and_holds_nothing(kubelet, plugin):
    plugin.failures["preferred"] = "no idea"
    assert (await rejection(kubelet)).startswith(
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = FailedPrecondition"
    )
    assert kubelet.in_use(RESOURCE) == set()


async def test_without_the_option_preference_and_pre_start_are_never_called(kubelet, tiny):
    plain = await tiny()
    await plain.register()
    await kubelet.wait_for(lambda: kubelet.healthy(RESOURCE))
    await kubelet.admit("pod", "main", RESOURCE, 1)
    await kubelet.start_container("pod", "main")
    assert [name for name, _ in plain.calls] == ["options", "list", "allocate"]


async def test_alignment_offers_only_aligned_devices_while_there_are_more_than_needed(kubelet, plugin):
    await kubelet.admit("pod", "main", RESOURCE, 1, numa_nodes=[0])
    (request,) = plugin.named("preferred")
    assert list(request.available_deviceIDs) == ["a", "b"]


async def test_alignment_takes_all_aligned_devices_first_and_then_others(kubelet, plugin):
    plugin.preferred = lambda request: ["d"]
    allocation = await kubelet.admit("pod", "main", RESOURCE, 3, numa_nodes=[0])
    (request,) = plugin.named("preferred")
    assert list(request.must_include_deviceIDs) == ["a", "b"]
    assert (sorted(request.available_deviceIDs), request.allocation_size) == (["a", "b", "c", "d"], 3)
    assert allocation.device_ids == ("a", "b", "d")


async def test_exactly_met_alignment_requests_no_preference(kubelet, plugin):
    assert (await kubelet.admit("pod", "main", RESOURCE, 2, numa_nodes=[0])).device_ids == ("a", "b")
    assert plugin.named("preferred") == []


async def test_devices_of_an_init_container_are_reused_with_a_new_allocate(kubelet, plugin):
    await kubelet.admit("pod", "init", RESOURCE, 3, role="init")
    app = await kubelet.admit("pod", "app", RESOURCE, 2)
    assert app.device_ids == ("a", "b")
    assert len(plugin.named("allocate")) == 2
    assert len(plugin.named("preferred")) == 1, "reuse alone was enough the second time"
    more = await kubelet.admit("pod", "more", RESOURCE, 2)
    assert more.device_ids == ("c", "d"), "what an app container has is not used again"


async def test_devices_of_a_sidecar_are_not_reused(kubelet, plugin):
    await kubelet.admit("pod", "sidecar", RESOURCE, 2, role="sidecar")
    assert (await kubelet.admit("pod", "app", RESOURCE, 2)).device_ids == ("c", "d")


async def test_each_container_start_calls_pre_start_and_none_calls_allocate(kubelet, plugin):
    await kubelet.admit("pod", "main", RESOURCE, 2)
    first = await kubelet.start_container("pod", "main")
    again = await kubelet.start_container("pod", "main")
    assert plugin.named("prestart") == [["a", "b"], ["a", "b"]]
    assert len(plugin.named("allocate")) == 1
    assert first == again


async def test_a_failed_pre_start_keeps_the_pod_for_a_retry(kubelet, plugin):
    await kubelet.admit("pod", "main", RESOURCE, 1)
    plugin.failures["prestart"] = "busy"
    with pytest.raises(ContainerStartError, match="PreStartContainer rpc failed with err: rpc error"):
        await kubelet.start_container("pod", "main")
    assert kubelet.in_use(RESOURCE) == {"a"}
    del plugin.failures["prestart"]
    await kubelet.start_container("pod", "main")


async def test_an_unknown_container_cannot_be_started(kubelet):
    with pytest.raises(ContainerStartError, match="pod nobody has no container main with devices"):
        await kubelet.start_container("nobody", "main")


async def test_answers_for_two_resources_are_merged_and_the_first_applies(kubelet, plugin, tiny):
    other = await tiny("other.sock", "example.com/other")
    await other.register()
    await kubelet.wait_for(lambda: kubelet.healthy("example.com/other"))
    await kubelet.admit("pod", "main", RESOURCE, 1)
    await kubelet.admit("pod", "main", "example.com/other", 1)
    merged = await kubelet.start_container("pod", "main")
    assert merged.envs["FROM"] == "tiny.sock"
    assert len(merged.devices) == 1


def test_the_first_definition_applies_for_each_kind_of_edit():
    def answer(text: str) -> api_pb2.ContainerAllocateResponse:
        return api_pb2.ContainerAllocateResponse(
            envs={"K": text, text: "1"},
            annotations={"k": text},
            mounts=[api_pb2.Mount(container_path="/m", host_path=text)],
            devices=[api_pb2.DeviceSpec(container_path="/d", host_path=text)],
            cdi_devices=[api_pb2.CDIDevice(name="v/c=d"), api_pb2.CDIDevice(name=f"v/c={text}")],
        )

    merged = merge([answer("x"), answer("y")])
    assert dict(merged.envs) == {"K": "x", "x": "1", "y": "1"}
    assert dict(merged.annotations) == {"k": "x"}
    assert [m.host_path for m in merged.mounts] == ["x"]
    assert [d.host_path for d in merged.devices] == ["x"]
    assert [c.name for c in merged.cdi_devices] == ["v/c=d", "v/c=x", "v/c=y"]


async def test_a_seed_makes_the_choice_random_and_repeatable(plugin_dir, tiny, make_devices):
    chosen = []
    for _ in range(2):
        async with KubeletSimulator(plugin_dir, seed=7, keep_checkpoint=False) as kubelet:
            plugin = await tiny()
            plugin.devices = make_devices(*map(str, range(100)))
            await plugin.register()
            await kubelet.wait_for(lambda kubelet=kubelet: kubelet.healthy(RESOURCE))
            chosen.append((await kubelet.admit("pod", "main", RESOURCE, 5)).device_ids)
            await plugin.stop()
    assert chosen[0] == chosen[1] != tuple("01234")
