"""Disturbances of the simulated kubelet besides failing steps: answers, gates, files, other clients."""

from __future__ import annotations

import asyncio

import pytest
from devhost_testing.kubelet import Gate, Point, answer, disturbances
from devhost_testing.kubelet import events as ev

from devhost.kubelet.api import CHECKPOINT

RESOURCE = "example.com/tiny"


@pytest.mark.parametrize(
    "reply", [b"\xff\xff", b"\x0a\x03abc"], ids=["no message", "more than a kubelet says"]
)
async def test_an_injected_answer_reaches_the_plugin_and_nothing_is_registered(kubelet, tiny, reply):
    kubelet.faults.inject(Point.REGISTER, answer(reply))
    plugin = await tiny()
    await plugin.register()  # grpc.aio takes a message that it cannot read for none, and not for an error
    assert kubelet.endpoints(RESOURCE) == ()
    assert not kubelet.events.of(ev.Registered)
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.allocatable() == {RESOURCE: 2})


async def test_a_gate_blocks_a_step_until_it_is_opened(kubelet, tiny):
    gate = Gate()
    kubelet.faults.inject(Point.LIST, gate.wait, times=None)
    plugin = await tiny()
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.events.of(ev.StreamOpened))
    await plugin.called_list.wait()
    assert kubelet.capacity() == {}
    gate.open()
    await kubelet.wait_for(lambda: kubelet.allocatable() == {RESOURCE: 2})
    plugin.push(*plugin.devices[:1])
    await kubelet.wait_for(lambda: kubelet.allocatable() == {RESOURCE: 1})


async def test_a_deleted_kubelet_socket_returns_with_the_next_start(kubelet, tiny):
    disturbances.lose_socket(kubelet)
    disturbances.lose_socket(kubelet)  # a second loss is none
    assert kubelet.running
    assert not kubelet.socket.exists()
    await kubelet.restart()
    await (await tiny()).register()


async def test_a_wipe_removes_every_socket_and_keeps_streams_open(kubelet, tiny):
    plugin = await tiny()
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.allocatable() == {RESOURCE: 2})
    assert disturbances.wipe(kubelet) == ("kubelet.sock", "tiny.sock")
    plugin.push(*plugin.devices[:1])
    await kubelet.wait_for(lambda: kubelet.allocatable() == {RESOURCE: 1})


async def test_a_replaced_directory_is_new_and_empty(kubelet, tiny):
    plugin = await tiny()
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.allocatable() == {RESOURCE: 2})
    before = kubelet.directory.stat()
    with (kubelet.directory / CHECKPOINT).open():  # so that nothing gets its inode
        disturbances.replace_directory(kubelet)
        assert list(kubelet.directory.iterdir()) == []
        assert kubelet.directory.stat().st_ctime_ns != before.st_ctime_ns
    await kubelet.restart()
    assert kubelet.capacity() == {}


async def test_a_flood_of_calls_changes_nothing(kubelet, tiny):
    plugin = await tiny()
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.allocatable() == {RESOURCE: 2})
    async with asyncio.timeout(60):
        assert await disturbances.flood(kubelet, RESOURCE, 10) == 10
    assert len(plugin.named("list")) == 11
    assert len(plugin.named("allocate")) == 10
    assert kubelet.allocatable() == {RESOURCE: 2}
    assert await disturbances.flood(kubelet, "example.com/nobody", 10) == 0
