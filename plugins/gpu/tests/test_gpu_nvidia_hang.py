"""A GPU whose calls hang: the others are reported, and it returns when it answers again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import PATIENCE, NvidiaDesk
from kit.waiting import until

FIRST, MIDDLE, LAST = DGX[0], DGX[3], DGX[7]
Open = Callable[..., NvidiaDesk]
CALLS = ("nvmlDeviceGetUUID", "nvmlDeviceRegisterEvents", "nvmlDeviceGetMemoryInfo")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("address", [FIRST, MIDDLE])
def test_a_gpu_that_hangs_from_the_start_hides_no_other(
    station: NvidiaMachine, at: Open, address: str, call: str
) -> None:
    uuid = station.uuids[address]
    hang = station.nvml.fault(call, uuid, hang=600)
    desk = at(station, **QUICK)
    desk.until(lambda: [*desk.reasons()] == [uuid, station.uuids[DGX[6]], station.uuids[DGX[7]]])
    assert "NVML has not answered" in desk.reasons()[uuid]
    assert len(desk.look()) == 8 + 7 + 3
    before = desk.pid
    station.nvml.fix(hang)
    desk.until(lambda: uuid not in desk.reasons())
    assert desk.pid == before, "the process need not be another for that"


def test_a_split_gpu_that_hangs_from_the_start_returns_with_its_instances(
    station: NvidiaMachine, at: Open
) -> None:
    hang = station.nvml.fault("nvmlDeviceGetMigMode", station.uuids[LAST], hang=600)
    desk = at(station, **QUICK)
    desk.until(lambda: len(desk.look()) == 8 + 7)
    assert desk.look()[station.uuids[DGX[0]]].health
    station.nvml.fix(hang)
    desk.until(lambda: len(desk.look()) == 8 + 7 + 3)


QUICK: Any = {"overtake": 0.1, "silence": 0.3}
"""Answers are given soon although one GPU does not answer."""

RETRYING: Any = QUICK | {"first_delay": 0.0, "alone": 0.2}
"""What failed is tried again at once."""


def unhealthy(desk: NvidiaDesk) -> set[str]:
    """The Unhealthy devices, after a scan and a check for hung calls."""
    desk.look()
    desk.nvidia.client.kill_if_hung()
    return {name for name, device in desk.look().items() if not device.health}


def test_a_gpu_that_hangs_later_is_released_and_the_others_stay(station: NvidiaMachine, at: Open) -> None:
    desk = at(station, answer=0.2, **RETRYING)
    desk.until(lambda: len(desk.look()) == 8 + 7 + 3)  # a busy machine may not report all at first
    before = desk.look()
    uuid = station.uuids[FIRST]
    hang = station.nvml.fault("nvmlDeviceGetUUID", uuid, hang=600)
    desk.outlast_hang(FIRST)
    desk.until(lambda: unhealthy(desk) == {uuid})
    assert "NVML hung" in desk.reasons()[uuid]
    assert FIRST not in desk.nvidia.client.scope.addresses
    desk.until(lambda: unhealthy(desk) == {uuid} and not desk.nvidia.problem)
    assert desk.look().keys() == before.keys()
    station.nvml.fix(hang)


def test_two_gpus_that_hang_hide_no_other_and_are_found_one_after_the_other(
    station: NvidiaMachine, at: Open
) -> None:
    hung = {station.uuids[FIRST], station.uuids[MIDDLE]}
    for uuid in hung:
        station.nvml.fault("nvmlDeviceGetUUID", uuid, hang=600)
    desk = at(station, **RETRYING)
    desk.until(lambda: unhealthy(desk) == hung)
    desk.outlast_hang(FIRST, MIDDLE)
    desk.until(lambda: unhealthy(desk) == hung and desk.nvidia.health.released)
    desk.outlast_hang(FIRST, MIDDLE)
    desk.until(lambda: unhealthy(desk) == hung and desk.nvidia.health.released == {FIRST, MIDDLE})
    assert all("NVML hung" in desk.reasons()[uuid] for uuid in hung)


async def test_a_hung_gpu_is_asked_alone_and_returns_once_it_answers(
    station: NvidiaMachine, at: Open
) -> None:
    uuid = station.uuids[MIDDLE]
    hang = station.nvml.fault("nvmlDeviceGetUUID", uuid, hang=600)
    desk = at(station, check=0.05, alone_every=0.2, hold=0.2, **RETRYING)
    desk.outlast_hang(MIDDLE)
    async with desk.watched():
        await until(lambda: asyncio.to_thread(lambda: "NVML hung" in str(desk.reasons())))
        station.nvml.fix(hang)
        await until(lambda: asyncio.to_thread(lambda: uuid not in desk.reasons()))


async def test_events_of_other_gpus_arrive_while_one_hangs(station: NvidiaMachine, at: Open) -> None:
    """Also where the call that hangs is the one that compares MIG instances now and then."""
    desk = at(station, compare=0.2, **QUICK)
    desk.look()
    hang = station.nvml.fault("nvmlDeviceGetMigMode", station.uuids[FIRST], hang=600)
    other = station.uuids[MIDDLE]
    process = desk.nvidia.client.process
    assert process
    desk.until(lambda: process.waiting_for == FIRST)
    async with desk.watched() as changed, asyncio.timeout(PATIENCE):
        while other not in await asyncio.to_thread(desk.reasons):
            station.nvml.event(other, 79)
            await changed.wait()
            changed.clear()
    station.nvml.fix(hang)


def test_an_answer_that_comes_late_is_not_lost(station: NvidiaMachine, at: Open) -> None:
    desk = at(station, **QUICK)
    desk.look()
    made = desk.nvidia.client.process
    assert made
    hang = station.nvml.fault("nvmlDeviceGetRetiredPagesPendingStatus", station.uuids[MIDDLE], hang=600)
    desk.until(lambda: made.ask("probe", DGX, PATIENCE).content.keys() == {*DGX} - {MIDDLE})
    station.nvml.fix(hang)
    desk.until(lambda: MIDDLE in made.ask("probe", DGX, PATIENCE).content)


def test_what_cannot_be_read_of_one_gpu_concerns_no_other(station: NvidiaMachine, at: Open) -> None:
    uuid = station.uuids[MIDDLE]
    desk = at(station)
    station.nvml.gpus[uuid]["name"] = "NO-UTF-8"
    station.nvml.write()
    file = station.nvml.file
    file.write_bytes(file.read_bytes().replace(b"NO-UTF-8", b"\xff\xfe"))
    found = desk.look()
    assert [name for name, device in found.items() if not device.health] == [uuid]
