"""An IOMMU group binds pods: all of its functions are offered, and all of them go to one pod."""

from __future__ import annotations

import pytest
from devhost_testing.kubelet import UnexpectedAdmissionError
from kit.allocator import allocated
from status_values import rows

from devhost.allocation.allocator import UnhealthyDevice
from devhost.backend.model import Device, Holder
from devhost.host.shown.problems import problems
from devhost.planning.claims import IN_USE

TOY, OTHER = "example.com/toy", "example.com/other"
GPU_LINE, AUDIO_LINE = "name: example.com/toy, backend: toy", "name: example.com/other, backend: other"
VM = Holder("default", "vm", "main")
NEVER = 3600.0


def function(name: str, group: int) -> Device:
    claims = {f"usb:{name}", f"iommu:{group}", f"node:/dev/vfio/{group}"}
    return Device(name, attributes={"model": "x100"}, claims=frozenset(claims))


@pytest.fixture
def cards(rig):
    """Two cards, each with a GPU and its audio function in one group, as two resources."""
    rig.scripts["toy"].devices = [function("gpu0", 10), function("gpu1", 11)]
    rig.scripts["other"].devices = [function("audio0", 10), function("audio1", 11)]
    rig.write(GPU_LINE, AUDIO_LINE)
    return rig


async def both(kubelet) -> None:
    await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"gpu0", "gpu1"})
    await kubelet.wait_for(lambda: kubelet.healthy(OTHER) == {"audio0", "audio1"})


async def test_all_functions_of_a_group_are_offered(cards, kubelet):
    async with cards.running() as host:
        await both(kubelet)
        assert host.plan.refusals == ()


@pytest.mark.parametrize("order", [(TOY, OTHER), (OTHER, TOY)])
async def test_each_pod_that_needs_both_functions_gets_those_of_one_group(cards, kubelet, order):
    """Their names are in another order than the groups."""
    cards.scripts["other"].devices = [function("audio0", 11), function("audio1", 10)]
    cards.hurry_allocation(admission=NEVER)
    pairs = ({"gpu0", "audio1"}, {"gpu1", "audio0"})
    async with cards.running():
        await both(kubelet)
        for pod in ("vm", "second"):
            assert {(await kubelet.admit(pod, "main", name, 1)).device_ids[0] for name in order} in pairs


async def test_the_free_functions_of_a_group_are_unhealthy_while_a_pod_has_one(cards, kubelet):
    async with cards.running() as host:
        await both(kubelet)
        (token,) = (await kubelet.admit("vm", "main", TOY, 1)).device_ids
        sibling = f"audio{token[-1]}"
        await kubelet.wait_for(lambda: kubelet.healthy(OTHER) == {"audio0", "audio1"} - {sibling})
        assert kubelet.healthy(TOY) == {"gpu0", "gpu1"}
        assert rows(host)[sibling]["reason"] == IN_USE == "its IOMMU group is in use by another pod"
        assert rows(host)[sibling]["heldBy"] == [{"namespace": "default", "pod": "vm", "container": "main"}]
        assert not [one for one in problems(host.now()).shown if one.kind == "device"]
        kubelet.release("vm")
        await both(kubelet)


async def test_a_second_pod_never_gets_a_function_of_a_group_in_use(cards, kubelet):
    cards.scripts["toy"].devices = [function("gpu0", 10)]
    cards.scripts["other"].devices = [function("audio0", 10)]
    async with cards.running() as host:
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) and kubelet.healthy(OTHER))
        await kubelet.admit("vm", "main", TOY, 1)
        await kubelet.wait_for(lambda: not kubelet.healthy(OTHER))
        with pytest.raises(UnexpectedAdmissionError):
            await kubelet.admit("second", "main", OTHER, 1)
        with pytest.raises(UnhealthyDevice, match=f"^{OTHER}: audio0 is unhealthy: {IN_USE}$") as refused:
            await allocated(host.services[OTHER].allocator, ["audio0"])
        assert refused.value.held_by == (VM,)


async def test_a_list_during_the_admission_does_not_take_the_second_function_from_its_pod(cards, kubelet):
    """The kubelet lists what a pod has got so far, and picks from what is healthy when it asks for more."""
    cards.hurry_allocation(admission=NEVER)
    async with cards.running() as host:
        await both(kubelet)
        (token,) = (await kubelet.admit("vm", "main", TOY, 1)).device_ids
        await cards.until(lambda: host.allocations.of(TOY).leases.holder(token) == VM)
        host.replan()
        assert kubelet.healthy(OTHER) == {"audio0", "audio1"}
        assert (await kubelet.admit("vm", "main", OTHER, 1)).device_ids == (f"audio{token[-1]}",)


async def test_what_an_earlier_run_allocated_binds_its_pod_at_once(cards, kubelet):
    async with cards.running():
        await both(kubelet)
        (token,) = (await kubelet.admit("vm", "main", TOY, 1)).device_ids
    cards.hurry_allocation(admission=NEVER)
    async with cards.running():
        await kubelet.wait_for(lambda: kubelet.healthy(OTHER) == {"audio0", "audio1"} - {f"audio{token[-1]}"})


async def test_both_functions_of_a_pod_stay_healthy(cards, kubelet):
    cards.hurry_allocation(admission=3.0)  # the kubelet asks for both in this time, also on a busy machine
    async with cards.running() as host:
        await both(kubelet)
        for name in (TOY, OTHER):
            await kubelet.admit("vm", "main", name, 1)
        await cards.until(lambda: host.allocations.pod_claims() and host.allocations.next_change() is None)
        host.replan()
        assert kubelet.healthy(TOY) == {"gpu0", "gpu1"}
        assert kubelet.healthy(OTHER) == {"audio0", "audio1"}


async def test_functions_of_one_group_that_two_pods_got_are_unhealthy_in_both(cards, kubelet):
    """The second request came before the kubelet had named the first pod."""
    cards.scripts["toy"].devices = [function("gpu0", 10)]
    cards.scripts["other"].devices = [function("audio0", 10)]
    cards.hurry_allocation(admission=NEVER)
    async with cards.running():
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) and kubelet.healthy(OTHER))
        await kubelet.admit("vm", "main", TOY, 1)
        await kubelet.admit("second", "main", OTHER, 1)
        await kubelet.wait_for(lambda: not kubelet.healthy(TOY) and not kubelet.healthy(OTHER))


async def test_a_resource_of_a_whole_group_prefers_not_to_break_another(rig, kubelet):
    names = {"a0": 10, "a1": 10, "b0": 11, "c0": 12, "c1": 12}
    rig.scripts["toy"].devices = [function(name, group) for name, group in names.items()]
    rig.write(GPU_LINE)
    rig.hurry_allocation(admission=NEVER)
    async with rig.running():
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == names.keys())
        assert set((await kubelet.admit("pair", "main", TOY, 2)).device_ids) == {"a0", "a1"}
        assert set((await kubelet.admit("single", "main", TOY, 1)).device_ids) == {"b0"}
        assert set((await kubelet.admit("second", "main", TOY, 2)).device_ids) == {"c0", "c1"}
