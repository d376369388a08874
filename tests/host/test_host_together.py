"""`share: {of: all}` over real sockets: the list stays, and pods get the present devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from devhost_testing.kubelet import events as ev
from status_values import status

from devhost.backend import AllocationError
from devhost.backend.model import unhealthy

TOY = "example.com/toy"
LINE = "name: example.com/toy, backend: toy, share: {replicas: 3, of: all}"
TOKENS = {"all::0", "all::1", "all::2"}


async def given(kubelet, pod: str, count: int = 1) -> str:
    return (await kubelet.admit(pod, "main", TOY, count)).response.envs["DEVICES"]


def lists(kubelet) -> int:
    return len(kubelet.events.of(ev.ListReceived, TOY))


async def test_every_pod_gets_every_device_and_the_number_of_pods_is_bounded(rig, kubelet):
    async with rig.running(LINE, allocatable={TOY: 3}):
        assert {device.id for device in kubelet.devices(TOY)} == TOKENS
        assert all(device.numa_nodes == () for device in kubelet.devices(TOY))
        assert await given(kubelet, "one") == "d0,d1"
        assert await given(kubelet, "two", 2) == "d0,d1"
        assert not kubelet.healthy(TOY) - kubelet.in_use(TOY)


async def test_plugging_changes_what_a_pod_gets_and_not_the_list(rig, kubelet):
    async with rig.running(LINE, allocatable={TOY: 3}) as host:
        before, devices = lists(kubelet), rig.scripts["toy"].devices
        rig.change("toy", [*devices, replace(devices[0], id="d2")])
        await rig.until(lambda: "d2" in host.services[TOY].inventory.snapshot.devices())
        assert await given(kubelet, "one") == "d0,d1,d2"
        rig.change("toy", [devices[0], replace(devices[1], health=unhealthy("port 1 is down"))])
        await rig.until(lambda: host.services[TOY].inventory.snapshot.devices() == {"d0": True, "d1": False})
        assert await given(kubelet, "two") == "d0"
        assert lists(kubelet) == before
        (resource,) = status(host)["resources"]
        assert [(m["device"], m["reason"]) for m in resource["together"]] == [
            ("d0", ""),
            ("d1", "port 1 is down"),
        ]
        got = {tuple(device["given"]) for device in resource["devices"]}
        assert got == {("d0", "d1", "d2"), ("d0",), ()}
        assert {device["device"] for device in resource["devices"]} == {"all"}


async def test_a_device_that_cannot_be_allocated_is_omitted_and_logged(rig, kubelet, caplog):
    def refuse(devices):
        if any(device.id == "d1" for device in devices):
            raise AllocationError("the card is being reset")

    rig.scripts["toy"].on_allocate = refuse
    async with rig.running(LINE, allocatable={TOY: 3}):
        assert await given(kubelet, "one") == "d0"
    logged = [r for r in caplog.records if r.getMessage() == "a container does not get a device"]
    assert len(logged) == 1


async def test_sharing_can_be_changed_between_each_and_all_while_pods_run(rig, kubelet):
    async with rig.running("name: example.com/toy, backend: toy", allocatable={TOY: 2}) as host:
        held = (await kubelet.admit("old", "main", TOY, 1)).device_ids[0]
        rig.write(LINE)
        await kubelet.wait_for(lambda: {d.id for d in kubelet.devices(TOY)} == TOKENS | {held})
        assert kubelet.healthy(TOY) == set()  # each token includes the device that the pod holds exclusively
        kubelet.release("old")
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == TOKENS)
        assert await given(kubelet, "new") == "d0,d1"
        rig.write("name: example.com/toy, backend: toy")
        await kubelet.wait_for(lambda: {"d0", "d1"} <= {d.id for d in kubelet.devices(TOY)})
        assert kubelet.healthy(TOY) == set()
        await rig.until(lambda: host.allocations.of(TOY).leases.holder("all::0"))
        kubelet.release("new")
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"d0", "d1"})
        assert host.services[TOY].registration.condition.registrations == 1


@pytest.mark.parametrize("alike", [True, False])
async def test_a_pod_gets_the_same_devices_by_cdi(rig, kubelet, tmp_path, alike):
    """Devices are named one by one if that gives the same, otherwise by the name of a set."""
    rig.scripts["toy"].nodes = {"d0": "/dev/null", "d1": "/dev/zero", "d2": "/dev/full"}
    if alike:
        allocate = rig.classes["toy"].allocate
        rig.classes["toy"].allocate = lambda self, request: replace(allocate(self, request), env={})
    rig.write(LINE + ", inject: cdi")
    rig.config.write_text(rig.config.read_text() + f"cdi: {{directory: {tmp_path / 'cdi'}}}\n")
    async with rig.running(allocatable={TOY: 3}) as host:
        response = (await kubelet.admit("pod", "main", TOY, 2)).response
        names = [device.name.partition("=")[2] for device in response.cdi_devices]
        if alike:
            assert names == ["d0", "d1"]
        else:
            assert len(names) == 1 and names[0] not in ("d0", "d1")
        (file,) = (tmp_path / "cdi").iterdir()
        rig.change("toy", rig.scripts["toy"].devices[:1])
        await rig.until(lambda: host.services[TOY].inventory.snapshot.devices() == {"d0": True})
        # another pod causes a new file: the names of the first pod must still be in it
        await kubelet.admit("late", "main", TOY, 1)
        text = file.read_text()
        assert all(f'"{name}"' in text for name in names)
