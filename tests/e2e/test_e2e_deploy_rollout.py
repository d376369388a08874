"""Nothing is lost when the DaemonSet's pod is replaced or its container is restarted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from onenode.cluster import Cluster
from onenode.machine import plugged
from onenode.offers import FUSE, ZRAM
from onenode.podresources import devices_of_pods
from onenode.pods import Pods
from onenode.release import DAEMONSET, Release
from onenode.settings import PLUGIN_DIRECTORY, POD_RESOURCES
from onenode.shipped import TAGS, Shipped
from onenode.waiting import until

SHARES = 6
DURING = 2
"""Pods that are created during a rollout."""

BEFORE, AFTER = TAGS


def values(shares: int = SHARES, tag: str = BEFORE) -> dict[str, Any]:
    """Shares of one device, and exclusive ones."""
    resources = [
        {"name": FUSE, "backend": "udev", "where": {"devNode": "/dev/fuse"}, "share": {"replicas": shares}},
        {
            "name": ZRAM,
            "backend": "udev",
            "where": {"subsystem": "block", "sysName": "zram[1-9]*"},
            "whenEmpty": "register",
        },
    ]
    return {"image": {"tag": tag}, "config": {"version": 1, "resources": resources}}


@pytest.fixture(scope="module")
def installed(cluster: Cluster, shipment: Shipped) -> Iterator[Release]:
    with Release(cluster, shipment, values()) as release:
        yield release


@pytest.fixture
def release(cluster: Cluster, installed: Release) -> Release:
    """As installed, without the changes of other tests."""
    installed.apply(values())
    cluster.shows(FUSE, SHARES)
    return installed


class Nothing:
    """What a rollout must not lose: a pod with devices that runs throughout, and pods created during it.

    The pod holds every matching disk, including those from before the test.
    """

    def __init__(self, cluster: Cluster, release: Release, pods: Pods) -> None:
        self._cluster, self._release, self._pods = cluster, release, pods
        self._disks = disks = plugged()
        cluster.shows(ZRAM, disks)
        self._usual = pods.create("without").running().nodes()
        self._holder = pods.create("holder", {FUSE: 1} | ({ZRAM: disks} if disks else {})).running()
        self._before = self._holder.identity(), self._held(), self._holder.nodes(), release.identity()

    def _held(self) -> dict[tuple[str, str], set[str]]:
        held = devices_of_pods(self._cluster.namespaces.path(POD_RESOURCES))
        return {key: devices for key, devices in held.items() if key[0] == "holder"}

    def lost(self, name: str, shares: int = SHARES) -> None:
        """Waits for a rollout that has begun, and checks that nothing was lost.

        Args:
            name: part of the names of the pods created now.
            shares: of FUSE, afterwards.
        """
        during = self._pods.replicate(name, {FUSE: 1}, DURING)
        self._release.ready()
        identity, held, nodes, daemon = self._before
        assert self._release.identity()[:2] != daemon[:2], "it is another pod"
        self._before = identity, held, nodes, self._release.identity()
        during.running()
        self._cluster.refreshed()
        self._cluster.shows(FUSE, shares)
        self._cluster.shows(ZRAM, self._disks)
        assert self._holder.identity() == identity
        assert self._held() == held
        assert self._holder.nodes() == nodes
        for node in nodes - self._usual:
            assert self._holder.opens(node)
        allocated = {FUSE: 1 + DURING, ZRAM: self._disks}
        until(
            "the new one knows who holds what", lambda: self._allocated() == allocated, seen=self._allocated
        )
        rest = self._pods.create(f"{name}-rest", {FUSE: shares - 1 - DURING}).running()
        assert rest.opens("/dev/fuse")
        rest.delete()
        during.delete()

    def _allocated(self) -> dict[str, int]:
        return {
            resource["name"]: sum(device["allocated"] for device in resource["devices"])
            for resource in self._release.status().get("resources", ())
        }


def test_a_rollout_restart_loses_nothing(cluster, release, zram, pods):
    for _ in range(2):
        zram.plug()
    nothing = Nothing(cluster, release, pods)
    release.kubectl("rollout", "restart", DAEMONSET)
    nothing.lost("during")


def test_an_upgrade_with_another_image_and_its_rollback_lose_nothing(cluster, release, zram, pods):
    zram.plug()
    nothing = Nothing(cluster, release, pods)
    release.request(values(SHARES + 2, AFTER) | {"logLevel": "debug", "podMetrics": True})
    nothing.lost("upgraded", SHARES + 2)
    assert release.image().endswith(f":{AFTER}")
    assert release.metric("devhost_device_held", pod="holder", resource=FUSE) == 1
    release.request(values())
    nothing.lost("rolled-back")
    assert release.image().endswith(f":{BEFORE}")


def test_a_restarted_container_finds_the_recreated_plugin_directory(cluster, release, pods):
    """A mount keeps the removed directory, so liveness fails and the kubelet restarts the container."""
    pod, container, restarts = release.identity()
    cluster.stop("kubelet")
    shutil.rmtree(cluster.namespaces.path(PLUGIN_DIRECTORY))
    cluster.start("kubelet")
    until("its container is restarted", lambda: release.identity()[2] > restarts, seen=release.identity)
    release.ready()
    assert release.identity()[0] == pod
    assert release.identity()[1] != container
    cluster.shows(FUSE, SHARES)
    assert pods.create("after", {FUSE: 1}).running().opens("/dev/fuse")
