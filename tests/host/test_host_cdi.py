"""`inject: cdi` over real sockets: a specification is written before the list with its devices is sent."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from dataclasses import replace

import pytest
from cdi_scene import OTHER, OTHER_LINE, TOY, TOY_LINE, each_list
from devhost_testing import runtime
from devhost_testing.kubelet import UnexpectedAdmissionError
from devhost_testing.kubelet import events as ev

from devhost.allocation.cdi import injector
from devhost.backend import AllocationError, Device, DeviceNode, Edits, Mount
from devhost.backend.model import unhealthy


@pytest.mark.conformance(52)
async def test_every_list_has_only_devices_that_the_specification_contains(rig, kubelet, specs):
    lists = []

    def look(ids, healthy):
        lists.append((ids, healthy, set(specs.devices())))

    async with rig.running(TOY_LINE, allocatable={TOY: 2}, changed=each_list(rig, look)):
        new = Device(id="d2", attributes={"model": "x100", "index": 2})
        rig.change("toy", [*rig.scripts["toy"].devices, new])
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 3})
        rig.change("toy", rig.scripts["toy"].devices[1:])
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 2})
        await rig.until(lambda: specs.devices().keys() == {"d1", "d2"})
    assert lists[0][0] == {"d0", "d1"}  # never an empty one first
    for ids, healthy, specified in lists:
        if ids:  # the last list, when the host stops, may come in between
            assert healthy <= specified


async def test_the_file_describes_what_a_container_gets_and_is_readable_by_all(rig, kubelet, specs):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        status = os.stat("/dev/null")  # noqa: PTH116
        assert specs.document()["cdiVersion"] == "0.3.0"
        assert specs.document()["kind"] == specs.kind()
        assert specs.devices()["d0"] == {
            "env": ["DEVICE_d0=1"],
            "deviceNodes": [
                {
                    "path": "/dev/null",
                    "type": "c",
                    "major": 1,
                    "minor": 3,
                    "permissions": "rw",
                    "fileMode": stat.S_IMODE(status.st_mode),
                    "uid": status.st_uid,
                    "gid": status.st_gid,
                }
            ],
        }
        assert stat.S_IMODE(specs.path().stat().st_mode) == 0o644


async def test_an_answer_has_names_and_annotations_and_nothing_directly(rig, kubelet, specs):
    allocate = rig.classes["toy"].allocate
    rig.classes["toy"].allocate = lambda self, request: replace(
        allocate(self, request),
        annotations={"example.com/note": "x"},
        mounts=(Mount("/tmp", "/card"),),
        cdi_devices=("vendor.com/extra=0",),
    )
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        response = (await kubelet.admit("pod", "main", TOY, 2)).response
        names = [f"{specs.kind()}=d0", f"{specs.kind()}=d1", "vendor.com/extra=0"]
        assert [device.name for device in response.cdi_devices] == names
        assert dict(response.annotations) == {"example.com/note": "x"}
        assert not response.devices and not response.mounts and not response.envs


@pytest.mark.conformance(52)
async def test_both_ways_of_injection_give_a_container_the_same(rig, kubelet, specs):
    """This includes devices that together get something else than each alone: a variable with all ids."""
    rig.scripts["other"].devices = rig.scripts["toy"].devices
    rig.scripts["other"].nodes = rig.scripts["toy"].nodes
    for name in ("toy", "other"):

        def allocate(self, request, nodes=rig.scripts[name].nodes):
            return Edits(
                tuple(
                    DeviceNode(nodes[device.id], f"/dev/card-{device.id}", "rwm")
                    for device in request.devices
                ),
                (Mount("/tmp", "/card", read_only=False),),
                {"CARDS": ",".join(device.id for device in request.devices)},
            )

        rig.classes[name].allocate = allocate
    async with rig.running(TOY_LINE, OTHER_LINE, allocatable={TOY: 2, OTHER: 2}):
        for count in (1, 2):
            named = (await kubelet.admit("pod", "named", TOY, count)).response
            direct = (await kubelet.admit("pod", "direct", OTHER, count)).response
            names = [device.name for device in named.cdi_devices]
            assert runtime.by_cdi(rig.cdi, names) == runtime.direct([direct])
            if count == 1:
                kubelet.release("pod")
        before = specs.devices()
    async with rig.running(allocatable={TOY: 2, OTHER: 2}):
        assert specs.devices() == before  # the name of the set is still valid after a restart


async def test_replicas_of_a_device_share_its_name(rig, kubelet, specs):
    async with rig.running(TOY_LINE + ", share: {replicas: 3}", allocatable={TOY: 6}):
        assert specs.devices().keys() == {"d0", "d1"}
        response = (await kubelet.admit("pod", "main", TOY, 2)).response
        assert {device.name for device in response.cdi_devices} <= {
            f"{specs.kind()}=d0",
            f"{specs.kind()}=d1",
        }


async def test_specifications_of_two_writers_for_the_same_devices_both_work(rig, kubelet, specs):
    """A vendor's tool may use the resource's name as the kind, and the same device names."""
    rig.cdi.mkdir()
    edits = {"deviceNodes": [{"path": "/dev/null"}]}
    theirs = rig.cdi / "vendor.json"
    text = json.dumps(
        {"cdiVersion": "0.3.0", "kind": TOY, "devices": [{"name": "d0", "containerEdits": edits}]}
    )
    theirs.write_text(text)
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        response = (await kubelet.admit("pod", "main", TOY, 2)).response
        ours = runtime.by_cdi(rig.cdi, [device.name for device in response.cdi_devices])
        assert ours.nodes == {"/dev/null": "/dev/null", "/dev/zero": "/dev/zero"}
        assert runtime.by_cdi(rig.cdi, [f"{TOY}=d0"]).nodes == {"/dev/null": "/dev/null"}
        assert theirs.read_text() == text


async def test_a_device_whose_edits_fail_is_unhealthy_with_the_reason_until_they_succeed(rig, kubelet, specs):
    def refuse(devices):
        if devices[0].id == "d1":
            raise AllocationError("the card is being reset")

    rig.scripts["toy"].on_allocate = refuse
    async with rig.running(TOY_LINE, allocatable={TOY: 1}) as host:
        assert kubelet.capacity() == {TOY: 2}
        assert specs.devices().keys() == {"d0"}
        entry = host.services[TOY].inventory.snapshot.entries["d1"]
        assert entry.health == unhealthy("the card is being reset")
        rig.scripts["toy"].on_allocate = lambda devices: None
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
        assert specs.devices().keys() == {"d0", "d1"}


@pytest.mark.parametrize("what", ["absent", "file"])
async def test_a_missing_or_impossible_node_is_named(rig, kubelet, specs, tmp_path, what):
    (tmp_path / "file").touch()
    path = rig.scripts["toy"].nodes["d1"] = str(tmp_path / what)
    async with rig.running(TOY_LINE, allocatable={TOY: 1}) as host:
        reason = host.services[TOY].inventory.snapshot.entries["d1"].health.reason
        cause = "does not exist on the node" if what == "absent" else "is not a device node"
        assert path in reason and cause in reason
        assert specs.devices().keys() == {"d0"}


async def test_a_hung_backend_does_not_keep_the_resource_from_being_listed(rig, kubelet, specs):
    over = threading.Event()
    rig.hurry_allocation(render=0.5)
    rig.scripts["toy"].on_allocate = lambda devices: over.wait()
    async with rig.running(TOY_LINE, OTHER_LINE, allocatable={TOY: 0, OTHER: 1}) as host:
        assert host.services[TOY].inventory.snapshot.entries["d1"].health.reason == (
            "backend toy did not answer within 0.5 s when serving a container"
        )
        over.set()
        rig.scripts["toy"].on_allocate = lambda devices: None
        await kubelet.wait_for(lambda: kubelet.allocatable()[TOY] == 2)


async def test_allocate_writes_changes_that_caused_no_event(rig, kubelet, specs):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        rig.scripts["toy"].nodes["d0"] = "/dev/random"
        specs.path().write_text("somebody was here")
        response = (await kubelet.admit("pod", "main", TOY, 1)).response
        assert specs.resolve(response)["node", "/dev/random"]["permissions"] == "rw"
        specs.path().unlink()
        await kubelet.admit("pod-2", "main", TOY, 1)
        assert specs.devices().keys() == {"d0", "d1"}


async def test_a_changed_device_is_rendered_again(rig, kubelet, specs):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        inode = specs.path().stat().st_ino
        rig.host.reload()
        await rig.until(lambda: rig.host.configuration.generation == 2)
        assert specs.path().stat().st_ino == inode  # nothing changed, nothing written
        rig.scripts["toy"].nodes["d0"] = "/dev/random"
        first, *rest = rig.scripts["toy"].devices
        rig.change("toy", [replace(first, attributes={"model": "x200", "index": 0}), *rest])
        await rig.until(lambda: specs.devices()["d0"]["deviceNodes"][0]["path"] == "/dev/random")


async def test_the_file_is_removed_with_the_last_device_and_written_again(rig, kubelet, specs):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        good = rig.scripts["toy"].devices
        rig.change("toy", [])
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 0})
        await rig.until(lambda: not specs.path().exists())
        rig.change("toy", good)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
        assert specs.devices().keys() == {"d0", "d1"}


async def test_changing_the_way_of_injection_registers_again(rig, kubelet, specs):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        rig.write("name: example.com/toy, backend: toy")
        await kubelet.wait_for(lambda: len(kubelet.events.of(ev.Registered, TOY)) >= 2)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
        response = (await kubelet.admit("pod", "main", TOY, 1)).response
        assert response.devices and not response.cdi_devices


async def test_a_new_directory_in_the_configuration_moves_the_file(rig, kubelet, specs, tmp_path):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        old, rig.cdi = specs.path(), tmp_path / "elsewhere"
        rig.write(TOY_LINE)
        await rig.until(lambda: specs.path().exists() and not old.exists())
        assert len(kubelet.events.of(ev.Registered, TOY)) == 1


async def test_an_unwritable_directory_affects_only_its_resource(rig, kubelet, specs):
    rig.cdi.touch()  # a file in place of the directory: even root cannot write into it
    async with rig.running(TOY_LINE, OTHER_LINE, allocatable={TOY: 0, OTHER: 1}) as host:
        assert kubelet.capacity()[TOY] == 2
        reason = host.services[TOY].inventory.snapshot.entries["d0"].health.reason
        assert reason.startswith(f"cannot write {specs.path()}: ")
        with pytest.raises(UnexpectedAdmissionError):
            await kubelet.admit("pod", "main", TOY, 1)
        rig.cdi.unlink()
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, OTHER: 1})
        await kubelet.admit("pod", "main", TOY, 1)


async def test_a_write_that_fails_at_allocate_fails_the_pod_with_the_reason(rig, kubelet, specs):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        specs.path().unlink()
        rig.cdi.rmdir()
        rig.cdi.touch()
        with pytest.raises(UnexpectedAdmissionError, match=f"example.com/toy: cannot write {specs.path()}: "):
            await kubelet.admit("pod", "main", TOY, 1)


async def test_a_hung_backend_does_not_keep_the_host_from_stopping(rig, kubelet, specs):
    over, asked = threading.Event(), threading.Event()

    def hang(devices):
        asked.set()
        over.wait()

    # longer than the rig waits for the host's end
    rig.timing = replace(rig.timing, leave=60.0)
    rig.hurry_allocation(render=60.0)
    rig.scripts["toy"].on_allocate = hang
    async with rig.running(TOY_LINE):
        await rig.until(asked.is_set)
    over.set()


async def test_a_new_backend_object_is_asked_again_and_no_device_becomes_unhealthy_meanwhile(
    rig, kubelet, specs
):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        before, class_ = kubelet.events.position, rig.classes["toy"]
        rig.scripts["toy"].nodes["d0"] = "/dev/random"
        rig.classes["toy"] = type("Edited", (class_,), {})
        rig.write(TOY_LINE + ", prefer: pack")
        await rig.until(lambda: host.scanners["toy"].runner.backend_class is rig.classes["toy"])
        await rig.until(lambda: specs.devices()["d0"]["deviceNodes"][0]["path"] == "/dev/random")
        assert not kubelet.events.of(ev.Registered, TOY, since=before)
        assert kubelet.allocatable() == {TOY: 2}


async def test_a_first_list_waits_for_a_backend_that_was_replaced(rig, kubelet, specs):
    rig.write("name: example.com/toy, backend: toy")
    go = threading.Event()
    lists = []
    follow = each_list(rig, lambda ids, healthy: lists.append(healthy))
    async with rig.running(allocatable={TOY: 2}) as host:
        before = host.services[TOY]
        rig.scripts["toy"].on_discover = go.wait
        rig.classes["toy"] = type("Edited", (rig.classes["toy"],), {})
        rig.write(TOY_LINE)
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 0})
        await rig.until(lambda: host.services.get(TOY) not in (None, before))
        assert host.scanners["toy"].runner.backend_class is rig.classes["toy"]
        follow()
        go.set()
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
        assert [healthy for healthy in lists if healthy] == [{"d0", "d1"}]


async def test_each_resource_of_a_template_has_a_file(rig, kubelet, specs):
    rig.write("name: 'example.com/toy-{model}', backend: toy, inject: cdi")
    both = {"example.com/toy-x100": 2, "example.com/toy-y.200": 1}
    rig.scripts["toy"].devices.append(Device(id="d2", attributes={"model": "y+200", "index": 2}))
    async with rig.running(allocatable=both):
        assert specs.document("example.com/toy-x100")["cdiVersion"] == "0.3.0"
        assert specs.document("example.com/toy-y.200")["cdiVersion"] == "0.6.0"


async def test_no_device_is_listed_until_the_file_with_all_of_them_is_written(rig, kubelet, specs):
    """A plan is made while one of two new devices is rendered and the other one is not yet."""
    rig.write(TOY_LINE)
    asked, go_on = threading.Event(), threading.Event()
    answer = rig.scripts["toy"].on_allocate

    def slow(devices):
        if [device.id for device in devices] == ["d3"]:
            asked.set()
            go_on.wait(60)
        answer(devices)

    async with rig.running(allocatable={TOY: 2}) as host:
        rig.scripts["toy"].on_allocate = slow
        rig.change("toy", [Device(f"d{n}", {"model": "x100", "index": n}) for n in range(4)])
        await rig.until(asked.is_set)
        host.replan(None)
        assert host.services[TOY].inventory.snapshot.entries.keys() == {"d0", "d1"}
        go_on.set()
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 4})


async def test_a_device_that_is_plugged_in_again_is_healthy_as_soon_as_it_is_listed(rig, kubelet, specs):
    reasons = []
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        first, second = rig.scripts["toy"].devices
        rig.change("toy", [first])
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1})
        inventory = host.services[TOY].inventory
        inventory.subscribe(lambda: reasons.append(inventory.snapshot.entries["d1"].health.reason))
        rig.change("toy", [first, replace(second)])
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
        assert not reasons[-1] and injector.WRITING not in reasons


async def test_an_unhealthy_device_is_listed_with_its_reason_without_being_in_the_file(rig, kubelet, specs):
    first, second = rig.scripts["toy"].devices
    rig.scripts["toy"].devices = [first, replace(second, health=unhealthy("too hot"))]
    async with rig.running(TOY_LINE):
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1} and kubelet.capacity() == {TOY: 2})
        assert specs.devices().keys() == {"d0"}


async def test_devices_in_the_file_are_allocated_while_nothing_new_can_be_written(
    rig, kubelet, specs, monkeypatch
):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        monkeypatch.setattr(os, "fsync", full)
        rig.change("toy", [Device(f"d{n}", {"model": "x100", "index": n}) for n in range(3)])
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 3})
        response = (await kubelet.admit("pod", "main", TOY, 1)).response
        assert specs.resolve(response)
    async with rig.running():  # a start does not make a valid file useless either
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 3} and kubelet.allocatable() == {TOY: 2})
