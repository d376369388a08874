"""A kubelet that lost its checkpoint allocates what running containers hold; devhost prevents it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from devhost_testing.kubelet import UnexpectedAdmissionError
from kit.allocator import allocated
from status_values import rows, status

from devhost.allocation.allocator import UnhealthyDevice
from devhost.backend import Device
from devhost.planning.tokens import stand_in

TOY = "example.com/toy"

POLICIES = ["topology", "pack", "spread", "distinct"]


def devices(count: int) -> list[Device]:
    return [Device(f"d{n}", {"model": "x100", "index": n}, numa_nodes=(n % 2,)) for n in range(count)]


def listed(kubelet) -> dict[str, bool]:
    """Id and health of each device in the kubelet's list."""
    return {device.id: device.health == "Healthy" for device in kubelet.devices(TOY)}


async def held_then_forgotten(rig, kubelet, host, pod: str = "train") -> str:
    """A pod gets a device, the kubelet names it, and loses its checkpoint; returns the token."""
    (token,) = (await kubelet.admit(pod, "main", TOY, 1)).device_ids
    await rig.until(lambda: rows(host)[token]["holder"])
    await kubelet.restart(forget=True)
    await kubelet.wait_for(lambda: listed(kubelet).get(token) is False)
    return token


@pytest.mark.parametrize("prefer", POLICIES)
async def test_new_pods_get_the_held_device_only_after_its_pod_has_ended(rig, kubelet, prefer):
    rig.scripts["toy"].devices = devices(3)
    async with rig.running(f"name: {TOY}, backend: toy, prefer: {prefer}", allocatable={TOY: 3}) as host:
        token = await held_then_forgotten(rig, kubelet, host)
        assert kubelet.allocatable() == {TOY: 3}, "the scheduler goes on subtracting the pod's request"
        got = [(await kubelet.admit(f"new-{n}", "main", TOY, 1)).device_ids for n in range(2)]
        assert {token, *(one for (one,) in got)} == {"d0", "d1", "d2"}
        with pytest.raises(UnexpectedAdmissionError, match="held by a pod, which the kubelet no"):
            await kubelet.admit("early", "main", TOY, 1)
        kubelet.release("train")
        third = await kubelet.admit("new-2", "main", TOY, 1)
        assert third.device_ids == (stand_in(token),)
        assert dict(third.response.envs) == {"DEVICES": token}
        await rig.until(lambda: (rows(host)[stand_in(token)]["holder"] or {}).get("pod") == "new-2")
        kubelet.release("new-2")
        await kubelet.wait_for(lambda: listed(kubelet) == dict.fromkeys(["d0", "d1", "d2"], True))


async def test_a_forgotten_allocation_is_reported_until_its_container_ends(rig, kubelet, caplog):
    caplog.set_level("INFO", logger="devhost")
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 2}) as host:
        token = await held_then_forgotten(rig, kubelet, host)
        reason = "held by a pod, which the kubelet no longer knows"
        assert (rows(host)[token]["health"], rows(host)[token]["reason"]) == ("Unhealthy", reason)
        assert [holder["pod"] for holder in rows(host)[token]["heldBy"]] == ["train"]
        (problem,) = [one for one in status(host)["problems"] if one["kind"] == "allocation"]
        assert (problem["subject"], problem["reason"]) == (f"{TOY} {token}", reason)
        assert [holder["pod"] for holder in problem["heldBy"]] == ["train"]
        assert "the kubelet has forgotten an allocation" in caplog.text
        kubelet.release("train")
        await kubelet.wait_for(lambda: listed(kubelet) == {"d0": True, "d1": True})
        assert not [one for one in status(host)["problems"] if one["kind"] == "allocation"]
        await rig.until(lambda: "a forgotten allocation has ended" in caplog.text)


async def test_a_forgotten_share_does_not_affect_other_shares_of_its_device(rig, kubelet):
    rig.write(f"name: {TOY}, backend: toy, share: {{replicas: 2}}")
    async with rig.running(allocatable={TOY: 4}) as host:
        token = await held_then_forgotten(rig, kubelet, host)
        assert {name for name, healthy in listed(kubelet).items() if not healthy} == {token}
        taken = (await kubelet.admit("new", "main", TOY, 3)).device_ids
        assert sorted([*taken, token]) == ["d0::0", "d0::1", "d1::0", "d1::1"]


async def test_a_replacement_token_keeps_its_device_after_devhost_restarts(rig, kubelet):
    rig.scripts["toy"].devices = devices(1)
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 1}) as host:
        token = await held_then_forgotten(rig, kubelet, host)
        kubelet.release("train")
        got = (await kubelet.admit("next", "main", TOY, 1)).device_ids
        assert got == (stand_in(token),)
        reason = f"held by a pod as {stand_in(token)}"
        await rig.until(lambda: rows(host)[token]["reason"] == reason)
        await rig.until(lambda: [one["pod"] for one in rows(host)[token].get("heldBy", ())] == ["next"])
    async with rig.running() as host:
        await kubelet.wait_for(lambda: listed(kubelet) == {token: False, stand_in(token): True})
        kubelet.release("next")
        await kubelet.wait_for(lambda: listed(kubelet) == {token: True})


async def test_a_replacement_token_that_the_kubelet_forgets_too_is_free_once_its_pod_has_ended(rig, kubelet):
    rig.scripts["toy"].devices = devices(1)
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 1}) as host:
        token = await held_then_forgotten(rig, kubelet, host)
        second = stand_in(token)
        kubelet.release("train")
        assert (await kubelet.admit("next", "main", TOY, 1)).device_ids == (second,)
        await rig.until(lambda: (rows(host)[second]["holder"] or {}).get("pod") == "next")
        await kubelet.restart(forget=True)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1})
        with pytest.raises(UnexpectedAdmissionError, match="held by a pod, which the kubelet no"):
            await kubelet.admit("early", "main", TOY, 1)
        kubelet.release("next")
        last = await kubelet.admit("last", "main", TOY, 1)
        assert dict(last.response.envs) == {"DEVICES": token}


async def test_a_kubelet_with_its_checkpoint_is_offered_everything_as_before(rig, kubelet):
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 2}) as host:
        (token,) = (await kubelet.admit("train", "main", TOY, 1)).device_ids
        await rig.until(lambda: rows(host)[token]["holder"])
        await kubelet.restart()
        asked = host.pod_resources.condition.last
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
        await rig.until(lambda: host.pod_resources.condition.last != asked)
        assert listed(kubelet) == {"d0": True, "d1": True}
        assert not [one for one in status(host)["problems"] if one["kind"] == "allocation"]
        with pytest.raises(UnexpectedAdmissionError):
            await kubelet.admit("both", "main", TOY, 2)


async def test_a_preference_avoids_devices_that_containers_hold(rig, kubelet):
    """This does not depend on why the kubelet offers it."""
    rig.scripts["toy"].devices = devices(4)
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 4}) as host:
        (token,) = (await kubelet.admit("train", "main", TOY, 1)).device_ids
        await rig.until(lambda: rows(host)[token]["holder"])
        allocator = host.services[TOY].allocator
        every = ["d0", "d1", "d2", "d3"]
        assert token not in await allocator.prefer(every, [], 3)
        assert set(await allocator.prefer(every, [], 4)) == set(every)
        assert token in await allocator.prefer(every, [token], 1), "an init container's device is used again"


@pytest.mark.parametrize("plan_piece", [60.0, 0.0], ids=["plan at once", "plan in pieces"])
async def test_allocate_asks_the_kubelet_even_without_a_preference(rig, kubelet, plan_piece):
    """A kubelet that aligns devices to NUMA nodes may choose without a preference, and before any list."""
    rig.timing = replace(rig.timing, plan_piece=plan_piece)
    rig.scripts["toy"].devices = devices(1)
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 1}) as host:
        (token,) = (await kubelet.admit("train", "main", TOY, 1)).device_ids
        await rig.until(lambda: rows(host)[token]["holder"])
        await kubelet.restart(forget=True)
        with pytest.raises(UnhealthyDevice, match="which the kubelet no longer knows"):
            await allocated(host.services[TOY].allocator, [token])
        await kubelet.wait_for(lambda: listed(kubelet).get(stand_in(token)))
        with pytest.raises(UnhealthyDevice, match=f"it replaces {token}: held by a pod, which") as error:
            await allocated(host.services[TOY].allocator, [stand_in(token)])
        assert [str(holder) for holder in error.value.held_by] == ["default/train/main"]
        kubelet.release("train")
        granted = await allocated(host.services[TOY].allocator, [stand_in(token)])
        assert granted.edits.env == {"DEVICES": token}
        with pytest.raises(UnhealthyDevice, match=f"not named yet as {stand_in(token)}"):
            await allocated(host.services[TOY].allocator, [token])


async def test_a_replacement_token_that_was_chosen_before_it_left_the_list_keeps_its_device(rig, kubelet):
    """The pod that held the device ends, and the kubelet has not received the new list yet."""
    rig.scripts["toy"].devices = devices(1)
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 1}) as host:
        token = await held_then_forgotten(rig, kubelet, host)
        kubelet.release("train")
        await kubelet.wait_for(lambda: listed(kubelet) == {token: True})
        granted = await allocated(host.services[TOY].allocator, [stand_in(token)])
        assert granted.edits.env == {"DEVICES": token}
        assert (
            rows(host)[token]["reason"]
            == f"held by a container that the kubelet has not named yet as {stand_in(token)}"
        )
        with pytest.raises(UnexpectedAdmissionError):
            await kubelet.admit("other", "main", TOY, 2)
        with pytest.raises(UnhealthyDevice):
            await allocated(host.services[TOY].allocator, [token])
