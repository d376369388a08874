"""Two resources of one pod over real sockets: their devices are on one switch in either order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations

import pytest
from devhost_testing.kubelet import KubeletSimulator
from devhost_testing.kubelet.faults import Gate, Point
from scraped_series import value

from devhost.backend import Device
from devhost.host.shown.problems import problems
from devhost.telemetry.metrics import Guess, Metrics

GPU, HCA = "example.com/gpu", "example.com/hca"


def behind(switch: int, name: str) -> Device:
    """A device below a PCIe switch; there are two switches at each of two sockets."""
    path = (f"0000:{switch}0:01.0", f"0000:{switch}1:00.0", f"0000:{switch}2:{name[1:]}.0", name)
    return Device(name, {"index": int(name[1:])}, numa_nodes=(switch // 2,), pcie_path=path)


def switches(names) -> set[int]:
    return {int(name[1:]) // 2 for name in names}


async def over(machine, host, got) -> None:
    """Waits until the kubelet has named the holders: the next pod is then certainly another one."""
    await machine.until(
        lambda: all(
            host.services[name].inventory.allocations.leases.holder(token)
            for name in got
            for token in got[name]
        )
    )


@contextmanager
def admitting(kubelet: KubeletSimulator) -> Iterator[None]:
    """A kubelet admits one pod: however long that takes, no list names a pod of which the rest is to come."""
    gate = Gate()
    kubelet.faults.inject(Point.POD_RESOURCES, gate.wait, times=100)
    try:
        yield
    finally:
        gate.open()


@pytest.fixture
def machine(rig):
    rig.hurry_allocation(together=600.0)  # however busy the machine is, these are requests of one pod
    rig.scripts["toy"].devices = [behind(n // 2, f"g{n}") for n in range(8)]
    rig.scripts["other"].devices = [behind(n // 2, f"h{n}") for n in range(8)]
    rig.write(f"name: {GPU}, backend: toy", f"name: {HCA}, backend: other")
    return rig


@pytest.mark.parametrize("order", [(GPU, HCA), (HCA, GPU)], ids=["gpu first", "hca first"])
async def test_the_devices_of_a_pod_share_a_switch_in_either_order(machine, kubelet, order):
    async with machine.running(allocatable={GPU: 8, HCA: 8}) as host:
        for pod in ("a", "b", "c"):
            with admitting(kubelet):
                got = {name: (await kubelet.admit(pod, "main", name, 2)).device_ids for name in order}
            assert len(switches(got[GPU] + got[HCA])) == 1
            await over(machine, host, got)


async def test_a_pod_gets_the_gpu_with_a_free_adapter_nearby(machine, kubelet):
    machine.scripts["other"].devices = [behind(2, "h4"), behind(3, "h7")]
    async with machine.running(allocatable={GPU: 8, HCA: 2}) as host:
        assert switches((await kubelet.admit("other", "main", HCA, 1)).device_ids) == {2}
        await over(machine, host, {HCA: ["h4"]})
        with admitting(kubelet):
            (gpu,) = (await kubelet.admit("pod", "main", GPU, 1)).device_ids
            (hca,) = (await kubelet.admit("pod", "main", HCA, 1)).device_ids
        assert switches([gpu, hca]) == {3}


async def test_devices_of_a_pod_that_has_just_ended_are_free_before_the_kubelets_list_shows_it(
    machine, kubelet
):
    async with machine.running(allocatable={GPU: 8, HCA: 8}) as host:
        held = {HCA: (await kubelet.admit("adapters", "main", HCA, 6)).device_ids}
        await over(machine, host, held)
        with admitting(kubelet):
            ending = {name: (await kubelet.admit("ends", "main", name, 2)).device_ids for name in (HCA, GPU)}
        await over(machine, host, ending)
        (switch,) = switches(ending[GPU] + ending[HCA])
        assert switch > 0, "else the natural order would lead there too"
        kubelet.release("ends")
        gpus = (await kubelet.admit("next", "main", GPU, 2)).device_ids
        assert switches(gpus) == {switch}


async def test_the_kubelets_list_shows_whether_a_guess_was_right(machine, kubelet):
    metrics = Metrics()

    def guesses():
        return {result: value(metrics, "devhost_affinity_guesses_total", result=result) for result in Guess}

    async with machine.running(allocatable={GPU: 8, HCA: 8}, metrics=metrics):
        with admitting(kubelet):
            for name in (GPU, HCA):
                await kubelet.admit("pod", "main", name, 1)
        await machine.until(lambda: any(guesses().values()))
    assert guesses() == {"right": 1, "wrong": None, "unknown": None}


async def test_links_reported_by_a_backend_decide_between_equal_switches(machine, kubelet):
    def links(self, a, b):
        return 4 if a.attributes["index"] % 2 == b.attributes["index"] % 2 else 0

    machine.classes["toy"].links = links
    async with machine.running(f"name: {GPU}, backend: toy", allocatable={GPU: 8}) as host:
        await machine.until(lambda: host.scanners["toy"].runner.links)
        got = (await kubelet.admit("pod", "main", GPU, 4)).device_ids
        indices = [int(name[1:]) % 2 for name in got]
        assert all(a == b for a, b in combinations(indices, 2))


async def test_a_failure_of_links_costs_no_device_and_is_a_problem(machine, kubelet):
    def links(self, a, b):
        raise RuntimeError("no library")

    machine.classes["toy"].links = links
    async with machine.running(allocatable={GPU: 8, HCA: 8}) as host:
        assert len((await kubelet.admit("pod", "main", GPU, 2)).device_ids) == 2
        assert host.scanners["toy"].condition.state == "ok"
        await machine.until(lambda: problems(host.now()).shown)
        (problem,) = problems(host.now()).shown
        assert (problem.kind, problem.subject) == ("backend", "toy")
        assert problem.reason.startswith("links between devices are not known: ")
