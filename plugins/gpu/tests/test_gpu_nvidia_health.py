"""Faults of an NVIDIA GPU, and what they mean for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from devhost_gpu.options import GpuOptions
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk
from kit.waiting import until

from devhost.backend import OptionError

A, B = DGX[:2]
Open = Callable[..., NvidiaDesk]


def test_a_gpu_that_falls_off_the_bus_concerns_no_other(station: NvidiaMachine, at: Open) -> None:
    desk = at(station)
    before = desk.look()
    lost = station.uuids[DGX[2]]
    station.lose(DGX[2])
    after = desk.look()
    assert after.keys() == before.keys()
    assert "fallen off the bus" in after[lost].health.reason
    assert [name for name, device in after.items() if not device.health] == [lost]
    assert [*desk.probe()] == [lost]
    assert desk.backend.links(after[lost], after[station.uuids[A]]) in (0, 12)
    assert desk.backend.links(after[station.uuids[A]], after[station.uuids[B]]) == 12


def test_a_gpu_that_was_lost_before_the_start_is_known_from_the_drivers_files(
    station: NvidiaMachine, at: Open
) -> None:
    station.lose(DGX[2])
    found = at(station).look()
    assert "fallen off the bus" in found[station.uuids[DGX[2]]].health.reason
    assert sum(not device.health for device in found.values()) == 1


async def test_an_xid_makes_its_gpu_unhealthy_at_once_until_a_reset(station: NvidiaMachine, at: Open) -> None:
    desk = at(station, check=0.05, alone_every=0.0, hold=0.2)
    desk.look()
    uuid = station.uuids[A]
    async with desk.watched() as changed:
        desk.probe()
        station.lose(A)
        station.nvml.event(uuid, 79)
        fallen = "the GPU has fallen off the bus (Xid 79)"
        await desk.finds(changed, lambda: desk.reasons().get(uuid, "").startswith(fallen))
        for _ in range(10):
            await asyncio.sleep(0.05)
            assert uuid in desk.reasons()
        station.reset(A)
        await until(lambda: asyncio.to_thread(lambda: uuid not in desk.reasons()))


def unhealthy(desk: NvidiaDesk) -> set[str]:
    return {name for name, device in desk.look().items() if not device.health}


async def test_an_xid_of_one_instance_leaves_its_siblings_alone(station: NvidiaMachine, at: Open) -> None:
    desk = at(station, check=0.1)
    before = desk.look()
    uuid = station.uuids[DGX[6]]
    [one] = [name for name, card in desk.backend.cards.items() if getattr(card.facts, "index", "") == "6:2"]
    async with desk.watched() as changed:
        station.nvml.event(uuid, 94, gi=9, ci=0)
        await desk.finds(changed, lambda: unhealthy(desk))
        assert unhealthy(desk) == {one}
        station.nvml.event(uuid, 95)
        parts = {name for name, device in before.items() if device.attributes.get("parent") == uuid}
        await desk.finds(changed, lambda: unhealthy(desk) == {uuid, *parts})


async def test_an_application_error_makes_no_gpu_unhealthy(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    desk = at(nvidia, GpuOptions(heed_xids=(31,), ignore_xids=(48,)))
    desk.look()
    async with desk.watched() as changed:
        for xid in (13, 43, 45, 48, 68, 109, 31):
            nvidia.nvml.event(uuid, xid)
        await desk.finds(changed, desk.reasons)
        assert desk.reasons() == {uuid: "the driver reported Xid 31"}


@pytest.mark.parametrize(("kind", "word"), [(2, "ECC"), (0x4000, "unavailable"), (0x2000, "poison")])
async def test_other_events_also_make_a_gpu_unhealthy(
    nvidia: NvidiaMachine, at: Open, kind: int, word: str
) -> None:
    uuid = nvidia.gpu(A)
    desk = at(nvidia)
    desk.look()
    async with desk.watched() as changed:
        nvidia.nvml.event(uuid, 0, kind=kind)
        await desk.finds(changed, lambda: word in desk.reasons().get(uuid, ""))


@pytest.mark.parametrize(("kind", "data"), [(8, 154), (0x8000, 0)])
async def test_a_recovery_action_is_asked_for_as_soon_as_it_changes(
    nvidia: NvidiaMachine, at: Open, kind: int, data: int
) -> None:
    uuid = nvidia.gpu(A)
    desk = at(nvidia, check=0.1)
    desk.look()
    async with desk.watched() as changed:
        nvidia.nvml.gpus[uuid]["field230"] = 1
        nvidia.nvml.event(uuid, data, kind=kind)
        await desk.finds(changed, desk.reasons)
        assert desk.reasons() == {uuid: "it needs a reset, according to its driver"}


def test_a_gpu_whose_memory_cannot_be_read_is_unhealthy(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    other = nvidia.gpu(B)
    desk = at(nvidia)
    desk.look()
    nvidia.nvml.fault("nvmlDeviceGetMemoryInfo", uuid, error=999)
    assert desk.probe() == {uuid: "NVML: Unknown Error"}
    assert desk.look()[other].health


def test_a_gpu_that_must_be_reset_is_not_held_open(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A, field230=1)
    desk = at(nvidia)
    assert desk.probe() == {uuid: "it needs a reset, according to its driver"}
    desk.look()
    assert not desk.pid
    desk.until(lambda: not desk.is_open())


def test_after_a_restart_a_gpu_is_still_unhealthy_if_it_still_reports_a_fault(
    nvidia: NvidiaMachine, at: Open
) -> None:
    uuid = nvidia.gpu(A, field230=4)
    other = nvidia.gpu(B, remapped="0,1,1,0")
    for _ in range(2):
        assert at(nvidia).probe() == {
            uuid: "it must be drained and reset, according to its driver",
            other: "memory with uncorrectable errors waits for a reset to be replaced",
        }


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ("all", {"recovery", "remap"}),
        ("none", set()),
        (("recovery",), {"recovery"}),
        (("xid", "remap"), {"remap"}),
    ],
)
def test_faults_that_do_not_count_leave_a_gpu_healthy(
    nvidia: NvidiaMachine, at: Open, checks: Any, expected: set[str]
) -> None:
    """NVIDIA's plugin looks for Xids alone, and for none with ``DP_DISABLE_HEALTHCHECKS=all``."""
    uuids = {"recovery": nvidia.gpu(A, field230=4), "remap": nvidia.gpu(B, remapped="0,1,1,0")}
    desk = at(nvidia, GpuOptions(health_checks=checks))
    assert desk.probe().keys() == {uuids[sign] for sign in expected}


async def test_without_health_checks_only_a_lost_gpu_is_unhealthy(nvidia: NvidiaMachine, at: Open) -> None:
    uuid, other = nvidia.gpu(A), nvidia.gpu(B)
    desk = at(nvidia, GpuOptions(health_checks="none"))
    desk.look()
    async with desk.watched() as changed:
        nvidia.nvml.event(uuid, 79)
        nvidia.nvml.event(uuid, 0, kind=2)
        nvidia.lose(B)
        nvidia.nvml.event(other, 0, kind=0x8000)  # it is asked about, and then lost
        await desk.finds(changed, lambda: other in desk.reasons())
        assert desk.reasons().keys() == {other}


def test_a_drained_gpu_stays_healthy_if_draining_does_not_count(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    desks = {checks: at(nvidia, GpuOptions(health_checks=checks)) for checks in ("all", "none")}
    assert not any(desk.reasons() for desk in desks.values())
    nvidia.drain(A)
    assert "drained" in desks["all"].probe()[uuid]
    assert desks["none"].probe() == {} and desks["none"].reasons() == {}


def test_heed_xids_is_refused_if_no_xid_counts() -> None:
    with pytest.raises(OptionError) as refused:
        GpuOptions(health_checks=("ecc",), heed_xids=(79,))
    assert refused.value.key == "heedXids"
