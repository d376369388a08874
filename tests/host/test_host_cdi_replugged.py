"""`inject: cdi` while devices keep their ids and change their paths or numbers: the files follow."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace

import pytest
from cdi_scene import OTHER_LINE, TOY, TOY_LINE
from devhost_testing import runtime

from devhost.backend import AllocationError, Device, unhealthy

ALL = {"/dev/null": ("c", 1, 3), "/dev/zero": ("c", 1, 5), "/dev/full": ("c", 1, 7)}
"""Device nodes of every machine."""


class Pod:
    """What a container of a pod gets each time it starts."""

    def __init__(self, rig, response):
        self._directory = rig.cdi
        self._names = [device.name for device in response.cdi_devices]
        assert self._names

    def starts(self):
        return runtime.by_cdi(self._directory, self._names)

    def numbers(self):
        """The devices that it has."""
        try:
            return set(self.starts().numbers.values())
        except runtime.Refused as error:
            return {str(error)}

    def refusal(self):
        """Why it does not start; empty if it does."""
        try:
            self.starts()
        except runtime.Refused as error:
            return str(error)
        return ""


async def admitted(rig, kubelet, count=1, name="pod"):
    """A pod with devices, which the kubelet has named."""
    await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY, 0) >= count)
    admitted = await kubelet.admit(name, "main", TOY, count)
    await rig.until(
        lambda: all(rig.host.allocations.of(TOY).leases.holder(token) for token in admitted.device_ids)
    )
    return Pod(rig, admitted.response), admitted.device_ids


class Life:
    """Runs devhost, and replugs devices while it runs, while it is stopped, or over a reboot."""

    def __init__(self, rig, how):
        self._rig = rig
        self._stopped = how != "running"
        self._rebooted = how == "rebooted"
        self._running = None

    async def start(self):
        self._running = self._rig.running()
        await self._running.__aenter__()

    async def stop(self):
        if self._running is not None:
            running, self._running = self._running, None
            await running.__aexit__(None, None, None)

    async def replug(self, devices, nodes=None, also=lambda: None):
        """There are other devices and nodes from now on, and the backend scans."""
        if self._stopped:
            await self.stop()
        if self._rebooted:  # the directory is in memory
            shutil.rmtree(self._rig.cdi, ignore_errors=True)
        self._rig.scripts["toy"].nodes.update(nodes or {})
        also()
        self._rig.scripts["toy"].devices = devices
        if self._stopped:
            await self.start()
        else:
            self._rig.host.scanners["toy"].request_scan()


@pytest.fixture(params=["running", "stopped", "rebooted"])
async def life(request, rig):
    life = Life(rig, request.param)
    yield life
    await life.stop()


def claiming(rig):
    """The devices of the backend, each with a claim on its node."""
    nodes = rig.scripts["toy"].nodes
    return [
        Device(f"d{n}", {"model": nodes[f"d{n}"], "index": n}, claims=frozenset({f"node:{nodes[f'd{n}']}"}))
        for n in range(2)
    ]


def moved(devices, **nodes):
    """The same devices with other nodes, which their backend shows in an attribute."""
    return [
        replace(one, attributes={**one.attributes, "model": nodes.get(one.id, "same")}) for one in devices
    ]


async def test_a_container_keeps_its_device_when_two_swap_their_paths(rig, kubelet, specs, life):
    rig.write(TOY_LINE)
    await life.start()
    first, (token,) = await admitted(rig, kubelet)
    nodes = {"d0": "/dev/zero", "d1": "/dev/null"}
    await life.replug(moved(rig.scripts["toy"].devices, d0="b", d1="a"), nodes)
    await rig.until(lambda: first.numbers() == {ALL[nodes[token]]})


async def test_two_containers_whose_devices_swap_their_paths_both_keep_their_own(rig, kubelet, specs, life):
    """Each holds what the other one was given, so that neither device can be offered."""
    rig.scripts["toy"].devices = claiming(rig)
    rig.write(TOY_LINE)
    await life.start()
    first, (one,) = await admitted(rig, kubelet, name="first")
    second, (two,) = await admitted(rig, kubelet, name="second")
    rig.scripts["toy"].nodes = {"d0": "/dev/zero", "d1": "/dev/null"}
    await life.replug(claiming(rig))
    await rig.until(lambda: first.numbers() == {ALL[rig.scripts["toy"].nodes[one]]})
    await rig.until(lambda: second.numbers() == {ALL[rig.scripts["toy"].nodes[two]]})


async def test_a_container_of_a_device_that_is_gone_is_refused_and_gets_it_back(rig, kubelet, specs, life):
    rig.write(TOY_LINE)
    await life.start()
    pod, (token,) = await admitted(rig, kubelet)
    every = rig.scripts["toy"].devices
    # another device has its path, and so its numbers
    stranger = Device("d2", {"model": "x100", "index": 2})
    nodes = {"d2": rig.scripts["toy"].nodes[token]}
    await life.replug([*(one for one in every if one.id != token), stranger], nodes)
    reason = f'failed to stat CDI host device "/dev/null/devhost: {token} is gone": not a directory'
    await rig.until(lambda: pod.refusal() == reason)
    await life.replug(moved(every, **{token: "again"}), {token: "/dev/full"})
    await rig.until(lambda: pod.numbers() == {ALL["/dev/full"]})


async def test_a_resource_without_any_device_withholds_what_it_gave(rig, kubelet, specs, life):
    rig.write(TOY_LINE)
    await life.start()
    pod, _ = await admitted(rig, kubelet, 2)
    every = rig.scripts["toy"].devices
    nodes = {"s0": "/dev/null", "s1": "/dev/zero"}
    strangers = [
        Device(name, {"model": "y", "index": 9}, claims=frozenset({f"node:{path}"}))
        for name, path in nodes.items()
    ]
    rig.write(TOY_LINE + ", where: {model: x100}")
    await life.replug(strangers, nodes)
    await rig.until(pod.refusal)
    await life.replug(every)
    await rig.until(lambda: pod.numbers() == {ALL["/dev/null"], ALL["/dev/zero"]})


@pytest.mark.parametrize("line", [TOY_LINE, "name: 'example.com/{model}', backend: toy, inject: cdi"])
async def test_a_resource_that_a_container_holds_is_served_over_a_restart_without_any_device(
    rig, kubelet, specs, line
):
    """Its containers may start again, and the kubelet asks it before that if it prepares devices."""
    rig.scripts["toy"].devices = [Device("d0", {"model": "toy", "index": 0})]
    async with rig.running(line):
        await admitted(rig, kubelet)
    claimed = Device("d0", {"model": "toy", "index": 0}, withheld="it is the node's own now")
    rig.scripts["toy"].devices = [claimed]
    async with rig.running():
        await rig.until(lambda: TOY in rig.host.services)
        await rig.until(lambda: rig.host.services[TOY].registration.streams)


async def test_a_node_that_becomes_another_one_is_noticed_although_its_device_is_the_same(
    rig, kubelet, specs, life, tmp_path
):
    link = tmp_path / "by-id"
    link.symlink_to("/dev/null")
    rig.scripts["toy"].nodes["d0"] = rig.scripts["toy"].nodes["d1"] = str(link)
    rig.write(TOY_LINE)
    await life.start()
    pod, _ = await admitted(rig, kubelet)
    assert pod.numbers() == {ALL["/dev/null"]}

    def replug():
        link.unlink()
        link.symlink_to("/dev/zero")

    await life.replug(rig.scripts["toy"].devices, also=replug)
    await rig.until(lambda: pod.numbers() == {ALL["/dev/zero"]})
    new, _ = await admitted(rig, kubelet, name="new")
    assert new.numbers() == {ALL["/dev/zero"]}


async def test_a_number_and_a_mode_that_change_below_one_path_reach_the_file(
    rig, kubelet, specs, life, tmp_path
):
    node = tmp_path / "node"
    try:
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root can make a device node")
    rig.scripts["toy"].nodes["d0"] = rig.scripts["toy"].nodes["d1"] = str(node)
    rig.write(TOY_LINE)
    await life.start()
    pod, _ = await admitted(rig, kubelet)

    def replug():
        node.unlink()
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 5))

    await life.replug(rig.scripts["toy"].devices, also=replug)
    await rig.until(lambda: pod.numbers() == {("c", 1, 5)})
    await life.replug(rig.scripts["toy"].devices, also=lambda: node.chmod(0o640))
    await rig.until(lambda: "'fileMode': 416" in str(specs.devices()))


async def test_a_set_of_devices_follows_each_of_them(rig, kubelet, specs, life):
    rig.classes["toy"].allocate = specs.together
    rig.scripts["toy"].devices = [Device(f"d{n}", {"model": "x100", "index": n}) for n in range(3)]
    rig.write(TOY_LINE)
    await life.start()
    pod, tokens = await admitted(rig, kubelet, 2)
    (other,) = {"d0", "d1", "d2"} - set(tokens)
    every, nodes = rig.scripts["toy"].devices, dict(rig.scripts["toy"].nodes)
    swapped = {tokens[0]: nodes[other], other: nodes[tokens[0]]}
    await life.replug(moved(every, **{tokens[0]: "b", other: "a"}), swapped)
    wanted = {ALL[nodes[other]], ALL[nodes[tokens[1]]]}
    await rig.until(lambda: pod.numbers() == wanted)
    await life.replug([one for one in every if one.id != tokens[0]])
    await rig.until(lambda: f"devhost: {tokens[0]} is gone" in pod.refusal())
    await life.replug(moved(every, **{tokens[0]: "c"}))
    await rig.until(lambda: pod.numbers() == wanted)


async def test_what_a_backend_refuses_now_stays_only_if_no_other_device_claims_it(rig, kubelet, specs):
    async with rig.running(TOY_LINE):
        pod, (token,) = await admitted(rig, kubelet)
        before = pod.numbers()

        def refuse(devices):
            if devices[0].id == token:
                raise AllocationError("the card is being reset")

        rig.scripts["toy"].on_allocate = refuse
        every = rig.scripts["toy"].devices
        hot = [replace(one, health=unhealthy("hot")) if one.id == token else one for one in every]
        rig.change("toy", hot)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1})
        assert pod.numbers() == before
        path = rig.scripts["toy"].nodes[token]
        claimed = [
            one if one.id == token else replace(one, claims=frozenset({f"node:{path}"})) for one in moved(hot)
        ]
        rig.change("toy", claimed)
        await rig.until(pod.refusal)
        assert "devhost: the card is being reset" in pod.refusal()
        rig.scripts["toy"].on_allocate = lambda devices: None
        rig.change("toy", moved(every, **{token: "ok"}))
        await rig.until(lambda: not pod.refusal())


async def test_names_of_a_resource_that_left_the_file_never_give_another_device(
    rig, kubelet, specs, tmp_path
):
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    rig.scripts["toy"].nodes["d0"] = rig.scripts["toy"].nodes["d1"] = str(link)
    async with rig.running(TOY_LINE, OTHER_LINE):
        pod, _ = await admitted(rig, kubelet)
        rig.write(OTHER_LINE)
        await rig.until(lambda: rig.host.configuration.generation == 2 and TOY not in rig.host.services)
        assert pod.numbers() == {ALL["/dev/null"]}
        owner = replace(rig.scripts["other"].devices[0], claims=frozenset({"node:/dev/null"}))
        rig.change("other", [owner])
        await rig.until(pod.refusal)


async def test_a_name_of_a_former_id_gives_what_the_device_has_now(rig, kubelet, specs):
    """A new version of a backend gives a device another id; the kubelet repeats the old name."""
    async with rig.running(TOY_LINE):
        pod, (token,) = await admitted(rig, kubelet)
    every = rig.scripts["toy"].devices
    rig.scripts["toy"].devices = [
        replace(one, id="e0", former_ids=(token,)) if one.id == token else one for one in every
    ]
    rig.scripts["toy"].nodes["e0"] = "/dev/full"
    async with rig.running():
        await rig.until(lambda: pod.numbers() == {ALL["/dev/full"]})


async def test_a_file_without_numbers_gets_them_at_the_start(rig, kubelet, specs):
    """An earlier version left the numbers to the runtime."""
    async with rig.running(TOY_LINE):
        pod, _ = await admitted(rig, kubelet)
    document = specs.document()
    for device in document["devices"]:
        for node in device["containerEdits"]["deviceNodes"]:
            for key in ("type", "major", "minor"):
                del node[key]
    specs.path().write_text(json.dumps(document))
    async with rig.running():
        await rig.until(lambda: all("major" in one["deviceNodes"][0] for one in specs.devices().values()))
        assert not pod.refusal()
