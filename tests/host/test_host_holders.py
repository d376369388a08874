"""Who holds what, as an operator reads it: shares, `of: all`, vanished devices, removed resources."""

from __future__ import annotations

from status_values import rows, status

from devhost.backend import Device
from devhost.backend.model import Holder
from devhost.host.shown.shortages import holders

TOY = "example.com/toy"
TOY_LINE = "name: example.com/toy, backend: toy"
MAIN = {"namespace": "default", "pod": "pod", "container": "main"}


def held(host):
    """The holders by resource and token, of listed tokens."""
    return {
        (resource["name"], device["id"]): device["holder"]
        for resource in status(host)["resources"]
        for device in resource["devices"]
        if device["allocated"]
    }


async def test_each_share_of_a_device_names_its_holder(rig, kubelet):
    async with rig.running(TOY_LINE + ", share: {replicas: 3}", allocatable={TOY: 6}) as host:
        one = (await kubelet.admit("pod", "main", TOY, 3)).device_ids
        two = (await kubelet.admit("other", "side", TOY, 2)).device_ids
        await rig.until(lambda: all(held(host).values()) and len(held(host)) == 5)
        assert {held(host)[TOY, token]["pod"] for token in one} == {"pod"}
        assert {held(host)[TOY, token]["container"] for token in two} == {"side"}
        series = list(holders(host.now()))
        assert len(series) == len(set(series)) <= 4  # a series for a device and container, not for a share
        assert {str(holder) for _, _, holder in series} == {"default/pod/main", "default/other/side"}


async def test_with_of_all_the_container_holds_each_device(rig, kubelet):
    async with rig.running(TOY_LINE + ", share: {replicas: 100, of: all}", allocatable={TOY: 100}) as host:
        (token,) = (await kubelet.admit("pod", "main", TOY, 1)).device_ids
        await rig.until(lambda: held(host) == {(TOY, token): MAIN})
        holder = Holder("default", "pod", "main")
        assert list(holders(host.now())) == [(TOY, "d0", holder), (TOY, "d1", holder)]
        kubelet.release("pod")
        await rig.until(lambda: not list(holders(host.now())))


async def test_a_vanished_device_stays_unhealthy_and_names_its_holder_until_it_is_released(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        (token,) = (await kubelet.admit("pod", "main", TOY, 1)).device_ids
        await rig.until(lambda: held(host) == {(TOY, token): MAIN})
        rig.change("toy", [device for device in rig.scripts["toy"].devices if device.id != token])
        await rig.until(lambda: rows(host)[token]["health"] == "Unhealthy")
        assert rows(host)[token]["reason"] == "the device is gone"
        assert rows(host)[token]["holder"] == MAIN
        assert status(host)["held"] == []
        kubelet.release("pod")
        await rig.until(lambda: token not in rows(host))


async def test_allocations_of_a_removed_resource_are_shown(rig, kubelet):
    """This holds after a restart, too, when only the kubelet knows the resource."""
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        (token,) = (await kubelet.admit("pod", "main", TOY, 1)).device_ids
        await rig.until(lambda: held(host) == {(TOY, token): MAIN})
        rig.write("name: example.com/renamed, backend: toy")
        await rig.until(lambda: status(host)["held"])
    expected = {
        "resource": TOY,
        "id": token,
        "devices": [token],
        "holder": MAIN,
        "reason": "devhost does not serve this resource now",
    }
    async with rig.running() as host:
        await rig.until(lambda: status(host)["held"] == [expected])
        await rig.until(lambda: [one["heldBy"] for one in status(host)["refusals"]] == [[MAIN]])
        kubelet.release("pod")
        await rig.until(lambda: not status(host)["held"])


async def test_allocations_from_before_another_way_of_sharing_are_shown(rig, kubelet):
    rig.scripts["toy"].devices = [Device(id="d0", attributes={"model": "x100", "index": 0})]
    async with rig.running(TOY_LINE, allocatable={TOY: 1}) as host:
        await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(lambda: held(host) == {(TOY, "d0"): MAIN})
        rig.write(TOY_LINE + ", share: {replicas: 2}")
        await rig.until(
            lambda: {"d0::0", "d0::1"} <= {d["id"] for d in status(host)["resources"][0]["devices"]}
        )
        listed = [one["id"] for one in status(host)["held"]] + [token for _, token in held(host)]
        assert listed == ["d0"]
