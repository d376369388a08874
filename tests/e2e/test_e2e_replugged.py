"""Devices that keep their ids while their paths or numbers change, under pods that have them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from devhost_testing.zram import Zram
from onenode.claims import Claims, Driver
from onenode.cluster import Cluster
from onenode.machine import device_file
from onenode.pods import Pod, Pods
from onenode.settings import SPECIFICATIONS
from onenode.waiting import until

DISK = "example.com/replugged"

DISKS = '''
import asyncio

from devhost.backend import Attribute, Backend, Device, DeviceNode, Edits, Event, hookimpl


class Disks(Backend):
    """Disks as a file lists them: the id of each, and the path of its node."""

    name = "disks"
    attributes = {"path": Attribute(str, "its node", "/dev/zram1")}

    def discover(self):
        for line in FILE.read_text().splitlines():
            name, path = line.split()
            yield Device(name, {"path": path}, claims=frozenset({f"node:{path}"}))

    def allocate(self, request):
        paths = [device.attributes["path"] for device in request.devices]
        return Edits(tuple(DeviceNode(path, "/dev/disk") for path in paths))

    async def watch(self):
        while True:
            yield Event()
            await asyncio.sleep(0.5)


@hookimpl
def devhost_backends():
    return [Disks]
'''
"""Containers always have the node as ``/dev/disk``: its number tells which disk it is."""


@dataclass
class Scene:
    """A devhost that serves disks in one way, and pods that have them."""

    cluster: Cluster
    devhost: Driver
    claims: Claims
    pods: Pods
    way: str

    def serve(self, *disks: str, check_starts: bool = False) -> None:
        """Offers disks, each as ``id path``."""
        way: dict[str, object] = {"serve": "dra"} if self.way == "dra" else {"inject": self.way}
        way |= {"checkStarts": True} if check_starts else {}
        self.devhost.cards(*disks)
        self.devhost.serve({"backend": "disks", "name": DISK, **way})
        if self.way == "dra":
            self._ready()
            self.claims.classes(self.devhost)
            self.claims.shows(*(disk.split()[0] for disk in disks))
        else:
            until("devhost offers the disks", lambda: self.devhost.status().get("resources"))
            self._ready()
            self.cluster.shows(DISK, len(disks))

    def pod(self, name: str) -> Pod:
        """A running pod with a disk."""
        if self.way != "dra":
            return self.pods.create(name, {DISK: 1}).running()
        self.claims.create(name, {"deviceClassName": "replugged.example.com"})
        return self.pods.create(name, claims=[name]).running()

    def changes(self, *disks: str, stopped: bool, while_away: Callable[[], object] = str) -> None:
        """The disks are as these lines say from now on.

        Args:
            stopped: whether devhost does not run when that happens.
            while_away: changes device nodes meanwhile.
        """
        if stopped:
            self.devhost.stop()
        while_away()
        self.devhost.cards(*disks)
        if stopped:
            self.devhost.start()
            self._ready()

    def _ready(self) -> None:
        if self.way == "dra":
            self.devhost.registered()
        else:
            self.devhost.serving()

    def gives(self, path: str) -> None:
        """Waits until a specification gives the disk that has this node now."""
        host = device_file(path)
        text = f'"major": {host.major}, "minor": {host.minor},'
        until(f"a specification gives {path}", lambda: text in self._specified(), seen=self._specified)

    def withholds(self, disk: str) -> None:
        """Waits until a specification withholds a disk as gone."""
        until(f"{disk} is withheld", lambda: f"{disk} is gone" in self._specified(), seen=self._specified)

    def reports(self, *words: str) -> None:
        """Waits until the status has a problem with these words."""

        def found() -> bool:
            status = json.dumps(self.devhost.status())
            return all(word in status for word in words)

        until(f"the status says {words}", found, seen=self.devhost.status)

    def swapped(self, first: str, second: str) -> bool:
        """Whether the specifications give ``a`` the second of two nodes and ``b`` the first."""
        names, paths = {}, {}
        for line in self._specified().splitlines():
            with suppress(ValueError):
                device = json.loads(line.removesuffix(","))
                edits = device["containerEdits"]
                for variable in edits.get("env", ()):  # the record of a claim names its disks
                    words = dict(word.partition("=")[::2] for word in variable.split(" "))
                    if "name" in words:
                        names[words["name"]] = words["id"].removeprefix("disks/")
                for node in edits.get("deviceNodes", ()):
                    paths[device["name"]] = node["hostPath"]
        found = {names.get(name, name): path for name, path in paths.items()}
        return found == {"a": second, "b": first}

    def _specified(self) -> str:
        directory = self.cluster.namespaces.path(SPECIFICATIONS)
        return "".join(file.read_text() for file in sorted(directory.glob("devhost*.json")))


def number(path: str) -> str:
    """Which disk a node of the machine is."""
    host = device_file(path)
    return f"{host.major:x}:{host.minor:x}"


def disk_in(pod: Pod) -> str:
    """Which disk a container has."""
    return pod.shell("stat -c %t:%T /dev/disk")


def refused(pod: Pod, *words: str) -> None:
    """Ends the container, and waits until the runtime has refused to start it again with these words."""
    pod.can("kill -TERM 1")

    def message() -> str:
        (status,) = pod.document()["status"]["containerStatuses"]
        return str(status["state"].get("waiting", {}).get("message", ""))

    until(f"{pod.name} is refused: {words}", lambda: all(word in message() for word in words), seen=message)


def starts_again(pod: Pod) -> None:
    """Waits until the kubelet has started a refused container; it waits up to five minutes itself."""

    def runs() -> bool:
        (status,) = pod.document()["status"]["containerStatuses"]
        return bool(status["state"].get("running"))

    until(f"{pod.name} runs again", runs, limit=400, seen=pod.document)


@pytest.fixture(params=["cdi", "dra"])
def scene(
    request: pytest.FixtureRequest, cluster: Cluster, access: None, claims: Claims, zram: Zram
) -> Iterator[Scene]:
    """Serves the disks by CDI names of a resource, or of claims."""
    with Driver(cluster, backend=DISKS) as driver:
        pods = Pods(cluster)
        yield Scene(cluster, driver, claims, pods, request.param)
        pods.clear()


@pytest.fixture
def disks(zram: Zram) -> list[str]:
    """The nodes of real disks."""
    return [f"/dev/zram{zram.plug()}" for _ in range(3)]


@pytest.fixture
def node(disks: list[str]) -> Iterator[Path]:
    """A node that may become another disk's: at first it is the first one's."""
    path = Path("/dev/devhost-e2e-disk")
    become(path, disks[0])
    yield path
    path.unlink()


def become(path: Path, disk: str) -> None:
    """Makes a node at a path with the numbers of a disk."""
    path.unlink(missing_ok=True)
    os.mknod(path, stat.S_IFBLK | 0o660, Path(disk).stat().st_rdev)


stopped = pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
"""Whether devhost runs while devices are replugged."""


@stopped
def test_a_container_keeps_its_disk_when_two_disks_swap_their_paths(scene, disks, stopped):
    first, second, _ = disks
    scene.serve(f"a {first}", f"b {second}")
    one, other = scene.pod("one"), scene.pod("other")
    before = {one.name: disk_in(one), other.name: disk_in(other)}
    assert set(before.values()) == {number(first), number(second)}
    swapped = {number(first): number(second), number(second): number(first)}
    scene.changes(f"a {second}", f"b {first}", stopped=stopped)
    # the id of each pod's disk is the same, so the disk that it means has the other number now
    until("both names follow", lambda: scene.swapped(first, second))
    assert disk_in(one.restarted()) == swapped[before[one.name]]
    assert disk_in(other.restarted()) == swapped[before[other.name]]


@stopped
def test_a_container_whose_disk_is_gone_does_not_start_and_gets_it_back(scene, disks, stopped):
    first, _, third = disks
    scene.serve(f"a {first}")
    pod = scene.pod("pod")
    assert disk_in(pod) == number(first)
    scene.changes(f"b {first}", stopped=stopped)  # another disk has its path and its numbers
    scene.withholds("a")
    refused(pod, "devhost: a is gone")
    scene.changes(f"b {first}", f"a {third}", stopped=stopped)
    scene.gives(third)
    starts_again(pod)
    assert disk_in(pod) == number(third)


@stopped
def test_a_container_gets_the_disk_that_a_path_is_now(scene, disks, node, stopped):
    scene.serve(f"a {node}")
    pod = scene.pod("pod")
    assert disk_in(pod) == number(disks[0])
    scene.changes(f"a {node}", stopped=stopped, while_away=lambda: become(node, disks[1]))
    scene.gives(disks[1])
    assert disk_in(pod.restarted()) == number(disks[1])
    pod.delete()
    assert disk_in(scene.pod("new")) == number(disks[1])


@pytest.fixture
def direct(cluster: Cluster, access: None, claims: Claims, zram: Zram) -> Iterator[Scene]:
    """Serves the disks in the answer to Allocate, which the kubelet repeats."""
    with Driver(cluster, backend=DISKS) as driver:
        pods = Pods(cluster)
        yield Scene(cluster, driver, claims, pods, "direct")
        pods.clear()


@stopped
def test_a_repeated_answer_gives_another_disk_which_is_reported_and_given_to_no_other_pod(
    direct, disks, stopped
):
    first, second, _ = disks
    direct.serve(f"a {first}", f"b {second}")
    pod = direct.pod("pod")
    before = disk_in(pod)
    mine, other = (first, second) if before == number(first) else (second, first)
    direct.changes(f"a {second}", f"b {first}", stopped=stopped)
    direct.reports(f"a container was given {mine} for", f"which is {other} now: delete the pod")
    # otherwise the scheduler chooses the node by an older status, and the kubelet refuses the pod
    until("the node offers no disk", lambda: (direct.cluster.counts(DISK) or (0, 0))[1] <= 0)
    late = direct.pods.create("late", {DISK: 1})
    late.waits_for(DISK)  # the free disk has the node that the pod was given
    assert disk_in(pod.restarted()) == before  # by the path, which is the other disk's now
    pod.delete()
    late.running()


@stopped
def test_with_check_starts_no_container_starts_with_another_disk(direct, disks, stopped):
    first, second, _ = disks
    direct.serve(f"a {first}", check_starts=True)
    pod = direct.pod("pod")
    direct.changes(f"b {first}", f"a {second}", stopped=stopped)
    direct.reports(f"a container was given {first} for a")
    refused(pod, f"a container was given {first} for a", f"which is {second} now")
    direct.changes(f"a {first}", f"b {second}", stopped=stopped)
    starts_again(pod)
    assert disk_in(pod) == number(first)


@stopped
def test_a_repeated_answer_gives_the_disk_that_its_path_is_now(direct, disks, node, stopped):
    direct.serve(f"a {node}")
    pod = direct.pod("pod")
    direct.changes(f"a {node}", stopped=stopped, while_away=lambda: become(node, disks[1]))
    assert disk_in(pod.restarted()) == number(disks[1])
