"""A plan that takes long is made in pieces, between which devhost does everything else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from devhost.backend import Device

ENTRIES = 40


def devices(numa_node=0):
    return {f"d{n}": Device(f"d{n}", {"index": n}, numa_nodes=(numa_node,)) for n in range(ENTRIES)}


def entries(rig, *, first: int = 0):
    rig.write(
        *(
            f"name: example.com/r{n}, backend: toy, whenEmpty: register, where: {{index: {n + first}}}"
            for n in range(ENTRIES)
        )
    )


async def turns(condition):
    """How often the event loop does something else before the condition is true."""
    for n in range(10_000):
        if condition():
            return n
        await asyncio.sleep(0)
    raise AssertionError("it never became true")


@pytest.fixture
async def host(rig, kubelet):
    """A host that makes every plan in as many pieces as it can, and has offered all devices."""
    rig.scripts["toy"].devices = [*devices().values()]
    rig.timing = replace(rig.timing, plan_piece=0.0)
    entries(rig)
    async with rig.running() as host:
        await kubelet.wait_for(lambda: kubelet.allocatable().get(f"example.com/r{ENTRIES - 1}") == 1)
        yield host


async def test_other_work_is_done_between_the_pieces_of_a_plan(host):
    before, scanner = host.plan, host.scanners["toy"]
    scanner.devices = devices(numa_node=3)
    host.replan()
    assert host.plan is before
    host.replan()  # a second event does not begin again
    assert ENTRIES <= await turns(lambda: host.plan is not before) <= 2 * ENTRIES
    assert all(one.offers[0].device.numa_nodes == (3,) for one in host.plan.resources.values())


async def test_a_plan_for_other_settings_is_made_in_pieces_before_they_take_effect(rig, host):
    settings = rig.load().settings
    preparing = asyncio.ensure_future(host.replanner.prepare(settings))
    assert await turns(preparing.done) >= ENTRIES
    entries(rig, first=1)
    host.reload()
    await rig.until(lambda: host.configuration.generation == 2)
    assert host.plan.resources["example.com/r0"].offers[0].device.id == "d1"


async def test_settings_never_take_effect_with_the_plan_of_others(host, rig):
    """Not even for a moment, while a plan for these is made in pieces."""
    host.scanners["toy"].devices = devices(numa_node=3)
    host.replan()
    entries(rig, first=1)
    host.configuration.adopt(rig.load())
    host.replan()
    assert host.plan.resources["example.com/r0"].offers[0].device.id == "d1"
