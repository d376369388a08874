"""Starts, stops and crashes of the simulated kubelet, and what they leave behind."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from pathlib import Path

import pytest
from devhost_testing.kubelet import ContainerStartError, KubeletSimulator, Point, events, hang
from kit.waiting import background

from devhost.backend.errors import DevhostError, EnvironmentFailure

RESOURCE = "example.com/tiny"


async def listed(kubelet, plugin):
    before = kubelet.events.position
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.events.of(events.ListReceived, plugin.resource, since=before))


async def test_a_missing_directory_is_created_for_owner_and_group_only(plugin_dir):
    directory = plugin_dir / "deep" / "plugins"
    old = os.umask(0o022)
    try:
        async with KubeletSimulator(directory):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o750
    finally:
        os.umask(old)


async def test_a_start_removes_only_sockets(plugin_dir):
    (plugin_dir / "below").mkdir()
    (plugin_dir / "file").write_text("kept")
    (plugin_dir / "link").symlink_to("file")
    for name in ("old.sock", "below/inner.sock"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(plugin_dir / name))
    simulator = KubeletSimulator(plugin_dir)
    async with simulator:
        assert sorted(os.listdir(plugin_dir)) == ["below", "file", "kubelet.sock", "link"]
        assert os.listdir(plugin_dir / "below") == ["inner.sock"]
    (started,) = simulator.events.of(events.Started)
    assert started.wiped == ("old.sock",)


async def test_the_socket_accepts_connections_before_calls_are_served(plugin_dir):
    simulator = KubeletSimulator(plugin_dir)
    async with background(simulator.start(delay_serving=3600)):
        await asyncio.sleep(0)  # the start goes on to its delay
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(simulator.socket))
        assert not simulator.events.of(events.Started)
    assert not simulator.running
    assert not simulator.socket.exists()


async def test_a_plugin_that_registers_before_calls_are_served_is_answered_later(plugin_dir, tiny):
    simulator = KubeletSimulator(plugin_dir)
    starting = asyncio.create_task(simulator.start(delay_serving=0.05))
    await asyncio.sleep(0)  # the start goes on to its delay
    plugin = await tiny()
    await plugin.register()
    await starting
    await simulator.stop()


async def test_a_clean_stop_removes_the_socket_and_a_crash_leaves_it_behind(kubelet):
    await kubelet.stop()
    assert not kubelet.socket.exists()
    await kubelet.start()
    await kubelet.stop(crash=True)
    assert stat.S_ISSOCK(kubelet.socket.lstat().st_mode)
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(kubelet.socket))
    await kubelet.start()
    assert [event.crash for event in kubelet.events.of(events.Stopped)] == [False, True]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_restart_ends_streams_and_removes_sockets_of_plugins(kubelet, tiny, crash, plugin_dir):
    plugin = await tiny()
    await listed(kubelet, plugin)
    await kubelet.restart(crash)
    await asyncio.wait_for(plugin.stream_closed.wait(), 60)
    assert not (plugin_dir / "tiny.sock").exists()
    assert (kubelet.capacity(), kubelet.allocatable()) == ({RESOURCE: 0}, {RESOURCE: 0})
    await plugin.stop()
    await plugin.serve()
    await listed(kubelet, plugin)
    assert kubelet.allocatable() == {RESOURCE: 2}


async def test_pods_keep_their_devices_and_answers_over_a_restart(kubelet, tiny):
    plugin = await tiny()
    await listed(kubelet, plugin)
    before = await kubelet.admit("pod", "main", RESOURCE, 1)
    await kubelet.restart(crash=True)
    assert kubelet.allocations() == (before,)
    assert (await kubelet.start_container("pod", "main")).envs["DEVICES"] == "a"
    await plugin.stop()
    await plugin.serve()
    await listed(kubelet, plugin)
    assert (await kubelet.admit("next", "main", RESOURCE, 1)).device_ids == ("b",)
    assert len(plugin.named("allocate")) == 2


async def test_another_simulator_in_the_same_directory_knows_the_pods_of_the_first(plugin_dir, tiny):
    async with KubeletSimulator(plugin_dir) as first:
        plugin = await tiny()
        await listed(first, plugin)
        held = await first.admit("pod", "main", RESOURCE, 2)
    async with KubeletSimulator(plugin_dir) as second:
        assert second.allocations() == (held,)
        assert second.release("pod")
    async with KubeletSimulator(plugin_dir) as third:
        assert third.allocations() == ()


async def test_a_resource_known_only_from_the_checkpoint_is_dropped_after_the_grace(plugin_dir, tiny, clock):
    async with KubeletSimulator(plugin_dir, clock=clock) as kubelet:
        plugin = await tiny()
        await listed(kubelet, plugin)
        await kubelet.admit("pod", "main", RESOURCE, 1)
        await kubelet.restart()
        clock.now += 301
        assert kubelet.capacity() == {RESOURCE: 0}
        assert len(kubelet.events.of(events.ResourceRemoved)) == 1
        with pytest.raises(ContainerStartError, match="endpoint not found in cache"):
            await kubelet.start_container("pod", "main")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[]", b"{", b'{"writer": "devhost kubelet simulator"}', b'{"writer": "x"}']
)
async def test_a_damaged_checkpoint_counts_as_empty(plugin_dir, content):
    (plugin_dir / "kubelet_internal_checkpoint").write_bytes(content)
    async with KubeletSimulator(plugin_dir) as kubelet:
        assert (kubelet.allocations(), kubelet.capacity()) == ((), {})


async def test_a_real_kubelets_checkpoint_is_never_overwritten(plugin_dir):
    file = plugin_dir / "kubelet_internal_checkpoint"
    file.write_text(json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": {}}, "Checksum": 1}))
    with pytest.raises(EnvironmentFailure, match="belongs to a real kubelet"):
        await KubeletSimulator(plugin_dir).start()
    assert "Checksum" in file.read_text()


async def test_a_live_kubelet_in_the_directory_is_not_touched(kubelet, tiny, plugin_dir):
    plugin = await tiny()
    await listed(kubelet, plugin)
    with pytest.raises(EnvironmentFailure, match="a kubelet already listens on"):
        await KubeletSimulator(plugin_dir).start()
    assert sorted(os.listdir(plugin_dir)) == ["kubelet.sock", "kubelet_internal_checkpoint", "tiny.sock"]
    assert kubelet.allocatable() == {RESOURCE: 2}


async def test_a_directory_that_vanishes_does_not_end_streams(kubelet, tiny, plugin_dir, make_devices):
    plugin = await tiny()
    await listed(kubelet, plugin)
    moved = plugin_dir.with_name(plugin_dir.name + "-moved")
    plugin_dir.rename(moved)
    plugin.push(*make_devices("a", "b", "c"))
    await kubelet.wait_for(lambda: kubelet.allocatable() == {RESOURCE: 3})
    moved.rename(plugin_dir)


async def test_unusable_directories_are_refused_in_one_line(plugin_dir):
    (plugin_dir / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match="cannot create the directory"):
        await KubeletSimulator(plugin_dir / "file").start()
    with pytest.raises(EnvironmentFailure, match="cannot create the directory"):
        await KubeletSimulator("/proc/devhost").start()
    with pytest.raises(EnvironmentFailure, match="Linux allows 107"):
        await KubeletSimulator(plugin_dir / ("x" * 100)).start()


@pytest.mark.usefixtures("ordinary_rights")
async def test_a_directory_that_is_not_writable_is_refused(plugin_dir):
    plugin_dir.chmod(0o500)
    with pytest.raises(EnvironmentFailure, match="is not writable"):
        await KubeletSimulator(plugin_dir).start()


async def test_special_characters_in_the_directory_are_supported(plugin_dir, tiny):
    odd = plugin_dir / "a b%20ü"
    odd.mkdir()
    async with KubeletSimulator(odd) as kubelet:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(kubelet.socket))


async def test_stopping_twice_is_harmless_and_starting_twice_is_an_error(kubelet):
    with pytest.raises(DevhostError, match="is already running"):
        await kubelet.start()
    await kubelet.stop()
    await kubelet.stop()
    assert not kubelet.running
    with pytest.raises(DevhostError, match="is not running"):
        kubelet.capacity()


async def test_a_failed_wait_lists_the_latest_events(kubelet):
    with pytest.raises(TimeoutError, match=r"not true within 0\.01 s; the latest events:\n  Started"):
        await kubelet.wait_for(lambda: False, timeout=0.01)


async def test_nothing_is_left_after_a_stop(plugin_dir, tiny, profile):
    """Tasks, threads, descriptors: the same number after ten runs with everything open as after one."""

    async def one_life() -> None:
        kubelet = KubeletSimulator(plugin_dir, profile)
        await kubelet.start()
        plugins = [await tiny(f"{n}.sock", f"example.com/r{n}") for n in range(3)]
        for plugin in plugins:
            await listed(kubelet, plugin)
        plugins[0].end_streams()
        plugins[1].silent.add("allocate")
        await kubelet.wait_for(lambda: kubelet.events.of(events.Disconnected))
        stuck = asyncio.create_task(kubelet.admit("pod", "main", "example.com/r1", 1))
        await kubelet.wait_for(lambda: kubelet.events.of(events.AllocateSent))
        kubelet.faults.inject(Point.REGISTER, hang)
        hung = asyncio.create_task(plugins[2].register())
        await kubelet.wait_for(lambda: len(kubelet.events.of(events.RegisterReceived)) >= 4)
        await kubelet.stop()
        await asyncio.gather(stuck, hung, return_exceptions=True)
        for plugin in plugins:
            await plugin.stop()

    def holdings() -> tuple[int, int, int]:
        tasks = sum(1 for task in asyncio.all_tasks() if task is not asyncio.current_task())
        return tasks, threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    await one_life()
    before = holdings()
    for _ in range(9):
        await one_life()
    deadline = asyncio.get_running_loop().time() + 60
    while any(now > then for now, then in zip(holdings(), before, strict=True)):
        assert asyncio.get_running_loop().time() < deadline, (before, holdings())
        await asyncio.sleep(0.02)  # the channels' descriptors are closed by gRPC in its own time
