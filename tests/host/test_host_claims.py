"""What a container holds is given to no other, through changes of the file, of hardware, and restarts."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

from devhost_testing.kubelet import events as ev
from status_values import status

from devhost.backend import claim
from devhost.backend.model import Device, Holder
from devhost.planning.claims import UNNAMED

TOY, NEW, OTHER = "example.com/toy", "example.com/new", "example.com/other"
LINE, NEW_LINE = "name: example.com/toy, backend: toy", "name: example.com/new, backend: toy"
NARROW_LINE = NEW_LINE + ", where: {model: x100}"
OTHER_LINE = "name: example.com/other, backend: other"
SHARED = ", exclusive: false"
POD = Holder("default", "pod", "main")
POD_STATUS = {"namespace": "default", "pod": "pod", "container": "main"}


async def held(rig, kubelet, resource: str = TOY, pod: str = "pod") -> str:
    """A pod that holds a device, which the kubelet has reported."""
    await kubelet.wait_for(lambda: kubelet.healthy(resource))
    (token,) = (await kubelet.admit(pod, "main", resource, 1)).device_ids
    await rig.until(lambda: rig.host.allocations.of(resource).leases.holder(token))
    return token


def refused(host) -> dict[str, str]:
    return {refusal.device: refusal.reason for refusal in host.plan.refusals if refusal.kind == "held"}


def named(host) -> dict[str, tuple[Holder, ...]]:
    return {refusal.device: refusal.held_by for refusal in host.plan.refusals if refusal.kind == "held"}


async def test_a_reload_never_moves_a_held_device_to_another_resource(rig, kubelet):
    async with rig.running(LINE) as host:
        token = await held(rig, kubelet)
        rig.write(NARROW_LINE, LINE)
        await kubelet.wait_for(lambda: kubelet.healthy(NEW) == {"d0", "d1"} - {token})
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {token})
        (refusal,) = (r for r in status(host)["refusals"] if r["device"] == token and "[0]" in r["reason"])
        assert refusal["reason"] == (
            f"resources[0]: a pod holds it through {TOY}; it is free when that pod ends"
        )
        assert refusal["heldBy"] == [POD_STATUS]
        kubelet.release("pod")
        await kubelet.wait_for(lambda: kubelet.healthy(NEW) == {"d0", "d1"})
        await kubelet.wait_for(lambda: not kubelet.healthy(TOY))


async def test_devices_held_through_a_removed_resource_are_not_offered(rig, kubelet):
    async with rig.running(LINE) as host:
        token = await held(rig, kubelet)
        rig.write(NEW_LINE)
        await kubelet.wait_for(lambda: kubelet.healthy(NEW) == {"d0", "d1"} - {token})
        assert refused(host).keys() == {token}
        rig.write(LINE)
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"d0", "d1"})
        rig.write(NEW_LINE)
        await kubelet.wait_for(lambda: kubelet.healthy(NEW) == {"d0", "d1"} - {token})
        kubelet.release("pod")
        await kubelet.wait_for(lambda: kubelet.healthy(NEW) == {"d0", "d1"})


async def test_a_restart_with_another_file_never_offers_held_devices(rig, kubelet):
    async with rig.running(LINE):
        token = await held(rig, kubelet)
    async with rig.running(NEW_LINE, OTHER_LINE) as host:
        await kubelet.wait_for(lambda: kubelet.healthy(NEW))
        lists = [event.devices for event in kubelet.events.of(ev.ListReceived, NEW)]
        assert all(device.id != token for devices in lists for device in devices)
        assert "a pod holds it" in refused(host)[token]
        assert named(host)[token] == (POD,)
        kubelet.release("pod")
        await kubelet.wait_for(lambda: kubelet.healthy(NEW) == {"d0", "d1"})


async def test_a_shared_device_is_offered_by_both_resources_while_it_is_held(rig, kubelet):
    async with rig.running(LINE + SHARED):
        token = await held(rig, kubelet)
        rig.write(LINE + SHARED, NEW_LINE + SHARED)
        await kubelet.wait_for(lambda: kubelet.healthy(NEW) == {"d0", "d1"})
        assert kubelet.healthy(TOY) == {"d0", "d1"}
        rig.write(NARROW_LINE, LINE + SHARED)
        await kubelet.wait_for(lambda: kubelet.healthy(NEW) == {"d0", "d1"} - {token})


async def test_a_device_that_appears_while_a_part_of_it_is_held_is_refused_in_every_resource(rig, kubelet):
    card = frozenset({"pci:0000:3b:00.0"})
    part = Device("vf", claims=frozenset({"pci:0000:3b:00.1"}), part_of=card)
    rig.scripts["toy"].devices = [part]
    rig.scripts["other"].devices = []
    async with rig.running(OTHER_LINE, LINE) as host:
        await held(rig, kubelet)
        rig.change("other", [Device("card", claims=card)])
        rig.change("toy", [part, Device("a-pf", claims=card)])
        await rig.until(lambda: refused(host).keys() == {"a-pf", "card"})
        assert refused(host)["card"] == (
            "pci:0000:3b:00.0 is in use: a pod holds vf of backend toy through "
            "example.com/toy; it is free when that pod ends"
        )
        assert named(host)["card"] == (POD,)
        rig.change("toy", [Device("a-pf", claims=card)])  # the part vanishes; the pod still holds it
        await rig.until(lambda: "vf" not in host.scanners["toy"].devices)
        assert refused(host).keys() == {"a-pf", "card"}
        kubelet.release("pod")
        await kubelet.wait_for(lambda: kubelet.healthy(OTHER) == {"card"})


async def test_pods_keep_their_devices_while_their_backend_leaves_the_file_and_returns(rig, kubelet):
    async with rig.running(LINE) as host:
        token = await held(rig, kubelet)
        rig.write(OTHER_LINE)
        await rig.until(lambda: "toy" not in host.scanners)
        rig.write(NARROW_LINE, LINE)
        await kubelet.wait_for(lambda: kubelet.healthy(NEW) == {"d0", "d1"} - {token})
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {token})


async def test_backends_learn_which_claims_are_in_use_once_that_is_known(rig, kubelet):
    rig.scripts["toy"].devices = [Device("d0", claims=frozenset({"fpga:x"}), part_of=frozenset({"fpga:y"}))]
    async with rig.running(LINE) as host:
        await held(rig, kubelet)
        held_now = host.scanners["toy"].runner.context.held
        holder = claim.holder("default/pod", "toy", "d0")
        await rig.until(lambda: held_now() == {"fpga:x", "fpga:y", "device:toy/d0", holder})
        kubelet.release("pod")
        await rig.until(lambda: held_now() == frozenset())


async def test_an_allocation_in_progress_keeps_its_device_during_a_reload(rig, kubelet):
    asked, go_on = threading.Event(), threading.Event()

    def slow(devices):
        asked.set()
        go_on.wait(60)

    rig.write(LINE)
    rig.scripts["toy"].devices = rig.scripts["toy"].devices[:1]
    async with rig.running() as host:
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"d0"})
        rig.scripts["toy"].on_allocate = slow
        pod = asyncio.ensure_future(kubelet.admit("pod", "main", TOY, 1))
        await rig.until(asked.is_set)
        rig.write(NARROW_LINE, LINE)
        await rig.until(lambda: host.configuration.generation == 2)
        assert named(host) == {"d0": ()}
        assert refused(host) == {"d0": f"{UNNAMED} holds it through {TOY}; it is free when that pod ends"}
        go_on.set()
        assert (await pod).device_ids
        assert refused(host).keys() == {"d0"}


async def test_a_held_device_that_is_refused_in_its_own_resource_shows_why(rig, kubelet):
    """They became one PCI function after two pods had got them."""
    async with rig.running(LINE) as host:
        first, second = await held(rig, kubelet), await held(rig, kubelet, pod="other")
        rig.change("toy", [replace(d, claims=frozenset({"usb:1"})) for d in rig.scripts["toy"].devices])
        await kubelet.wait_for(lambda: not kubelet.healthy(TOY))
        (resource,) = status(host)["resources"]
        assert {
            device["id"]: (device["reason"], [holder["pod"] for holder in device["heldBy"]])
            for device in resource["devices"]
        } == {
            mine: (
                f"usb:1 is in use: a pod holds {its} of backend toy through {TOY}; "
                "it is free when that pod ends",
                [pod],
            )
            for mine, its, pod in ((first, second, "other"), (second, first, "pod"))
        }
