"""One queue of two is disabled and devhost restarts, also into this version: no pod gets what another has."""

from __future__ import annotations

from pathlib import Path

import pytest
from devhost_testing.trees import Tree
from status_values import status

from .conftest import NamingNode, Versioned

FUNCTION = "pci0000:6a/0000:6a:01.0"
WQ = "example.com/wq"
FIRST, SECOND = "dsa-0000:6a:01.0", "dsa-0000:6a:01.0.1"
"""The ids that earlier versions gave to the queues that they found."""

PLAIN = "resources: [{name: example.com/wq, backend: udev, where: {subsystem: dsa}}]"
SHARED = "resources: [{name: example.com/wq, backend: udev, where: {subsystem: dsa}, share: {replicas: 2}}]"
TEMPLATE = 'resources: [{name: "example.com/{sysattr.kind}", backend: udev, where: {subsystem: dsa}}]'
GROUP = """
backends: {udev: {groups: [{name: wq, members: [{path: "/dev/dsa/wq*"}]}]}}
resources: [{name: example.com/wq, backend: udev, where: {group: wq}}]
"""


@pytest.fixture
def node(naming_node: NamingNode) -> NamingNode:
    tree(naming_node.root)
    return naming_node


def tree(root: Path) -> Tree:
    machine = Tree(root)
    machine.pci(FUNCTION, driver="idxd")
    for queue in (0, 1):
        machine.device(f"{FUNCTION}/dsa0/wq0.{queue}", "dsa")
        name = f"dsa!wq0.{queue}"
        files = {"kind": "wq"}
        machine.device(
            f"{FUNCTION}/dsa0/wq0.{queue}/{name}", "dsa", f"dsa/wq0.{queue}", f"234:{queue}", files
        )
    return machine


def disable(node: NamingNode, queue: str) -> None:
    Tree(node.root).remove(f"/sys/devices/{FUNCTION}/dsa0/{queue}/dsa!{queue}")


async def test_the_queue_of_a_running_pod_is_not_reallocated_when_another_is_disabled(
    node: NamingNode,
) -> None:
    node.configure(PLAIN)
    async with node.served({WQ: 2}):
        first, second = [(await node.kubelet.admit(pod, "main", WQ, 1)).device_ids for pod in ("one", "two")]
    assert {*first, *second} == {"dsa-0000:6a:01.0-wq0.0", "dsa-0000:6a:01.0-wq0.1"}
    node.kubelet.release("one")
    disable(node, first[0].removeprefix("dsa-0000:6a:01.0-"))
    async with node.served():
        await node.kubelet.wait_for(lambda: {device.id for device in node.kubelet.devices(WQ)} == set(second))
        assert await node.refused("three", WQ)


@pytest.mark.parametrize("config", [PLAIN, TEMPLATE, GROUP], ids=["plain", "template", "group"])
async def test_after_the_upgrade_a_queue_under_its_former_id_stays_with_its_pod(
    node: NamingNode, config: str
) -> None:
    """The kubelet still names the queue as the earlier version did; only its pod's end makes it free."""
    Versioned.ids = {"/dev/dsa/wq0.0": FIRST, "/dev/dsa/wq0.1": SECOND}
    node.configure(config)
    async with node.served({WQ: 2}):
        one, two = [(await node.kubelet.admit(pod, "main", WQ, 1)).device_ids[0] for pod in ("one", "two")]
    prefix = "wq-" if config is GROUP else ""
    assert (one, two) == (prefix + FIRST, prefix + SECOND)
    node.kubelet.release("one")
    disable(node, "wq0.0")
    Versioned.ids = {}
    new = f"{prefix}dsa-0000:6a:01.0-wq0.1"
    async with node.served():
        await node.until(lambda: node.reasons().get(new) == f"held by a pod under its former id {two}")
        assert not node.kubelet.healthy(WQ)
        assert await node.refused("three", WQ)
        (held,) = status(node.host)["held"]
        assert (held["id"], held["devices"], held["reason"]) == (two, [new], "the device has another id now")
        node.kubelet.release("two")
        await node.kubelet.wait_for(lambda: node.kubelet.healthy(WQ) == {new})
        started = await node.container({WQ: 1})
        assert {one.host_path.rpartition("/")[2] for one in started.devices} == {"wq0.1"}


async def test_a_former_id_that_may_mean_either_queue_keeps_both_until_its_pod_ends(node: NamingNode) -> None:
    Versioned.ids = {"/dev/dsa/wq0.0": FIRST, "/dev/dsa/wq0.1": SECOND}
    node.configure(PLAIN)
    async with node.served({WQ: 2}):
        await node.kubelet.admit("one", "main", WQ, 1)
    Versioned.ids = {}
    async with node.served():
        await node.until(lambda: len(node.reasons()) == 2)
        assert await node.refused("two", WQ)
        node.kubelet.release("one")
        await node.offers({WQ: 2})


async def test_shares_under_former_ids_count_among_the_shares_of_today(node: NamingNode) -> None:
    Versioned.ids = {"/dev/dsa/wq0.0": FIRST, "/dev/dsa/wq0.1": SECOND}
    node.configure(SHARED)
    async with node.served({WQ: 4}):
        (token,) = (await node.kubelet.admit("one", "main", WQ, 1)).device_ids
    Versioned.ids = {}
    share = token.rpartition("::")[2]
    async with node.served():
        await node.until(lambda: len(node.reasons()) == 2)
        assert {name.rpartition("::")[2] for name in node.reasons()} == {share}
        await node.kubelet.wait_for(lambda: len(node.kubelet.healthy(WQ)) == 2)
        node.kubelet.release("one")
        await node.offers({WQ: 4})
