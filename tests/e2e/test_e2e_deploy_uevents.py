"""The uevents that a pod receives in its own network namespace and in the node's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.zram import Zram
from onenode.cluster import Cluster
from onenode.machine import plugged
from onenode.offers import FUSE, ZRAM
from onenode.plugin import inside
from onenode.release import Release
from onenode.shipped import Shipped
from onenode.uevents import Listener, Uevent, send_as_udevd
from onenode.waiting import until

NODE = 1
"""The first process of the node."""

INTERFACES = ("devhost-one", "devhost-other")
CONTROL = "/run/udev/control"
TRIES = 3


def values(**more: Any) -> dict[str, Any]:
    resources = [
        {"name": FUSE, "backend": "udev", "where": {"devNode": "/dev/fuse"}},
        {
            "name": ZRAM,
            "backend": "udev",
            "where": {"subsystem": "block", "sysName": "zram[1-9]*"},
            "whenEmpty": "register",
        },
    ]
    return {"config": {"version": 1, "resources": resources}, **more}


@pytest.fixture(scope="module")
def installed(cluster: Cluster, shipment: Shipped) -> Iterator[Release]:
    with Release(cluster, shipment, values()) as release:
        yield release


@pytest.fixture
def release(installed: Release) -> Release:
    """In a separate network namespace, the chart's default without network devices."""
    installed.apply(values())
    return installed


@pytest.fixture
def host_network(installed: Release, cluster: Cluster) -> Iterator[Release]:
    """In the node's network namespace, on a node on which udevd seems to run."""
    control = cluster.namespaces.path(CONTROL)
    control.parent.mkdir(exist_ok=True)
    control.touch()
    installed.apply(values(hostNetwork=True))
    yield installed
    control.unlink()


def happens(cluster: Cluster, zram: Zram) -> dict[str, Uevent]:
    """A disk and a network interface appear on the node, udevd sends an event, and the disk disappears."""
    number = zram.plug()
    disk = f"/devices/virtual/block/zram{number}"
    one, other = INTERFACES
    for command in (("add", one, "type", "veth", "peer", "name", other), ("delete", one)):
        done = cluster.namespaces.run("ip", "link", *command)
        assert done.returncode == 0, done.stderr
    udevd = send_as_udevd(cluster.namespaces.in_network_of(NODE), "add", disk, "block")
    zram.unplug(number)
    return {
        "disk": ("kernel", "add", disk),
        "interface": ("kernel", "add", f"/devices/virtual/net/{one}"),
        "udevd": udevd,
        "end": ("kernel", "remove", disk),
    }


def received(cluster: Cluster, zram: Zram, process: int) -> set[str]:
    """Which of these a listener in a process's network namespace receives."""
    with Listener(cluster.namespaces.in_network_of(process)) as listener:
        events = happens(cluster, zram)
        said = listener.until(events["end"])
    return {name for name, event in events.items() if event in said}


def test_in_its_own_network_a_pod_receives_kernel_events_of_devices_only(cluster, release, zram):
    assert network(cluster, release.process()) != network(cluster, NODE)
    assert received(cluster, zram, release.process()) == {"disk", "end"}


def test_in_the_nodes_network_a_pod_receives_all_events(cluster, host_network, zram):
    assert network(cluster, host_network.process()) == network(cluster, NODE)
    assert received(cluster, zram, host_network.process()) == {"disk", "interface", "udevd", "end"}


def test_in_its_own_user_namespace_a_pod_receives_no_events(cluster, zram, tmp_path):
    """The kernel sends events to networks of the first user namespace only, not with ``hostUsers: false``."""
    command = ("unshare", "--user", "--net", "sleep", "600")
    process = cluster.namespaces.spawn(*command, log=tmp_path / "log")
    try:
        own = Path(f"/proc/{process.pid}/ns/net")
        others = {Path("/proc/self/ns/net").readlink(), network(cluster, NODE)}
        until("it has its own network", lambda: process.poll() is not None or own.readlink() not in others)
        if process.poll() is not None:
            pytest.skip(f"cannot create a user namespace: {(tmp_path / 'log').read_text().strip()}")
        there = inside(process.pid)
        with Listener(cluster.namespaces.in_network_of(there)) as listener:
            zram.unplug(zram.plug())
            end = send_as_udevd(cluster.namespaces.in_network_of(there), "change", "/devices/end", "none")
            assert listener.until(end) == [end]
    finally:
        process.kill()
        process.wait()


def test_devhost_in_its_own_network_lists_a_plugged_device_after_its_event(cluster, release, zram):
    """Lists that an event caused are counted. The scan once a minute may sometimes be faster."""
    cluster.shows(ZRAM, plugged())
    assert source(release) == "kernel"
    before = by_event(release)
    for _ in range(TRIES):
        zram.plug()
        cluster.shows(ZRAM, plugged())
        if by_event(release) > before:
            break
    assert by_event(release) > before


def test_devhost_in_the_nodes_network_uses_udevds_events(host_network):
    """With ``/run/udev`` mounted at its path, as in the chart, devhost knows that udevd runs."""
    assert source(host_network) == "udev"


def network(cluster: Cluster, process: int) -> Path:
    return cluster.namespaces.path(f"/proc/{process}/ns/net").readlink()


def by_event(release: Release) -> float:
    return release.metric("devhost_event_to_list_seconds_count", resource=ZRAM) or 0.0


def source(release: Release) -> str:
    """The source of devhost's events, from its log."""

    def said() -> list[str]:
        lines = [json.loads(line) for line in release.log().splitlines() if line.startswith("{")]
        return [line["source"] for line in lines if line["message"] == "listening for uevents"]

    return until("devhost logs the source of its events", said, seen=release.log)[-1]
