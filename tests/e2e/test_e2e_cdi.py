"""Devices that a real container runtime injects by their CDI names."""

from __future__ import annotations

import json

from onenode.machine import device_file
from onenode.offers import DISK, FUSE, SHARES, configuration
from onenode.plugin import Devhost
from onenode.settings import SPECIFICATIONS


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


def test_by_cdi_a_pod_gets_what_it_gets_directly(cluster, pods, zram, tmp_path):
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


def test_a_container_that_restarts_while_devhost_is_away_gets_its_device_by_cdi_again(cluster, pods):
    with Devhost(cluster, configuration(inject="cdi")) as devhost:
        cluster.shows(FUSE, SHARES)
        pod = pods.create("by-cdi", {FUSE: 1}).running()
        devhost.stop()
        written = list(cluster.namespaces.path(SPECIFICATIONS).glob("devhost_*.json"))
        assert FUSE in [json.loads(file.read_text())["kind"] for file in written]
        assert pod.restarted().opens("/dev/fuse")
        devhost.start()
        devhost.serving()
