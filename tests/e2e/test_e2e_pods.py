"""What a pod gets with a real kubelet, scheduler and container runtime."""

from __future__ import annotations

from pathlib import Path

from onenode.machine import device_file, plugged
from onenode.offers import DISK, FUSE, SHARES, ZRAM, configuration
from onenode.plugin import Devhost
from onenode.podresources import devices_of_pods
from onenode.pods import DEVICES_CGROUP, Pod
from onenode.settings import POD_RESOURCES

BLOCK = 4096
"""Bytes; a zram device is made of pages."""


def opens_itself(pod: Pod, path: str) -> bool:
    """Whether a container can open a device of the machine after creating its node."""
    device, made = device_file(path), f"/tmp/{Path(path).name}"
    pod.shell(f"test -e {made} || mknod {made} {device.kind} {device.major} {device.minor}")
    return pod.opens(made)


def test_the_node_offers_every_device_that_the_configuration_selects(cluster, devhost, zram):
    zram.plug()
    cluster.shows(FUSE, SHARES)
    cluster.shows(ZRAM, plugged())


def test_a_pod_has_its_device_node_and_no_other(devhost, pods):
    without = pods.create("without").running()
    pod = pods.create("with-fuse", {FUSE: 1}).running()
    assert pod.nodes() - without.nodes() == {"/dev/fuse"}
    assert pod.opens("/dev/fuse")
    host = device_file("/dev/fuse")
    assert pod.shell("stat -c '%a %u:%g' /dev/fuse") == f"{host.mode:o} {host.owner}"


def test_the_cgroup_denies_devices_that_a_pod_did_not_get(cluster, devhost, pods, zram):
    disk = f"/dev/zram{zram.plug()}"
    cluster.shows(ZRAM, plugged())
    without = pods.create("without").running()
    pod = pods.create("with-fuse", {FUSE: 1}).running()
    assert opens_itself(pod, "/dev/fuse")
    assert not opens_itself(pod, disk)
    assert not opens_itself(without, "/dev/fuse")
    if DEVICES_CGROUP.exists():
        fuse = device_file("/dev/fuse")
        assert pod.cgroup_rules() - without.cgroup_rules() == {f"{fuse.kind} {fuse.major}:{fuse.minor} rw"}


def test_two_pods_get_different_block_devices(cluster, devhost, pods, zram):
    for _ in range(2):
        zram.plug()
    cluster.shows(ZRAM, plugged())
    first, second = (pods.create(name, {ZRAM: 1}).running() for name in ("first", "second"))
    usual = pods.create("without").running().nodes()
    (one,) = first.nodes() - usual
    (other,) = second.nodes() - usual
    assert one != other
    assert first.opens(one)
    assert not opens_itself(first, other)


def test_a_pod_gets_the_permissions_variables_and_mounts_of_a_group(cluster, pods, zram, tmp_path):
    number = zram.plug()
    Path(f"/sys/block/zram{number}/disksize").write_text(str(BLOCK))
    library = tmp_path / "library"
    library.write_text("of the host\n")
    with Devhost(cluster, configuration(disk=number, library=library)):
        cluster.shows(DISK, 1)
        pod = pods.create("grouped", {DISK: 1}).running()
        host = device_file(f"/dev/zram{number}")
        assert pod.shell("stat -c '%t:%T' /dev/only") == f"{host.major:x}:{host.minor:x}"
        assert pod.shell("cat /dev/only | wc -c") == str(BLOCK)
        assert not pod.opens("/dev/only"), "its permissions are r"
        assert pod.shell("echo $DISK") == host.path
        assert pod.shell("cat /opt/library") == "of the host"
        assert not pod.can("echo more >> /opt/library")
        pod.delete()


def test_one_pod_too_many_waits_and_runs_when_a_device_is_free(devhost, pods):
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
