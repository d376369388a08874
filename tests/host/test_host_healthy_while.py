"""`healthyWhile`: a device that fails the condition of its entry stays listed, Unhealthy, with the reason."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from devhost_testing.kubelet import events
from devhost_testing.node import Node
from status_values import status

from devhost.backend import AllocateRequest, Attribute, Backend, Device, DeviceNode, Edits, unhealthy

TOY, ALL = "example.com/toy", "example.com/all"
LINE = f"name: {TOY}, backend: toy, healthyWhile: {{model: x100}}"


def toys(*models: str) -> list[Device]:
    return [Device(f"d{n}", {"model": model, "index": n} if model else {}) for n, model in enumerate(models)]


def reasons(rig, resource: str = TOY) -> dict[str, str]:
    """The reason of each unhealthy token by its id; empty for healthy ones."""
    (found,) = [one for one in status(rig.host)["resources"] if one["name"] == resource]
    assert all((device["health"] == "Healthy") == (not device["reason"]) for device in found["devices"])
    return {device["id"]: device["reason"] for device in found["devices"]}


async def test_a_device_that_fails_the_condition_stays_listed_as_unhealthy_with_the_reason(rig, kubelet):
    """A Gaudi card that is resetting: with `where` it would leave the list, and the node's capacity."""
    rig.scripts["toy"].devices = toys("x100", "resetting")
    async with rig.running(LINE, allocatable={TOY: 1}):
        assert kubelet.capacity() == {TOY: 2}
        assert reasons(rig) == {"d0": "", "d1": 'model is "resetting", healthyWhile wants x100'}


async def test_a_device_without_the_attribute_is_unhealthy(rig, kubelet):
    rig.scripts["toy"].devices = toys("x100", "")
    async with rig.running(LINE, allocatable={TOY: 1}):
        assert reasons(rig)["d1"] == "the device has no model, healthyWhile wants x100"


async def test_a_device_changes_health_with_its_attribute_on_the_open_stream(rig, kubelet):
    rig.scripts["toy"].devices = toys("x100", "x100")
    async with rig.running(LINE, allocatable={TOY: 2}):
        since = kubelet.events.position
        rig.change("toy", toys("x100", "dead"))
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"d0"})
        rig.change("toy", toys("x100", "x100"))
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"d0", "d1"})
        assert not kubelet.events.of(events.StreamEnded, since=since)


async def test_the_reasons_of_the_backend_and_of_the_condition_are_both_shown(rig, kubelet):
    good, bad = toys("x100", "dead")
    rig.scripts["toy"].devices = [replace(good, health=unhealthy("too hot")), bad]
    rig.scripts["toy"].devices.append(replace(bad, id="d2", health=unhealthy("too hot")))
    async with rig.running(LINE):
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 3})
        failed = 'model is "dead", healthyWhile wants x100'
        assert reasons(rig) == {"d0": "too hot", "d1": failed, "d2": f"too hot; {failed}"}


async def test_one_device_may_be_healthy_in_one_resource_and_not_in_another(rig, kubelet):
    rig.scripts["toy"].devices = toys("x100", "x200")
    every = f"name: {ALL}, backend: toy, exclusive: false"
    async with rig.running(f"{LINE}, exclusive: false", every, allocatable={TOY: 1, ALL: 2}):
        assert reasons(rig, ALL) == {"d0": "", "d1": ""}


async def test_devices_that_fail_the_condition_are_not_allocated_together_with_others(rig, kubelet):
    rig.scripts["toy"].devices = toys("x100", "dead", "x100")
    async with rig.running(f"{LINE}, share: {{of: all}}", allocatable={TOY: 1}):
        given = (await kubelet.admit("pod", "main", TOY, 1)).response
        assert given.envs["DEVICES"] == "d0,d2"
        rig.change("toy", toys("dead", "dead", "dead"))
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 0})
        assert 'd0: model is "dead", healthyWhile wants x100' in reasons(rig)["all::0"]


async def test_each_device_of_a_template_and_each_replica_is_checked(rig, kubelet):
    rig.scripts["toy"].devices = toys("x100", "x200")
    rig.write('name: "example.com/{model}", backend: toy, share: {replicas: 3}, healthyWhile: {index: 0}')
    async with rig.running(allocatable={"example.com/x100": 3, "example.com/x200": 0}):
        assert kubelet.capacity() == {"example.com/x100": 3, "example.com/x200": 3}


async def test_an_edit_takes_effect_on_the_open_stream_and_keeps_running_pods(rig, kubelet):
    rig.scripts["toy"].devices = toys("x100", "x200")
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 2}):
        for number in range(2):
            await kubelet.admit(f"pod-{number}", "main", TOY, 1)
        since = kubelet.events.position
        for line, healthy in (
            (LINE, {"d0"}),
            (LINE.replace("x100", "x200"), {"d1"}),
            (f"name: {TOY}, backend: toy", {"d0", "d1"}),
        ):
            rig.write(line)
            await kubelet.wait_for(lambda healthy=healthy: kubelet.healthy(TOY) == healthy)
            assert kubelet.capacity() == {TOY: 2}
        assert not kubelet.events.of(events.StreamEnded, since=since)
        assert len(kubelet.allocations()) == 2


async def test_a_flapping_attribute_keeps_the_device_unhealthy_for_a_while(rig, kubelet):
    """As with the backend's verdicts: from the third failure within a minute on, a recovery must last."""
    rig.write(LINE)
    rig.scripts["toy"].devices = toys("x100", "x100")
    async with rig.running(allocatable={TOY: 2}):
        for _ in range(3):
            rig.change("toy", toys("x100", "dead"))
            await rig.until(lambda: reasons(rig)["d1"] == 'model is "dead", healthyWhile wants x100')
            rig.change("toy", toys("x100", "x100"))
            await rig.until(lambda: reasons(rig)["d1"] != 'model is "dead", healthyWhile wants x100')
        held = reasons(rig)["d1"]
        assert held.startswith("it fails again and again") and "healthyWhile wants x100" in held
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})  # without any further event
        rig.change("toy", toys("x100", "dead"))
        await rig.until(lambda: reasons(rig)["d1"] == 'model is "dead", healthyWhile wants x100')
        rig.change("toy", toys("x100", "x100"))
        rig.write(LINE.replace("x100", "x1??"))  # a condition that it has not failed yet
        rig.host.reload()
        await rig.until(
            lambda: rig.host.configuration.generation == 2 and reasons(rig) == {"d0": "", "d1": ""}
        )


async def test_a_device_injected_by_cdi_is_checked_as_well(rig, kubelet, specs):
    rig.scripts["toy"].devices = toys("x100", "dead")
    async with rig.running(f"{LINE}, inject: cdi", allocatable={TOY: 1}):
        assert reasons(rig)["d1"] == 'model is "dead", healthyWhile wants x100'
        rig.change("toy", toys("x100", "x100"))
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
        assert specs.devices().keys() == {"d0", "d1"}


class Apex(Backend):
    """A card with its state in a file that is only read if the configuration uses it."""

    name = "apex"
    attributes: ClassVar = {"sysattr.*": Attribute(str, "file of the device", "ALIVE")}

    def discover(self) -> Iterator[Device]:
        for card in sorted((self.context.root / "apex").iterdir()):
            files = {name.removeprefix("sysattr.") for name in self.context.wanted}
            texts = {f"sysattr.{file}": (card / file).read_text() for file in sorted(files)}
            yield Device(card.name, texts)

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits(nodes=tuple(DeviceNode(f"/dev/{device.id}") for device in request.devices))


async def test_an_attribute_that_only_the_condition_names_is_read(tmp_path: Path) -> None:
    """The status file of a Coral Edge TPU contains ALIVE or DEAD."""
    for number, state in enumerate(("ALIVE", "DEAD")):
        (tmp_path / f"root/apex/apex_{number}").mkdir(parents=True)
        (tmp_path / f"root/apex/apex_{number}/status").write_text(state)
    async with Node(tmp_path, Apex) as node:
        node.configure("resources: [{name: a.b/apex, backend: apex, healthyWhile: {sysattr.status: ALIVE}}]")
        async with node.served({"a.b/apex": 1}):
            assert node.kubelet.healthy("a.b/apex") == {"apex_0"}
            (tmp_path / "root/apex/apex_1/status").write_text("ALIVE")
            node.look("apex")
            await node.offers({"a.b/apex": 2})


async def test_a_new_condition_waits_until_the_backend_has_read_its_attributes(rig, kubelet):
    """An attribute that the backend has not read yet makes no device Unhealthy."""
    rig.scripts["toy"].devices = toys("", "")
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 2}):
        since = kubelet.events.position
        asked, answer = threading.Event(), threading.Event()

        def look() -> None:
            asked.set()
            answer.wait(60)

        rig.scripts["toy"].on_discover = look
        rig.write(LINE)
        rig.host.reload()
        try:
            await rig.until(lambda: rig.host.configuration.generation == 2 and asked.is_set())
            assert reasons(rig) == {"d0": "", "d1": ""}
            rig.scripts["toy"].devices = toys("x100", "dead")
        finally:
            answer.set()
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"d0"})
        lists = kubelet.events.of(events.ListReceived, since=since)
        assert all(device.health == "Healthy" for one in lists for device in one.devices if device.id == "d0")
