"""After every kind of restart pods keep their devices, and the node has all devices again."""

from __future__ import annotations

import os
import random

import pytest
from devhost_testing.zram import Zram
from onenode.cluster import Cluster
from onenode.machine import plugged
from onenode.offers import FUSE, SHARES, ZRAM, configuration
from onenode.plugin import Devhost
from onenode.pods import Pod, Pods
from onenode.settings import PLUGIN_DIRECTORY

RESTARTS = int(os.environ.get("DEVHOST_E2E_RESTARTS", "10"))

MANY = 10
"""Shares during churn. A kubelet that starts counts the devices of pods that are gone as in use until it
has seen all pods; so a turn needs its own and those of the turns before."""

by_signal = pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "SIGKILL"])


@pytest.fixture
def pod(devhost: Devhost, pods: Pods) -> Pod:
    """A pod that runs and holds a device."""
    return pods.create("holder", {FUSE: 1}).running()


def assert_all_is_well(
    cluster: Cluster, pods: Pods, *before: tuple[Pod, tuple[str, int]], shares: int = SHARES
) -> None:
    """The node shows all devices, running pods keep theirs, and a new one gets a free device."""
    cluster.refreshed()
    cluster.shows(FUSE, shares)
    for pod, identity in before:
        assert pod.identity() == identity
        assert pod.opens("/dev/fuse")
    new = pods.create("new", {FUSE: shares - len(before)}).running()
    assert new.opens("/dev/fuse")


@by_signal
def test_after_a_kubelet_restart_pods_keep_their_devices_and_the_node_has_all(
    cluster, devhost, pods, pod, kill
):
    identity = pod.identity()
    cluster.restart_kubelet(kill=kill)
    devhost.serving()
    assert_all_is_well(cluster, pods, (pod, identity))


@by_signal
def test_after_a_devhost_restart_pods_keep_their_devices_and_the_node_has_all(
    cluster, devhost, pods, pod, kill
):
    identity = pod.identity()
    devhost.restart(kill=kill)
    devhost.serving()
    assert_all_is_well(cluster, pods, (pod, identity))


def test_without_devhost_nothing_is_allocatable_and_pods_keep_running(cluster, devhost, pods, pod):
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
    """After an update or its rollback, the remaining instance serves everything."""
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


@pytest.mark.timeout(600 + 60 * RESTARTS)
def test_many_kubelet_restarts_during_churn_leave_every_resource_right(cluster, pods, zram):
    """Devices and pods come and go while the kubelet is repeatedly killed or restarted."""
    with Devhost(cluster, configuration(shares=MANY)) as devhost:
        cluster.shows(FUSE, MANY)
        pod = pods.create("holder", {FUSE: 1}).running()
        identity = pod.identity()
        passing = [each for turn in range(RESTARTS) for each in churn(turn, cluster, devhost, pods, zram)]
        for each in passing:
            each.delete()
        devhost.serving()
        zram.plug()
        cluster.shows(ZRAM, plugged())
        status = {resource["name"]: resource for resource in devhost.status()["resources"]}
        sockets = {path.name for path in cluster.namespaces.path(PLUGIN_DIRECTORY).glob("dh-*.sock")}
        assert sockets == {resource["socket"] for resource in status.values()}, "one socket for each resource"
        assert {name: (each["capacity"], each["allocatable"]) for name, each in status.items()} == {
            FUSE: (MANY, MANY),
            ZRAM: (plugged(), plugged()),
        }
        assert pods.create("disk", {ZRAM: 1}).running()
        assert_all_is_well(cluster, pods, (pod, identity), shares=MANY)


def churn(turn: int, cluster: Cluster, devhost: Devhost, pods: Pods, zram: Zram) -> list[Pod]:
    """Restarts the kubelet while devices and pods come and go; returns the pods.

    A pod created just before may be rejected: by the ending kubelet, which cancels its calls, or by the new
    one before devhost has registered. A pod created after the registration must run.
    """
    chance = random.Random(turn)
    plugged_now = [zram.plug() for _ in range(chance.randrange(3))]
    amid = pods.create(f"amid-{turn}", {FUSE: 1})
    cluster.restart_kubelet(kill=chance.random() < 0.5)
    for number in chance.sample(plugged_now, chance.randint(0, len(plugged_now))):
        zram.unplug(number)
    amid.settled()
    devhost.serving()
    cluster.refreshed()
    cluster.shows(FUSE, MANY)
    after = pods.create(f"after-{turn}", {FUSE: 1}).running()
    for pod in (amid, after):
        pod.leave()
    return [amid, after]
