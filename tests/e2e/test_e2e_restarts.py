"""Pods keep their devices, and the node gets all of them back, whoever restarts and however."""

from __future__ import annotations

import os
import random

import pytest
from onenode.cluster import Cluster
from onenode.machine import plugged
from onenode.offers import FUSE, SHARES, ZRAM, configuration
from onenode.plugin import Devhost
from onenode.pods import Pod, Pods
from onenode.settings import PLUGIN_DIRECTORY

RESTARTS = int(os.environ.get("DEVHOST_E2E_RESTARTS", "10"))

by_signal = pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "SIGKILL"])


@pytest.fixture
def pod(devhost: Devhost, pods: Pods) -> Pod:
    """A pod that runs and holds a device."""
    return pods.create("holder", {FUSE: 1}).running()


def assert_all_is_well(cluster: Cluster, pods: Pods, *before: tuple[Pod, tuple[str, int]]) -> None:
    """The node shows everything, old pods run on and have their device, and a new one gets what is left."""
    cluster.shows(FUSE, SHARES)
    for pod, identity in before:
        assert pod.identity() == identity
        assert pod.opens("/dev/fuse")
    new = pods.create("new", {FUSE: SHARES - len(before)}).running()
    assert new.opens("/dev/fuse")


@by_signal
def test_a_kubelet_restart_leaves_pods_their_devices_and_the_node_all_of_them(
    cluster, devhost, pods, pod, kill
):
    identity = pod.identity()
    cluster.restart_kubelet(kill=kill)
    devhost.serving()
    assert_all_is_well(cluster, pods, (pod, identity))


@by_signal
def test_a_devhost_restart_leaves_pods_their_devices_and_the_node_all_of_them(
    cluster, devhost, pods, pod, kill
):
    identity = pod.identity()
    devhost.restart(kill=kill)
    devhost.serving()
    assert_all_is_well(cluster, pods, (pod, identity))


def test_while_devhost_is_away_nothing_is_allocatable_and_pods_run_on(cluster, devhost, pods, pod):
    identity = pod.identity()
    devhost.stop()
    cluster.shows(FUSE, SHARES, 0)
    waiting = pods.create("waiting", {FUSE: 1})
    waiting.waits_for(FUSE)
    assert pod.identity() == identity
    assert pod.opens("/dev/fuse")
    devhost.start()
    assert waiting.running().opens("/dev/fuse")


@pytest.mark.parametrize("leaves", ["old", "new"])
def test_a_rolling_update_with_two_instances_ends_with_all_devices(cluster, pods, leaves):
    """Whether the update goes through or is rolled back: the one that stays serves everything."""
    with Devhost(cluster, configuration(), "old") as old:
        cluster.shows(FUSE, SHARES)
        pod = pods.create("holder", {FUSE: 1}).running()
        identity = pod.identity()
        with Devhost(cluster, configuration(), "new", wait=False) as new:
            new.says("registered resource=example.com/fuse")
            during = pods.create("during", {FUSE: 1}).running()
            gone, stays = (old, new) if leaves == "old" else (new, old)
            gone.stop()
            stays.serving()
            assert_all_is_well(cluster, pods, (pod, identity), (during, during.identity()))


@pytest.mark.timeout(120 + 20 * RESTARTS)
def test_many_kubelet_restarts_during_churn_leave_every_resource_right(cluster, devhost, pods, pod, zram):
    """Devices and pods come and go while the kubelet is killed or restarted, again and again."""
    identity = pod.identity()
    chance = random.Random(RESTARTS)
    for turn in range(RESTARTS):
        churn = [zram.plug() for _ in range(chance.randrange(3))]
        passing = pods.create(f"passing-{turn}", {FUSE: 1})
        cluster.restart_kubelet(kill=chance.random() < 0.5)
        for number in chance.sample(churn, chance.randint(0, len(churn))):
            zram.unplug(number)
        passing.delete()
    devhost.serving()
    zram.plug()
    cluster.shows(ZRAM, plugged())
    status = {resource["name"]: resource for resource in devhost.status()["resources"]}
    sockets = {path.name for path in cluster.namespaces.path(PLUGIN_DIRECTORY).glob("dh-*.sock")}
    assert sockets == {resource["socket"] for resource in status.values()}, "one socket for each resource"
    assert {name: (each["capacity"], each["allocatable"]) for name, each in status.items()} == {
        FUSE: (SHARES, SHARES),
        ZRAM: (plugged(), plugged()),
    }
    assert pods.create("disk", {ZRAM: 1}).running()
    assert_all_is_well(cluster, pods, (pod, identity))
