"""What happens when NVML fails, and when the driver is released."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest
from devhost_gpu.environment import Environment
from devhost_gpu.nvml import client
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import PATIENCE, NvidiaDesk
from kit.waiting import until

from devhost.backend import Event

A, B = DGX[:2]
Open = Callable[..., NvidiaDesk]


# What happens to NVML


def test_while_nvml_hangs_devices_stay_until_the_last_report_is_stale(
    nvidia: NvidiaMachine, at: Open
) -> None:
    uuid = nvidia.gpu(A)
    desk = at(nvidia, answer=0.2, stale=10.0)
    desk.look()
    hang = nvidia.nvml.fault("*", hang=60)
    assert desk.reasons() == {}
    assert desk.probe() == {}
    desk.clock.ahead += 10.0
    assert "does not answer" in desk.reasons()[uuid]
    nvidia.nvml.fix(hang)
    desk.until(lambda: not desk.reasons())


async def test_a_process_that_is_killed_is_replaced(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.gpu(A)
    desk = at(nvidia, check=0.05, first_delay=0.1)
    async with desk.watched() as changed:
        desk.look()
        first = desk.pid
        os.kill(first, signal.SIGKILL)
        while desk.pid in (0, first) or not desk.look():
            await asyncio.wait_for(changed.wait(), PATIENCE)
            changed.clear()
            assert desk.reasons() == {}
        assert desk.reasons() == {}


def test_processes_that_cannot_be_ended_do_not_pile_up(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.gpu(A)
    unkillable = Environment(kill=lambda process: None)
    desk = at(nvidia, environment=unkillable, first_delay=0.0, grace=0.1)
    pids = set()
    for _ in range(2 * client.MOST_STRAYS):
        desk.look()
        if desk.pid:
            pids.add(desk.pid)
            os.kill(desk.pid, signal.SIGSTOP)  # as a call into the kernel holds it
        desk.nvidia.client.close()
        desk.nvidia.client.reopen()
    try:
        assert len(pids) == client.MOST_STRAYS
        assert {process.pid for process in desk.nvidia.client.processes} == pids
        assert "still hang in the kernel" in desk.nvidia.client.problem
    finally:
        for pid in pids | {process.pid for process in desk.nvidia.client.processes}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# Letting go


async def test_a_backend_that_was_closed_opens_nothing_until_it_is_watched_again(
    nvidia: NvidiaMachine, at: Open
) -> None:
    nvidia.gpu(A)
    desk = at(nvidia)
    desk.look()
    async with desk.watched():
        await until(lambda: desk.nvidia.is_watched)
    assert not desk.pid
    desk.look()
    assert not desk.pid
    async with desk.watched() as changed:
        await asyncio.wait_for(changed.wait(), PATIENCE)
        desk.look()
        assert desk.pid


def test_the_driver_is_released_when_its_last_gpu_is_unbound(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    desk = at(nvidia)
    desk.look()
    assert desk.is_open()
    nvidia.unbind(A)
    assert desk.reasons() == {uuid: "no driver is bound to it"}
    desk.until(lambda: not desk.is_open())


def test_instances_stay_listed_while_the_driver_of_their_gpu_is_away(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    instance = nvidia.mig(A, 1, 0)
    desk = at(nvidia)
    before = desk.look()
    nvidia.tree.bind(nvidia.paths[A], "")
    found = desk.look()
    assert found.keys() == before.keys()
    assert found[instance].health.reason == "no driver is bound to it"
    assert found[uuid].withheld == before[uuid].withheld
    nvidia.tree.bind(nvidia.paths[A], "nvidia")
    desk.until(lambda: desk.look() == before)


async def test_the_driver_is_released_as_soon_as_a_gpu_is_to_be_unbound(
    nvidia: NvidiaMachine, at: Open
) -> None:
    nvidia.gpu(A)
    desk = at(nvidia)
    desk.look()
    async with desk.watched() as changed:
        while desk.is_open():
            nvidia.nvml.system_event(1)
            changed.clear()
            await asyncio.wait_for(changed.wait(), PATIENCE) if not desk.is_open() else await asyncio.sleep(
                0.1
            )
        assert desk.reasons() == {}, "the GPU is still there"
        assert not desk.pid, "nothing is opened while it may be on its way out"


def test_a_uevent_of_a_removed_gpu_releases_the_driver(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.gpu(A)
    desk = at(nvidia)
    desk.look()
    desk.backend.notice(Event("drm", "remove", f"{nvidia.paths[A]}/drm/card0"))
    desk.until(lambda: not desk.is_open())


def test_a_uevent_of_another_removed_device_keeps_the_driver_open(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.gpu(A)
    desk = at(nvidia)
    desk.look()
    first = desk.pid
    desk.backend.notice(Event("pci", "remove", "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0"))
    desk.look()
    assert desk.pid == first


def test_a_module_that_is_being_unloaded_is_not_opened(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    desk = at(nvidia)
    desk.look()
    nvidia.tree.file("/sys/module/nvidia/initstate", "going")
    assert desk.reasons() == {uuid: "NVIDIA's driver is not loaded"}
    desk.until(lambda: not desk.is_open())


def test_a_new_driver_meets_a_fresh_process(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    desk = at(nvidia)
    desk.look()
    first = desk.pid
    nvidia.load_driver("580.65.06")
    desk.until(lambda: desk.look()[uuid].attributes["driverVersion"] == "580.65.06")
    assert desk.pid != first


def test_another_gpu_at_the_same_address_starts_healthy(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.gpu(A, field230=1)
    desk = at(nvidia)
    assert desk.probe()
    nvidia.tree.remove(nvidia.paths[A])
    nvidia.nvml.gpus.clear()
    assert desk.look() == {}
    fresh = nvidia.gpu(A, uuid="GPU-fffffff0-0000-4000-8000-000000000000")
    desk.until(lambda: [*desk.look()] == [fresh])
    assert desk.reasons() == desk.probe() == {}


# Draining


async def test_a_gpu_is_released_while_it_is_drained(station: NvidiaMachine, at: Open) -> None:
    uuid = station.uuids[DGX[6]]
    desk = at(station, check=0.05, alone_every=0.2, hold=0.2, compare=0.1)
    before = desk.look()
    async with desk.watched() as changed, asyncio.timeout(PATIENCE):
        station.drain(DGX[6])
        await desk.finds(changed, lambda: uuid in desk.reasons())
        after = await asyncio.to_thread(desk.look)
        unhealthy = {name for name, device in after.items() if not device.health}
        assert unhealthy == {
            uuid,
            *(name for name, one in before.items() if one.attributes.get("parent") == uuid),
        }
        assert after[uuid].health.reason == "it is being drained (nvidia-smi drain)"
        await asyncio.to_thread(desk.look)
        assert DGX[6] not in desk.nvidia.client.scope.addresses, "so that it can be removed"
        station.drain(DGX[6], on=False)
        await until(lambda: asyncio.to_thread(lambda: desk.look() == before))


def test_a_gpu_that_was_drained_before_the_start_is_not_opened(nvidia: NvidiaMachine, at: Open) -> None:
    uuid, other = nvidia.gpu(A), nvidia.gpu(B)
    nvidia.drain(A)
    nvidia.nvml.fault("nvmlDeviceGetUUID", uuid, hang=60)  # as it would be, were it opened
    desk = at(nvidia)
    assert desk.reasons() == {uuid: "it is being drained (nvidia-smi drain)"}
    assert desk.look()[other].health


# Text


@pytest.mark.parametrize("field", ["name", "serial", "vbios"])
def test_text_of_nvml_that_is_not_utf8_is_a_reason_without_the_name_of_an_exception(
    nvidia: NvidiaMachine, at: Open, field: str
) -> None:
    uuid = nvidia.gpu(A)
    nvidia.nvml.gpus[uuid][field] = "NVIDIA \udcff"
    nvidia.nvml.write()
    desk = at(nvidia)
    desk.look()
    assert desk.reasons() == {uuid: "NVML: it gave a text that is not UTF-8: b'NVIDIA \\xff'"}
