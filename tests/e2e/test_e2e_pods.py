"""What a pod gets from a real kubelet, scheduler and container runtime."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from onenode.cluster import Cluster
from onenode.offers import DISK, FUSE, SHARES, ZRAM, configuration
from onenode.plugin import Devhost
from onenode.podresources import devices_of_pods
from onenode.pods import DEVICES_CGROUP, Pod, Pods
from onenode.settings import POD_RESOURCES
from onenode.waiting import until

SECTORS = 2048


@pytest.fixture
def devhost(cluster: Cluster) -> Iterator[Devhost]:
    with Devhost(cluster, configuration()) as devhost:
        cluster.shows(FUSE, SHARES)
        yield devhost


def plugged() -> int:
    """How many zram devices besides the first there are now."""
    return len([path for path in Path("/sys/block").glob("zram*") if path.name != "zram0"])


def number(node: str) -> str:
    """The device number of a node as mknod and the devices cgroup want it: kind, major and minor."""
    status = os.stat(node)
    kind = "b" if stat.S_ISBLK(status.st_mode) else "c"
    return f"{kind} {os.major(status.st_rdev)} {os.minor(status.st_rdev)}"


def opens_made(pod: Pod, node: str) -> bool:
    """Whether a container can open a device that it makes a node for itself."""
    made = f"/tmp/{node.replace('/', '_')}"
    pod.shell(f"test -e {made} || mknod {made} {number(node)}")
    return pod.opens(made)


def test_the_node_offers_every_device_that_the_configuration_selects(cluster, devhost, zram):
    zram.plug()
    cluster.shows(FUSE, SHARES)
    cluster.shows(ZRAM, plugged())


def test_a_pod_has_its_device_node_and_no_other(devhost, pods):
    without = pods.create("without").running()
    with_fuse = pods.create("with-fuse", {FUSE: 1}).running()
    assert with_fuse.nodes() - without.nodes() == {"/dev/fuse"}
    assert with_fuse.opens("/dev/fuse")
    host = os.stat("/dev/fuse")
    assert with_fuse.shell("stat -c '%a %u:%g' /dev/fuse") == f"{host.st_mode & 0o777:o} {host.st_uid}:{host.st_gid}"


def test_the_cgroup_refuses_devices_that_a_pod_was_not_given(cluster, devhost, pods, zram):
    mine, other = zram.plug(), zram.plug()
    cluster.shows(ZRAM, plugged())
    without = pods.create("without").running()
    with_fuse = pods.create("with-fuse", {FUSE: 1}).running()
    assert opens_made(with_fuse, "/dev/fuse")
    assert not opens_made(without, "/dev/fuse")
    for disk in (mine, other):
        assert not opens_made(with_fuse, f"/dev/zram{disk}")
    if DEVICES_CGROUP.exists():
        kind, major, minor = number("/dev/fuse").split()
        assert with_fuse.cgroup_rules() - without.cgroup_rules() == {f"{kind} {major}:{minor} rw"}


def test_each_of_two_pods_gets_a_block_device_of_its_own(cluster, devhost, pods, zram):
    for _ in range(2):
        zram.plug()
    cluster.shows(ZRAM, plugged())
    first, second = (pods.create(name, {ZRAM: 1}).running() for name in ("first", "second"))
    bare = pods.create("bare").running().nodes()
    ones, others = first.nodes() - bare, second.nodes() - bare
    assert len(ones) == len(others) == 1
    assert ones != others
    assert first.opens(*ones)
    assert not opens_made(first, *others)


def test_a_pod_gets_the_permissions_variables_and_mounts_of_a_group(cluster, pods, zram, tmp_path):
    disk = zram.plug()
    Path(f"/sys/block/zram{disk}/disksize").write_text(str(SECTORS * 512))
    library = tmp_path / "library"
    library.write_text("of the host\n")
    with Devhost(cluster, configuration(disk=disk, library=library)):
        cluster.shows(DISK, 1)
        pod = pods.create("grouped", {DISK: 1}).running()
        assert pod.shell("stat -c '%t:%T' /dev/only") == "{:x}:{:x}".format(*map(int, number(f"/dev/zram{disk}").split()[1:]))
        assert pod.shell("dd if=/dev/only bs=512 count=1 2>/dev/null | cat | test -n x && echo read") == "read"
        assert not pod.opens("/dev/only"), "it may only read"
        assert pod.shell("echo $DISK") == f"/dev/zram{disk}"
        assert pod.shell("cat /opt/library") == "of the host"
        assert not pod.can("echo more >> /opt/library")
        pod.delete()


def test_one_pod_too_many_waits_and_runs_when_a_device_is_free(cluster, devhost, pods):
    fitting = [pods.create(f"fits-{index}", {FUSE: 1}).running() for index in range(SHARES)]
    late = pods.create("late", {FUSE: 1})
    late.waits_for(FUSE)
    fitting[0].delete()
    assert late.running().opens("/dev/fuse")
    assert all(pod.opens("/dev/fuse") for pod in fitting[1:])


def test_podresources_names_the_devices_that_devhost_gave(cluster, devhost, pods, zram):
    zram.plug()
    cluster.shows(ZRAM, plugged())
    pods.create("holder", {FUSE: 2, ZRAM: 1}).running()
    held = devices_of_pods(cluster.namespaces.path(POD_RESOURCES))
    given = {
        resource["name"]: {each["id"] for each in resource["devices"] if each["allocated"]}
        for resource in devhost.status()["resources"]
    }
    assert held == {("holder", FUSE): given[FUSE], ("holder", ZRAM): given[ZRAM]}
    assert (len(given[FUSE]), len(given[ZRAM])) == (2, 1)
