"""A backend that fails, hangs or returns invalid values affects no other."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from devhost_testing.kubelet import UnexpectedAdmissionError
from kit.waiting import until

from devhost.backend import Event
from devhost.backend.model import Device, unhealthy
from devhost.runtime import worker

TOY, OTHER = "example.com/toy", "example.com/other"
BOTH = ("name: example.com/toy, backend: toy", "name: example.com/other, backend: other")


@pytest.mark.conformance(43)
@pytest.mark.field_failure("F25")
async def test_a_backend_hung_from_the_start_does_not_keep_others_from_serving(rig, kubelet, hang):
    rig.scripts["toy"].on_discover = hang.wait
    rig.timing = replace(rig.timing, first_plan=0.3)
    async with rig.running(*BOTH):
        await kubelet.wait_for(lambda: kubelet.allocatable() == {OTHER: 1})


async def test_the_devices_of_a_hung_discover_become_unhealthy(rig, kubelet):
    over = threading.Event()
    rig.write(*BOTH)
    rig.hurry_discovery(stale_after=0.0)
    async with rig.running(allocatable={TOY: 2, OTHER: 1}) as host:
        rig.classes["toy"].discover_deadline = 0.2
        rig.scripts["toy"].on_discover = over.wait
        host.scanners["toy"].request_scan()
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 0, OTHER: 1})
        assert kubelet.capacity()[TOY] == 2
        reason = host.scanners["toy"].condition.reason
        assert reason in (
            "backend toy did not answer within 0.2 s when looking for devices",
            "backend toy does not answer when looking for devices: 4 earlier calls still hang",
        )
        rig.classes["toy"].discover_deadline = 60.0
        rig.scripts["toy"].on_discover = lambda: None
        over.set()
        await kubelet.wait_for(lambda: kubelet.allocatable()[TOY] == 2)


async def test_a_hung_probe_delays_neither_new_devices_nor_pods(rig, kubelet, hang):
    probed = []

    def probe(self, devices):
        probed.append(len(devices))
        return hang.wait() if len(probed) > 1 else {"d1": unhealthy("link down")}

    rig.classes["toy"].probe = probe
    rig.write(*BOTH)
    rig.hurry_discovery(between_probes=0.0)
    async with rig.running(allocatable={TOY: 1, OTHER: 1}):
        assert kubelet.capacity()[TOY] == 2
        rig.host.scanners["toy"].recheck()
        await rig.until(lambda: len(probed) == 2)
        rig.change("toy", [*rig.scripts["toy"].devices, Device("d2", {"model": "x100", "index": 2})])
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, OTHER: 1})
        admitted = await kubelet.admit("pod", "main", TOY, 2)
        assert sorted(admitted.device_ids) == ["d0", "d2"]


async def test_sighup_probes_again_and_events_do_not(rig, kubelet):
    probed = []
    rig.classes["toy"].probe = lambda self, devices: probed.append(len(devices)) or {}
    rig.write(*BOTH)
    rig.hurry_discovery(between_probes=0.0)
    async with rig.running(allocatable={TOY: 2, OTHER: 1}) as host:
        looks = rig.scripts["toy"].looks
        host.backends.dispatch(Event())
        await rig.until(lambda: rig.scripts["toy"].looks > looks)
        assert probed == [2]
        host.reload()
        await rig.until(lambda: probed == [2, 2])
        assert "probe other" not in host.tasks.named()


async def test_a_hung_allocate_ends_with_an_error_and_other_resources_answer(rig, kubelet, hang):
    began = threading.Event()

    def stay(devices):
        began.set()
        hang.wait()

    rig.hurry_allocation(allocate=3.0)  # the other call ends before that, also on a busy machine
    rig.scripts["toy"].on_allocate = stay
    async with rig.running(*BOTH, allocatable={TOY: 2, OTHER: 1}):
        stuck = asyncio.create_task(kubelet.admit("stuck", "main", TOY, 1))
        await until(began.is_set)  # and it hangs from now on until the test is over
        assert (await kubelet.admit("fine", "main", OTHER, 1)).response.envs["DEVICES"] == "d0"
        with pytest.raises(UnexpectedAdmissionError, match="backend toy did not answer within 3 s"):
            await stuck


@pytest.mark.conformance(43)
async def test_hung_threads_are_counted_and_bounded(rig, kubelet, hang):
    rig.hurry_allocation(allocate=0.2)
    rig.scripts["toy"].on_allocate = lambda devices: hang.wait()
    rig.write(BOTH[0])
    refusal = ""
    async with rig.running(allocatable={TOY: 2}) as host:
        for number in range(50):  # a call that no thread took in time does not hang and is not counted
            with pytest.raises(UnexpectedAdmissionError) as raised:
                await kubelet.admit(f"pod-{number}", "main", TOY, 1)
            kubelet.release(f"pod-{number}")
            refusal = str(raised.value)
            if "did not answer within" not in refusal:
                break
        assert number >= worker.MAX_ABANDONED
        assert "4 earlier calls still hang" in refusal
        assert host.scanners["toy"].runner.hung == worker.MAX_ABANDONED


async def test_an_exception_in_allocate_is_one_line_with_the_backend_named(rig, kubelet):
    def fail(devices):
        raise ValueError("firmware\nsays no")

    rig.scripts["toy"].on_allocate = fail
    async with rig.running(BOTH[0], allocatable={TOY: 2}):
        with pytest.raises(
            UnexpectedAdmissionError, match="backend toy failed: ValueError: firmware says no"
        ):
            await kubelet.admit("pod", "main", TOY, 1)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Device(id="x" * 300), "its id has 300 characters, more than 63"),
        (Device(id=""), "it has no id"),
        (Device(id="a b"), "its id has characters other than letters, digits and ._:@+/=#-"),
        (Device(id="a::1"), "or a double colon"),
        (Device(id="d0"), "another device has the same id"),
        (Device(id="n", attributes={"colour": "red"}), "attribute 'colour' is not declared by the backend"),
        (Device(id="n", attributes={"index": "one"}), "attribute 'index' is str, declared as int"),
        ("d1", "the backend returned str, not Device"),
    ],
)
async def test_only_the_unusable_device_is_refused_with_its_reason(rig, kubelet, bad, reason):
    rig.scripts["toy"].devices.append(bad)
    async with rig.running(BOTH[0], allocatable={TOY: 2}) as host:
        (refused,) = host.scanners["toy"].condition.refused
        assert reason in refused.reason


async def test_a_device_with_ten_thousand_nodes_is_refused_at_allocate(rig, kubelet):
    from devhost.backend.model import DeviceNode, Edits

    many = tuple(DeviceNode(f"/dev/null{n}") for n in range(10_000))
    rig.classes["toy"].allocate = lambda self, request: Edits(nodes=many)
    async with rig.running(BOTH[0], allocatable={TOY: 2}):
        with pytest.raises(UnexpectedAdmissionError, match="10000 device nodes, more than 1024"):
            await kubelet.admit("pod", "main", TOY, 1)
