"""A device whose RDMA part is no longer visible is gone, down, or in a pod."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import rdma_connectx as connectx
import rdma_machines as machines
from devhost_rdma import Rdma
from devhost_testing.fixtures import BackendFixture, request
from rdma_backend import Exclusive
from rdma_tree import ACTIVE, DISABLED, EDR, RdmaTree, roce

from devhost.backend import Device, Event
from devhost.backend.errors import AllocationError

CARD = "/sys/devices/pci0000:ae/0000:ae:00.0/0000:af:00.0"


@pytest.fixture
def starting() -> Iterator[BackendFixture[Exclusive]]:
    """Makes backends that have just started, on a kernel with ``rdma system set netns exclusive``."""
    with BackendFixture(Exclusive) as starting:
        yield starting


def look(backend: Rdma) -> dict[str, Device]:
    backend.notice(Event())
    return {device.id: device for device in backend.discover()}


def leave(tree: RdmaTree) -> None:
    connectx.leave_for_a_pod(tree, "0000:af:00.0", "mlx5_0", "ens1f0np0")


def test_a_device_that_moved_into_a_pod_stays_unchanged_and_healthy(tmp_path, starting):
    tree = connectx.connectx5_roce(tmp_path)
    backend = starting(tmp_path)
    before = look(backend)
    leave(tree)
    for _ in range(3):
        assert look(backend) == before


def test_a_device_in_a_pod_is_healthy_even_if_it_was_down_before(tmp_path, starting):
    tree = connectx.connectx5_roce(tmp_path)
    tree.file(f"{CARD}/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    backend = starting(tmp_path)
    assert not look(backend)["0000:af:00.0"].health
    leave(tree)
    assert look(backend)["0000:af:00.0"].health


def test_a_device_in_a_pod_is_not_allocated_again(tmp_path, starting):
    tree = connectx.connectx5_roce(tmp_path)
    backend = starting(tmp_path)
    device = look(backend)["0000:af:00.0"]
    leave(tree)
    look(backend)
    with pytest.raises(AllocationError, match=r"0000:af:00\.0 is in the network namespace of a pod"):
        backend.allocate(request(backend, [device]))


def test_a_device_returns_when_the_pod_ends(tmp_path, starting):
    tree = connectx.connectx5_roce(tmp_path)
    backend = starting(tmp_path)
    before = look(backend)["0000:af:00.0"]
    leave(tree)
    look(backend)
    parent = CARD.removeprefix("/sys/devices/")
    tree.ibdev(parent, "mlx5_0", roce("ens1f0np0", EDR), guid=before.attributes["nodeGuid"])
    tree.netdev(parent, "ens1f0np0")
    after = look(backend)["0000:af:00.0"]
    assert after.health
    assert backend.allocate(request(backend, [after])).env["RDMA_DEVICES"] == "mlx5_0"


def test_after_a_restart_a_device_in_a_pod_is_known_by_its_nodes(tmp_path, starting):
    backend = starting(connectx.in_a_pod(tmp_path).root)
    device = look(backend)["0000:af:00.0"]
    assert device.health
    assert device.attributes == {
        "ibDevice": "mlx5_0",
        "ibDevices": ("mlx5_0",),
        "vendor": "15b3",
        "device": "1017",
        "driver": "mlx5_core",
        "pciBusID": "0000:af:00.0",
        "numaNode": 1,
        "isVf": False,
        "hasUmad": True,
        "hasIssm": False,
        "hasRdmaCm": True,
        "netnsMode": "exclusive",
    }
    assert {"rdma:0000:af:00.0", "ib:mlx5_0", "node:/dev/infiniband/uverbs0"} <= device.claims
    assert device.part_of == {"pci:0000:af:00.0"}
    assert device.numa_nodes == (1,)
    with pytest.raises(AllocationError, match="network namespace of a pod"):
        backend.allocate(request(backend, [device]))


def test_after_a_restart_a_bound_auxiliary_device_is_enough(tmp_path, starting):
    tree = connectx.in_a_pod(tmp_path)
    for path in ("infiniband_verbs/uverbs0", "infiniband_mad/umad0"):
        tree.remove(f"{CARD}/{path}")
    device = look(starting(tmp_path))["0000:af:00.0"]
    assert device.health
    assert device.attributes["driver"] == "mlx5_core"
    assert "ibDevice" not in device.attributes


def test_a_device_without_its_rdma_driver_is_gone(tmp_path, starting):
    tree = connectx.connectx5_roce(tmp_path)
    backend = starting(tmp_path)
    look(backend)
    for path in ("infiniband_mad/umad0", "infiniband_verbs/uverbs0", "infiniband/mlx5_0"):
        tree.remove(f"{CARD}/{path}")
    (tmp_path / CARD.lstrip("/") / "mlx5_core.rdma.0/driver").unlink()
    assert sorted(look(backend)) == ["0000:af:00.1"]


def test_an_adapter_unplugged_while_a_pod_holds_it_is_gone(tmp_path, starting):
    tree = connectx.connectx5_roce(tmp_path)
    backend = starting(tmp_path)
    look(backend)
    leave(tree)
    look(backend)
    tree.remove(CARD)
    assert sorted(look(backend)) == ["0000:af:00.1"]


def test_a_driver_without_auxiliary_device_counts_while_it_is_bound(tmp_path, starting):
    tree = machines.efa(tmp_path)
    backend = starting(tmp_path)
    before = look(backend)
    tree.remove("/sys/devices/pci0000:00/0000:00:06.0/infiniband/rdmap0s6")
    tree.remove("/sys/devices/pci0000:00/0000:00:06.0/infiniband_verbs/uverbs0")
    assert look(backend) == before
    (tmp_path / "sys/devices/pci0000:00/0000:00:06.0/driver").unlink()
    assert look(backend) == {}


def test_a_software_device_in_a_pod_is_known_by_its_nodes(tmp_path, starting):
    tree = machines.software(tmp_path)
    (tree.root / "sys/class/infiniband/rxe0").unlink()
    found = look(starting(tmp_path))
    assert found["rxe0"].health
    assert found["rxe0"].attributes["ibDevice"] == "rxe0"
    for path in ("infiniband_mad/umad0", "infiniband_verbs/uverbs0"):
        tree.remove(f"/sys/devices/virtual/{path}")
    assert sorted(look(starting(tmp_path))) == ["siw0"]


def test_a_scalable_function_in_a_pod_does_not_become_its_pci_function(tmp_path, starting):
    tree = connectx.scalable_function(tmp_path)
    backend = starting(tmp_path)
    before = look(backend)
    card = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
    (tree.root / "sys/class/infiniband/mlx5_2").unlink()
    assert (card / "mlx5_core.sf.2").exists()
    assert look(backend) == before
    assert sorted(look(starting(tmp_path))) == ["0000:03:00.0", "mlx5_core.sf.2"]


def test_a_companion_that_stayed_does_not_hide_the_move_of_its_device(tmp_path, starting):
    tree = connectx.connectx8_xdr(tmp_path)
    backend = starting(tmp_path)
    before = look(backend)
    (tree.root / "sys/class/infiniband/mlx5_0").unlink()
    assert look(backend) == before
    (device,) = look(starting(tmp_path)).values()
    assert device.health
    with pytest.raises(AllocationError, match="network namespace of a pod"):
        backend.allocate(request(backend, [device]))


def test_in_shared_mode_no_device_is_in_a_pod(tmp_path, starting):
    tree = connectx.connectx5_roce(tmp_path)
    backend = starting(tmp_path)
    look(backend)
    leave(tree)
    backend.core.mode = "shared"
    found = look(backend)
    assert sorted(found) == ["0000:af:00.1"]
    assert found["0000:af:00.1"].attributes["netnsMode"] == "shared"


def test_an_interface_in_a_pod_stays_an_attribute(tmp_path, starting):
    tree = connectx.virtual_functions(tmp_path)
    backend = starting(tmp_path)
    before = look(backend)
    for path in ("0000:3b:00.2/net/ens3f0v0", "0000:3b:00.0/net/ens3f0np0"):
        tree.remove(f"/sys/devices/pci0000:3a/0000:3a:00.0/{path}")
    after = look(backend)
    assert after["0000:3b:00.2"].attributes["netDevs"] == ("ens3f0v0",)
    assert after["0000:3b:00.3"].attributes["pfName"] == "ens3f0np0"
    assert after == before
    assert "netDevs" not in look(starting(tmp_path))["0000:3b:00.2"].attributes


def test_an_interface_with_a_new_name_replaces_the_old_one(tmp_path, starting):
    tree = connectx.connectx5_roce(tmp_path)
    backend = starting(tmp_path)
    look(backend)
    tree.remove(f"{CARD}/net/ens1f0np0")
    tree.netdev(CARD.removeprefix("/sys/devices/"), "rail0")
    assert look(backend)["0000:af:00.0"].attributes["netDevs"] == ("rail0",)


def test_a_port_that_is_down_keeps_its_rate(tmp_path, starting):
    tree = connectx.connectx5_roce(tmp_path)
    backend = starting(tmp_path)
    assert look(backend)["0000:af:00.0"].attributes["rate"] == 100
    ports = f"{CARD}/infiniband/mlx5_0/ports/1"
    tree.file(f"{ports}/rate", "10 Gb/sec (4X SDR)")
    for state, rate in ((DISABLED, 100), (ACTIVE, 10)):
        tree.file(f"{ports}/state", state[0])
        assert look(backend)["0000:af:00.0"].attributes["rate"] == rate
    tree.file(f"{ports}/state", DISABLED[0])
    assert "rate" not in look(starting(tmp_path))["0000:af:00.0"].attributes


def test_a_device_that_its_driver_made_again_has_no_rate_of_the_one_before(tmp_path, starting):
    tree = connectx.connectx5_roce(tmp_path)
    backend = starting(tmp_path)
    assert look(backend)["0000:af:00.0"].attributes["rate"] == 100
    (tmp_path / "sys/class/infiniband/mlx5_0").rename(tmp_path / "old")  # so that no inode is used twice
    parent = CARD.removeprefix("/sys/devices/")
    shutil.rmtree(tmp_path / CARD.lstrip("/") / "infiniband/mlx5_0")
    tree.ibdev(parent, "mlx5_0", roce("ens1f0np0", EDR, DISABLED), uverbs=False)
    assert "rate" not in look(backend)["0000:af:00.0"].attributes
