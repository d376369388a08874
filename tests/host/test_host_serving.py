"""What the kubelet gets from a host over real sockets, in both profiles."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from devhost_testing.kubelet import KubeletSimulator
from devhost_testing.kubelet import events as ev

from devhost.backend.model import unhealthy

TOY = "example.com/toy"


def registrations(kubelet: KubeletSimulator, resource: str = TOY) -> int:
    return len(kubelet.events.of(ev.Registered, resource))


async def test_every_resource_is_registered_once_with_all_its_devices(rig, kubelet):
    rig.write("name: example.com/toy, backend: toy", "name: example.com/other, backend: other")
    async with rig.running(allocatable={TOY: 2, "example.com/other": 1}):
        assert {d.id: d.numa_nodes for d in kubelet.devices(TOY)} == {"d0": (0,), "d1": (1,)}
    assert registrations(kubelet) == 1
    assert registrations(kubelet, "example.com/other") == 1


async def test_a_pod_gets_the_edits_of_exactly_its_devices(rig, kubelet):
    async with rig.running("name: example.com/toy, backend: toy", allocatable={TOY: 2}):
        allocation = await kubelet.admit("pod", "main", TOY, 2)
        assert dict(allocation.response.envs) == {"DEVICES": "d0,d1"}
        assert [spec.host_path for spec in allocation.response.devices] == ["/dev/null"]


async def test_replicas_of_one_device_share_its_edits(rig, kubelet):
    async with rig.running("name: example.com/toy, backend: toy, share: {replicas: 3}", allocatable={TOY: 6}):
        ids = {device.id for device in kubelet.devices(TOY)}
        assert ids == {f"d{n}::{k}" for n in (0, 1) for k in (0, 1, 2)}
        allocation = await kubelet.admit("pod", "main", TOY, 1)
        assert allocation.response.envs["DEVICES"] in ("d0", "d1")


async def test_what_a_probe_finds_is_listed_although_no_device_has_changed(rig, kubelet):
    async with rig.running("name: example.com/toy, backend: toy", allocatable={TOY: 2}) as host:
        host.scanners["toy"].health.apply_probe({"d0": unhealthy("it does not answer")})
        host.replan()
        await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 1)


async def test_a_flapping_one_of_devices_that_are_shared_together_is_usable_after_its_hold(rig, kubelet):
    rig.write("name: example.com/toy, backend: toy, share: {of: all, replicas: 2}")

    def usable() -> dict[str, bool]:
        return host.services[TOY].inventory.snapshot.devices() if TOY in host.services else {}

    async with rig.running() as host:
        await rig.until(lambda: usable() == {"d0": True, "d1": True})
        healthy = rig.scripts["toy"].devices
        hot = [replace(healthy[0], health=unhealthy("hot")), *healthy[1:]]
        for _ in range(3):
            rig.change("toy", hot)
            await rig.until(lambda: not usable()["d0"])
            rig.change("toy", healthy)
            await rig.until(lambda: usable()["d0"])


async def test_a_change_after_a_kubelet_restart_still_arrives(rig, kubelet):
    async with rig.running("name: example.com/toy, backend: toy", allocatable={TOY: 2}):
        await kubelet.restart()
        await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 2)
        rig.change("toy", [*rig.scripts["toy"].devices, replace(rig.scripts["toy"].devices[0], id="d9")])
        await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 3)


@pytest.mark.conformance(19)
async def test_a_vanished_device_is_unhealthy_first_and_then_leaves_the_list(rig, kubelet):
    async with rig.running("name: example.com/toy, backend: toy", allocatable={TOY: 2}):
        rig.change("toy", rig.scripts["toy"].devices[:1])
        await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 1)
        assert kubelet.capacity()[TOY] == 2
        await kubelet.wait_for(lambda: kubelet.capacity().get(TOY) == 1)


@pytest.mark.conformance(19)
@pytest.mark.field_failure("F21")
async def test_a_device_that_vanishes_while_a_pod_has_it_stays_unhealthy(rig, kubelet):
    async with rig.running("name: example.com/toy, backend: toy", allocatable={TOY: 2}) as host:
        allocation = await kubelet.admit("pod", "main", TOY, 1)
        (held,) = allocation.device_ids
        left = [device for device in rig.scripts["toy"].devices if device.id != held]
        rig.change("toy", left)
        await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 1)
        await asyncio.sleep(2 * rig.timing.allocation.grace)
        assert kubelet.capacity()[TOY] == 2
        entry = host.services[TOY].inventory.snapshot.entries[held]
        assert entry.health.reason == "the device is gone"


@pytest.mark.conformance(20)
async def test_a_resource_stays_at_zero_when_its_last_device_goes(rig, kubelet):
    async with rig.running("name: example.com/toy, backend: toy", allocatable={TOY: 2}):
        gone = rig.scripts["toy"].devices[0]
        rig.change("toy", [])
        await kubelet.wait_for(lambda: kubelet.capacity().get(TOY) == 0)
        rig.change("toy", [gone])
        await kubelet.wait_for(lambda: kubelet.capacity().get(TOY) == 1)
        assert registrations(kubelet) == 1


async def test_a_resource_without_devices_is_registered_only_on_request(rig, kubelet):
    rig.scripts["toy"].devices = []
    rig.scripts["other"].devices = []
    rig.write(
        "name: example.com/toy, backend: toy",
        "name: example.com/eager, backend: other, whenEmpty: register",
    )
    async with rig.running():
        await kubelet.wait_for(lambda: kubelet.capacity() == {"example.com/eager": 0})


@pytest.mark.conformance(43)
async def test_a_failing_backend_keeps_its_list_and_affects_no_other(rig, kubelet):
    rig.write("name: example.com/toy, backend: toy", "name: example.com/other, backend: other")
    async with rig.running() as host:
        await kubelet.wait_for(lambda: len(kubelet.allocatable()) == 2)

        def fail():
            raise OSError("the driver is busy")

        rig.scripts["toy"].on_discover = fail
        rig.change("toy", [])
        await rig.until(lambda: host.scanners["toy"].condition.state == "degraded")
        assert host.scanners["toy"].condition.reason == "backend toy failed: OSError: the driver is busy"
        rig.change("other", [*rig.scripts["other"].devices, replace(rig.scripts["other"].devices[0], id="n")])
        await kubelet.wait_for(lambda: kubelet.allocatable().get("example.com/other") == 2)
        assert kubelet.allocatable()[TOY] == 2


async def test_stopping_ends_streams_unlinks_sockets_and_keeps_the_count(rig, kubelet):
    async with rig.running("name: example.com/toy, backend: toy", allocatable={TOY: 2}) as host:
        path = host.services[TOY].registration.server.path
    assert not path.exists()
    await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 0)
    assert kubelet.capacity()[TOY] == 2
    assert kubelet.socket.exists()
