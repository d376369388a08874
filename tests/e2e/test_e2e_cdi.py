"""Devices that a real container runtime injects by their CDI names."""

from __future__ import annotations

import json
import sys

from onenode.machine import device_file
from onenode.offers import DISK, FUSE, SHARES, configuration
from onenode.plugin import Devhost
from onenode.settings import SPECIFICATIONS
from onenode.waiting import until


def test_a_pod_gets_its_node_by_cdi_and_no_other(cluster, pods):
    without = pods.create("without").running()
    with Devhost(cluster, configuration(inject="cdi")):
        cluster.shows(FUSE, SHARES)
        pod = pods.create("by-cdi", {FUSE: 2}).running()
        assert pod.nodes() - without.nodes() == {"/dev/fuse"}
        assert pod.opens("/dev/fuse")
        host = device_file("/dev/fuse")
        assert pod.shell("stat -c '%a %u:%g' /dev/fuse") == f"{host.mode:o} {host.owner}"
        assert not without.can("mknod /tmp/fuse c 10 229 && exec 3<>/tmp/fuse")


def test_a_pod_gets_the_same_by_cdi_and_directly(cluster, pods, zram, tmp_path):
    disk = zram.plug()
    library = tmp_path / "library"
    library.write_text("of the host\n")
    seen = []
    for inject in ("direct", "cdi"):
        with Devhost(cluster, configuration(inject=inject, disk=disk, library=library)):
            cluster.shows(DISK, 1)
            pod = pods.create(inject, {DISK: 1}).running()
            look = "stat -c '%F %a %u %g %t:%T' /dev/only; echo $DISK; cat /opt/library"
            rights = [
                pod.opens("/dev/only"),
                pod.can("exec 3</dev/only"),
                pod.can("echo more >> /opt/library"),
            ]
            seen.append((pod.shell(look), rights, pod.nodes()))
            pod.delete()
    direct, by_cdi = seen
    assert by_cdi == direct
    assert direct[1] == [False, True, False]


def held(devhost: Devhost) -> set[tuple[str, str, str]]:
    """Resource, pod and container of each holder in `devhost status`."""
    status = devhost.status()
    everything = [(resource["name"], one) for resource in status["resources"] for one in resource["devices"]]
    everything += [(one["resource"], one) for one in status["held"]]
    holders = [(name, one["holder"]) for name, one in everything if one["holder"]]
    return {(name, f"{holder['namespace']}/{holder['pod']}", holder["container"]) for name, holder in holders}


def test_the_status_names_the_holder_of_devices_injected_by_cdi(cluster, pods, zram, tmp_path):
    disk = zram.plug()
    library = tmp_path / "library"
    library.write_text("of the host\n")
    with Devhost(cluster, configuration(inject="cdi", disk=disk, library=library)) as devhost:
        cluster.shows(FUSE, SHARES)
        cluster.shows(DISK, 1)
        pod = pods.create("named", {DISK: 1}, {FUSE: 1}).running()
        beside = pod.beside.running()
        look = "echo $DISK; cat /opt/library; stat -c '%t:%T' /dev/only"
        host = device_file(f"/dev/zram{disk}")
        assert pod.shell(look).split("\n") == [host.path, "of the host", f"{host.major:x}:{host.minor:x}"]
        assert pod.can("exec 3</dev/only")
        assert not pod.opens("/dev/only"), "its permissions are r"
        assert not pod.can("echo more >> /opt/library")
        assert not pod.can("test -e /dev/fuse")
        assert beside.opens("/dev/fuse")
        assert not beside.can('test -e /dev/only || test -e /opt/library || test -n "$DISK"')
        expected = {(DISK, "default/named", "main"), (FUSE, "default/named", "beside")}
        until("devhost names both containers", lambda: held(devhost) == expected, seen=lambda: held(devhost))
        text = cluster.namespaces.run(sys.executable, "-m", "devhost", "status").stdout
        assert "default/named/main" in text
        assert "default/named/beside" in text
        pod.delete()
        until("devhost names no holder", lambda: not held(devhost), seen=lambda: held(devhost))


def test_a_container_whose_resource_left_the_file_restarts_with_its_device(cluster, pods):
    with Devhost(cluster, configuration(inject="cdi")) as devhost:
        cluster.shows(FUSE, SHARES)
        pod = pods.create("by-cdi", {FUSE: 1}).running()
        renamed = configuration(inject="cdi")
        renamed["resources"][0]["name"] = "example.com/renamed"
        devhost.configure(renamed)
        told = {(FUSE, "default/by-cdi", "main")}
        until("devhost shows the holder", lambda: held(devhost) == told, seen=devhost.status)
        assert pod.restarted().opens("/dev/fuse")
        devhost.restart()
        devhost.serving()
        assert pod.restarted().opens("/dev/fuse")
        pod.delete()
        files = cluster.namespaces.path(SPECIFICATIONS)
        until("the file is gone", lambda: not list(files.glob("devhost_*fuse.json")), seen=devhost.status)


def test_a_container_that_restarts_without_devhost_gets_its_device_by_cdi_again(cluster, pods):
    with Devhost(cluster, configuration(inject="cdi")) as devhost:
        cluster.shows(FUSE, SHARES)
        pod = pods.create("by-cdi", {FUSE: 1}).running()
        devhost.stop()
        written = list(cluster.namespaces.path(SPECIFICATIONS).glob("devhost_*.json"))
        assert f"devhost.{FUSE}" in [json.loads(file.read_text())["kind"] for file in written]
        assert pod.restarted().opens("/dev/fuse")
        devhost.start()
        devhost.serving()
