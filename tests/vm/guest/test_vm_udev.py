"""The default backend, with real disks that come and go."""

from __future__ import annotations

from pathlib import Path

DISKS = "example.com/disk"
ENTRY = {
    "name": DISKS,
    "backend": "udev",
    "where": {"subsystem": "block", "devType": "disk", "sysName": "nvme*"},
    "whenEmpty": "register",
}


async def test_a_plugged_disk_is_listed_and_serves_a_pod_and_a_pulled_one_is_not(node, slots):
    await node.serve(ENTRY)
    await node.shows(DISKS, healthy=1)
    before = node.kubelet.healthy(DISKS)

    since = node.kubelet.events.position
    await slots.plug("nvme", "disk", "free0", serial="plugged", drive="spare0")
    await node.shows(DISKS, healthy=2)
    lists = [{device.id for device in one.devices} for one in node.lists(DISKS, since)]
    assert lists and all(before <= ids for ids in lists)  # none on the way without the disk that was there
    (token,) = node.kubelet.healthy(DISKS) - before
    assert (await node.device(DISKS, token))["device"]

    allocation = await node.admit("pod", DISKS, 2)
    disks = {spec.host_path for spec in allocation.response.devices}
    assert len(disks) == 2 and all(Path(disk).is_block_device() for disk in disks)
    node.kubelet.release("pod")

    await slots.pull("disk")
    await node.shows(DISKS, healthy=1, total=2)  # a pod had it: it stays, and is not handed out


async def test_the_same_disk_plugged_again_is_the_same_device(node, slots):
    await node.serve(ENTRY)
    await node.shows(DISKS, healthy=1)
    tokens = []
    for _ in range(2):
        await slots.plug("nvme", "disk", "free1", serial="twice", drive="spare1")
        await node.shows(DISKS, healthy=2)
        tokens.append(node.kubelet.healthy(DISKS))
        await slots.pull("disk")
        await node.shows(DISKS, healthy=1)
    assert tokens[0] == tokens[1]


async def test_hot_plug_works_after_a_restart_of_udevd(node, slots, udevd):
    await node.serve(ENTRY)
    await node.shows(DISKS, healthy=1)
    udevd.restart()
    await slots.plug("nvme", "disk", "free0", serial="restarted", drive="spare0")
    await node.shows(DISKS, healthy=2)
