"""One function that two backends list never serves two pods, in either order of the file."""

from __future__ import annotations

import pytest
import sriov_network as network
from devhost_rdma import Rdma
from devhost_testing.fixtures import BackendFixture
from devhost_udev import Udev
from sriov_tree import SriovTree

from devhost.backend import Backend, Device
from devhost.planning.plan import RefusalKind
from devhost.planning.planner import make_plan
from devhost.planning.settings import ResourceSettings, Settings


@pytest.mark.parametrize("first", ["sriov", "rdma"])
@pytest.mark.parametrize("device", ["0000:3b:00.2", "mlx5_core.sf.2"])
def test_a_function_and_its_rdma_devices_go_to_one_resource(looking, tmp_path, first, device):
    tree = network.mlx5_switchdev(tmp_path)
    tree.file("/sys/devices/virtual/misc/rdma_cm/uevent", "DEVNAME=infiniband/rdma_cm")
    with BackendFixture(Rdma) as other:
        found = {
            "sriov": [one for one in looking(tree).discover() if one.id == device],
            "rdma": [one for one in other(tree).discover() if one.id == device],
        }
    order = [first, "rdma" if first == "sriov" else "sriov"]
    entries = [ResourceSettings(index, f"r/{name}", name) for index, name in enumerate(order)]
    plan = make_plan(found, Settings(tuple(entries)))
    assert [*plan.resources] == [f"r/{first}"]
    (refusal,) = plan.refusals
    assert (refusal.kind, refusal.backend) == (RefusalKind.CLAIMED, order[1])


@pytest.mark.parametrize("first", ["sriov", "udev"])
def test_a_scalable_function_and_a_node_of_it_go_to_one_resource(looking, tmp_path, first):
    tree = network.mlx5_switchdev(tmp_path)
    (verbs,) = tmp_path.glob("sys/devices/*/*/*/mlx5_core.sf.2/infiniband_verbs/*")
    function = device(looking(tree), id="mlx5_core.sf.2")
    assert refused(first, function, node(tree, f"/dev/infiniband/{verbs.name}")) != first


@pytest.mark.parametrize("first", ["sriov", "udev"])
@pytest.mark.parametrize("place", ["devices", "group"])
def test_a_function_and_its_vfio_node_go_to_one_resource(looking, tmp_path, first, place):
    tree = network.i40e_with_vfio(tmp_path)
    function = device(looking(tree), id="0000:5e:02.3")
    path = (tmp_path / "sys/kernel/iommu_groups/62/devices/0000:5e:02.3").resolve()
    (own,) = (path / "vfio-dev").iterdir()
    shown = "/dev/vfio/62" if place == "group" else f"/dev/vfio/devices/{own.name}"
    assert refused(first, function, node(tree, shown)) != first


def device(backend: Backend, **wanted: str) -> Device:
    (found,) = (
        one for one in backend.discover() if wanted.items() <= ({"id": one.id} | one.attributes).items()
    )
    return found


def node(tree: SriovTree, path: str) -> Device:
    with BackendFixture(Udev) as other:
        return device(other(tree), devNode=path)


def refused(first: str, function: Device, node: Device) -> str:
    """The backend whose device is not offered."""
    order = [first, "udev" if first == "sriov" else "sriov"]
    entries = [ResourceSettings(index, f"r/{name}", name) for index, name in enumerate(order)]
    (refusal,) = make_plan({"sriov": [function], "udev": [node]}, Settings(tuple(entries))).refusals
    assert refusal.kind is RefusalKind.CLAIMED
    return refusal.backend
