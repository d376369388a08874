"""Kubelets that restart again and again, while devices come and go and pods run."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace

import pytest
from devhost_testing.kubelet import events as ev
from kit.waiting import background
from soak_hurry import ALLOCATION
from soak_machine import device, every_resource
from soak_node import Node, Tally
from soak_verdict import footprint, leftovers, quiet

from devhost.backend.model import HEALTHY, unhealthy
from devhost.planning.timing import ALLOCATION as NODE
from devhost.planning.timing import Timing

RESTARTS = int(os.environ.get("DEVHOST_SOAK_RESTARTS", "10"))
"""``make soak`` asks for 50."""

TOYS = ("toy", "other", "prep")


async def churn(node: Node, chance: random.Random) -> None:
    """Devices come, go and change their health, and pods come, go and start again, until cancelled."""
    while True:
        name, number = chance.choice(TOYS), chance.randrange(6)
        toy = node.toys[name]
        if chance.random() < 0.4:
            toy.devices.pop(f"d{number}", None)
        else:
            health = chance.choice((HEALTHY, unhealthy("too hot")))
            toy.devices[f"d{number}"] = device(number, health=health)
        node.look(name)
        if chance.random() < 0.5:
            node.admit(f"example.com/{chance.choice(TOYS)}", 1)
        else:
            node.release(number)
        node.restart_container(number)
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.05)))


@pytest.mark.parametrize("profile", ["1.36", "1.37"])
@pytest.mark.timeout(900)
async def test_kubelet_restarts_in_a_row_during_churn_leave_every_resource_right(profile):
    chance = random.Random(RESTARTS)
    before = footprint()
    lists_only = replace(ALLOCATION, allocate=NODE.allocate, prepare=NODE.prepare, grace=NODE.grace)
    with Node(profile, Tally(), every_resource, Timing(allocation=lists_only)) as node:
        for name in TOYS:
            for number in range(6):
                node.toys[name].devices[f"d{number}"] = device(number)
                (node.nodes / f"d{number}").touch()
        await node.kubelet.start()
        node.start_host()
        assert await quiet(node, all_well=True) == []
        async with background(churn(node, chance)):
            for _ in range(RESTARTS):
                await asyncio.sleep(chance.choice((0.0, 0.05, 0.2, 0.6)))
                await node.kubelet.stop(crash=chance.random() < 0.5)
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.1)))
                await node.kubelet.start(delay_serving=chance.choice((0.0, 0.0, 0.2)))
        assert await quiet(node, all_well=True) == []
        (last,) = (
            p for p, e in enumerate(node.kubelet.events) if e is node.kubelet.events.of(ev.Started)[-1]
        )
        for resource in node.host.services:
            # a call that was on its way to the kubelet before may reach this one as well
            assert 1 <= len(node.kubelet.events.of(ev.Registered, resource, since=last)) <= 2, resource
        await node.close()
        assert await leftovers(node, before) == []
