"""Another device plugin that serves one of devhost's resource names, on a real kubelet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from onenode.cluster import Cluster
from onenode.node import end
from onenode.offers import FUSE, SHARES, configuration
from onenode.plugin import Devhost
from onenode.waiting import until

from devhost.kubelet.api import PLUGIN_DIRECTORY

PROGRAM = """
import asyncio, pathlib, sys
from devhost_testing.kubelet import OtherPlugin

async def main():
    async with OtherPlugin(pathlib.Path(sys.argv[1]), sys.argv[2], ["x", "y"]):
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@contextmanager
def other_plugin(cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    """A plugin with two devices of the resource, as a process of the node."""
    process = cluster.namespaces.spawn(
        sys.executable, "-c", PROGRAM, PLUGIN_DIRECTORY, FUSE, log=cluster.logs / "other-plugin.log"
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            end(process, kill=True)


def problem(devhost: Devhost) -> str:
    """Why the resource is not served as it should be; empty while nothing is wrong."""
    found = devhost.status().get("problems", [])
    return next((one["reason"] for one in found if one["subject"] == FUSE), "")


def test_a_resource_that_another_plugin_serves_waits_until_that_plugin_is_gone(cluster: Cluster) -> None:
    with other_plugin(cluster) as plugin:
        cluster.shows(FUSE, 2)
        with Devhost(cluster, configuration(), wait=False) as devhost:
            until("devhost reports the other plugin", lambda: problem(devhost), seen=devhost.status)
            assert problem(devhost).startswith(
                "another device plugin serves it on this node: other-plugin.sock (python"
            )
            (resource,) = (one for one in devhost.status()["resources"] if one["name"] == FUSE)
            assert (resource["state"], resource["registrations"]) == ("waiting", 0)
            end(plugin, kill=True)
            devhost.serving()
            cluster.shows(FUSE, SHARES)
            assert problem(devhost) == ""


def test_a_plugin_that_takes_a_resource_over_is_reported_and_replaced_when_it_exits(cluster: Cluster) -> None:
    with Devhost(cluster, configuration()) as devhost:
        cluster.shows(FUSE, SHARES)
        with other_plugin(cluster):
            until("devhost reports the other plugin", lambda: problem(devhost), seen=devhost.status)
            assert problem(devhost).startswith("another device plugin registered it after devhost")
            cluster.shows(FUSE, 2)
        devhost.serving()
        until("the problem has ended", lambda: not problem(devhost), seen=devhost.status)
        cluster.shows(FUSE, SHARES)
