"""`topology`, `maxPerContainer` and `permissions` of an entry: their effect on kubelet and container."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest
from devhost_testing.kubelet import UnexpectedAdmissionError, events
from devhost_testing.node import Node

from devhost.backend import AllocateRequest, Attribute, Backend, Device, DeviceNode, Edits

NIC, OTHER = "example.com/nic", "example.com/other"


class Nic(Backend):
    """Devices on NUMA nodes 0 and 1 in turn; each has a node to use it and one to read its log."""

    name = "nic"
    attributes: ClassVar = {"index": Attribute(int, "index", 0)}

    def discover(self) -> list[Device]:
        names = sorted(path.name for path in (self.context.root / "dev").glob("d?"))
        return [Device(name, {"index": int(name[1])}, numa_nodes=(int(name[1]) % 2,)) for name in names]

    def allocate(self, request: AllocateRequest) -> Edits:
        nodes = [DeviceNode(f"/dev/{device.id}") for device in request.devices]
        logs = [DeviceNode(f"/dev/{device.id}-log", permissions="r") for device in request.devices]
        return Edits((*nodes, *logs))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path, Nic) as made:
        (made.root / "dev").mkdir(parents=True)
        for number in range(4):
            plug(made, f"d{number}")
        yield made


def plug(node: Node, name: str) -> None:
    for path in (name, f"{name}-log"):
        (node.root / "dev" / path).touch()


def unplug(node: Node, name: str) -> None:
    for path in (name, f"{name}-log"):
        (node.root / "dev" / path).unlink()


def configure(node: Node, *lines: str) -> None:
    node.configure("resources:\n" + "".join(f"- {{backend: nic, {line}}}\n" for line in lines))


def near(node: Node, resource: str = NIC) -> dict[str, tuple[int, ...]]:
    """The NUMA nodes of each device, as the kubelet knows them."""
    return {device.id: device.numa_nodes for device in node.kubelet.devices(resource)}


async def given(node: Node, count: int = 1) -> dict[str, str]:
    """The permissions of each device node that a new container gets."""
    started = await node.container({NIC: count}, keep=True)
    return {one.host_path: one.permissions for one in started.devices}


async def test_without_topology_the_kubelet_receives_no_numa_nodes(node: Node) -> None:
    """As with excludeTopology of sriov-network-device-plugin, a pod may get a NIC of another NUMA node."""
    configure(node, f"name: {NIC}, topology: false, where: {{index: 0-1}}", f"name: {OTHER}")
    async with node.served({NIC: 2, OTHER: 2}):
        assert near(node) == {"d0": (), "d1": ()}
        assert near(node, OTHER) == {"d2": (0,), "d3": (1,)}


async def test_without_topology_devices_near_each_other_are_still_preferred(node: Node) -> None:
    configure(node, f"name: {NIC}, topology: false")
    async with node.served({NIC: 4}):
        await node.container({NIC: 2}, keep=True)
        assert node.kubelet.in_use(NIC) in ({"d0", "d2"}, {"d1", "d3"})


async def test_an_edit_of_topology_changes_the_list_on_the_open_stream(node: Node) -> None:
    configure(node, f"name: {NIC}")
    async with node.served({NIC: 4}):
        await node.container({NIC: 1}, keep=True)
        since = node.kubelet.events.position
        for line, nodes in ((", topology: false", ()), ("", (1,))):
            configure(node, f"name: {NIC}{line}")
            assert not await node.reload()
            await node.kubelet.wait_for(lambda nodes=nodes: near(node)["d1"] == nodes)
        assert not node.kubelet.events.of(events.StreamEnded, since=since)
        assert not node.kubelet.events.of(events.RegisterReceived, since=since)
        assert node.kubelet.allocatable() == {NIC: 4} and len(node.kubelet.allocations()) == 1


async def test_a_vanished_device_that_a_pod_holds_has_no_numa_node_either(node: Node) -> None:
    """One device with a NUMA node would make the kubelet align every device of the resource."""
    configure(node, f"name: {NIC}")
    async with node.served({NIC: 4}):
        await node.container({NIC: 1}, keep=True)
        (held,) = node.kubelet.in_use(NIC)
        unplug(node, held)
        node.look()
        await node.offers({NIC: 3})
        assert near(node)[held] != ()
        configure(node, f"name: {NIC}, topology: false")
        assert not await node.reload()
        await node.kubelet.wait_for(lambda: set(near(node).values()) == {()})
        assert held in near(node)


@pytest.mark.parametrize("share", ["replicas: 4", "replicas: 16, of: all", "replicas: 1"])
async def test_a_container_that_requests_more_than_the_limit_is_refused(node: Node, share: str) -> None:
    """NVIDIA's plugin (failRequestsGreaterThanOne) and GKE's time-sharing refuse this, too."""
    configure(node, f"name: {NIC}, share: {{{share}, maxPerContainer: 1}}")
    async with node.served():
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable().get(NIC, 0) > 1)
        await node.container({NIC: 1}, keep=True)
        with pytest.raises(UnexpectedAdmissionError) as refused:
            await node.container({NIC: 2})
        assert (
            f"{NIC}: the container requests 2, but share.maxPerContainer in the node's configuration is 1 "
            "(lower the container's limit)"
        ) in str(refused.value)


async def test_the_limit_applies_to_each_container_and_not_to_the_pod(node: Node) -> None:
    configure(node, f"name: {NIC}, share: {{maxPerContainer: 2}}")
    async with node.served({NIC: 4}):
        for container in ("one", "two"):
            await node.kubelet.admit("pod", container, NIC, 2)
        assert len(node.kubelet.in_use(NIC)) == 4


async def test_an_edit_of_the_limit_takes_effect_at_once_and_keeps_running_pods(node: Node) -> None:
    configure(node, f"name: {NIC}")
    async with node.served({NIC: 4}):
        await node.container({NIC: 2}, keep=True)
        since = node.kubelet.events.position
        configure(node, f"name: {NIC}, share: {{maxPerContainer: 1}}")
        assert not await node.reload()
        with pytest.raises(UnexpectedAdmissionError, match="maxPerContainer in the node"):
            await node.container({NIC: 2})
        assert len((await node.kubelet.start_container("pod-0", "main")).devices) == 4
        configure(node, f"name: {NIC}, share: {{maxPerContainer: 2}}")
        assert not await node.reload()
        await node.container({NIC: 2})
        assert not node.kubelet.events.of(events.StreamEnded, since=since)
        assert len(node.kubelet.in_use(NIC)) == 2


@pytest.mark.parametrize(
    ("permissions", "used", "log"),
    [("mrw", "mrw", "r"), ("rwm", "rwm", "r"), ("r", "r", "r"), ("rm", "rm", "r")],
)
async def test_permissions_apply_to_all_nodes_and_never_exceed_those_of_a_node(
    node: Node, permissions: str, used: str, log: str
) -> None:
    """GKE's GPU plugin, k8s-rdma-shared-dev-plugin, the Xilinx plugin and KubeVirt also grant mknod."""
    configure(node, f"name: {NIC}, permissions: {permissions}, where: {{index: 0}}")
    async with node.served({NIC: 1}):
        assert await given(node) == {"/dev/d0": used, "/dev/d0-log": log}


async def test_a_node_without_any_remaining_permission_is_refused(node: Node) -> None:
    configure(node, f"name: {NIC}, permissions: w, where: {{index: 0}}")
    async with node.served({NIC: 1}):
        with pytest.raises(UnexpectedAdmissionError) as refused:
            await given(node)
        assert (
            "no permissions are left for /dev/d0-log: it is given with 'r' only, and the resource allows 'w'"
        ) in str(refused.value)


@pytest.mark.parametrize("inject", ["direct", "cdi"])
async def test_an_edit_of_permissions_applies_to_new_containers(node: Node, inject: str) -> None:
    """A restarted container keeps its permissions; with CDI they are in the file."""
    configure(node, f"name: {NIC}, inject: {inject}")

    async def started(pod: str) -> set[str]:
        answer = await node.kubelet.start_container(pod, "main")
        parts = node.specified([one.name for one in answer.cdi_devices])
        found = [(each["path"], each["permissions"]) for part in parts for each in part["deviceNodes"]]
        found += [(one.host_path, one.permissions) for one in answer.devices]
        return {permissions for path, permissions in found if not path.endswith("-log")}

    async with node.served({NIC: 4}):
        await node.container({NIC: 2}, keep=True)
        since = node.kubelet.events.position
        configure(node, f"name: {NIC}, inject: {inject}, permissions: mrw")
        assert not await node.reload()
        await node.container({NIC: 1}, keep=True)
        assert (await started("pod-0"), await started("pod-1")) == ({"rw"}, {"mrw"})
        node.kubelet.release("pod-0")
        await node.container({NIC: 3}, keep=True)
        assert await started("pod-2") == {"mrw"}
        assert not node.kubelet.events.of(events.StreamEnded, since=since)
