"""Modules, nodes, ports and devices that are missing, down, gone or in a pod are distinguished."""

from __future__ import annotations

import pytest
import rdma_connectx as connectx
import rdma_machines as machines
from devhost_rdma import Rdma
from devhost_rdma.backend import RdmaOptions
from devhost_testing.fixtures import by_id, request
from rdma_backend import Exclusive, nodes
from rdma_expected import MACHINES
from rdma_tree import DISABLED, RdmaTree

from devhost.backend.errors import AllocationError


@pytest.mark.parametrize("machine", [connectx.connectx6_infiniband, connectx.connectx5_roce])
def test_without_rdma_ucm_nothing_is_allocated_and_the_reason_is_named(machine, tmp_path, looking):
    refused(looking(machine(tmp_path, without="rdma_ucm")), "rdma_cm is missing (is module rdma_ucm loaded?)")


def test_without_ib_umad_infiniband_is_unhealthy(tmp_path, looking):
    tree = connectx.connectx6_infiniband(tmp_path, without="ib_umad")
    refused(looking(tree), "umad is missing (is module ib_umad loaded?)")


def test_without_ib_umad_roce_works_and_has_no_umad(tmp_path, looking):
    backend = looking(connectx.connectx5_roce(tmp_path, without="ib_umad"))
    device = by_id(backend)["0000:af:00.0"]
    assert device.health.healthy
    assert device.attributes["hasUmad"] is False
    assert nodes(backend, device) == "rdma_cm uverbs0"


@pytest.mark.parametrize("machine", [connectx.connectx5_roce, machines.software])
def test_without_ib_uverbs_nothing_is_allocated(machine, tmp_path, looking):
    refused(
        looking(machine(tmp_path, without="ib_uverbs")), "uverbs is missing (is module ib_uverbs loaded?)"
    )


def test_a_device_without_nodes_is_unhealthy_until_they_appear(tmp_path, looking):
    tree = connectx.infiniband_half_made(tmp_path)
    backend = looking(tree)
    refused(backend, "uverbs is missing (is module ib_uverbs loaded?)")
    card = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    tree.uverbs(card, "mlx5_0")
    tree.umad(card, "mlx5_0", 1, issm=True)
    (device,) = by_id(backend).values()
    assert device.health.healthy
    assert nodes(backend, device) == "issm0 rdma_cm umad0 uverbs0"


@pytest.mark.parametrize("node", ["uverbs0", "umad0", "rdma_cm"])
def test_a_missing_required_node_is_named(node, tmp_path, looking):
    tree = connectx.connectx6_infiniband(tmp_path)
    (tree.root / "dev/infiniband" / node).unlink()
    refused(looking(tree), f"/dev/infiniband/{node} is missing (is udev running, is /dev mounted?)")


@pytest.mark.parametrize(
    ("machine", "node", "device"),
    [
        (connectx.connectx6_infiniband, "issm0", "0000:3b:00.0"),
        (connectx.connectx5_roce, "umad0", "0000:af:00.0"),
    ],
)
def test_an_optional_node_may_be_missing(machine, node, device, tmp_path, looking):
    tree = machine(tmp_path)
    (tree.root / "dev/infiniband" / node).unlink()
    backend = looking(tree)
    found = by_id(backend)[device]
    assert found.health.healthy
    needed = {
        n.path.rpartition("/")[2]: n.required for n in backend.allocate(request(backend, [found])).nodes
    }
    assert needed[node] is False
    assert needed["uverbs0"] is needed["rdma_cm"] is True


def test_the_connection_manager_is_optional_for_devices_that_cannot_use_it(tmp_path, looking):
    tree = machines.efa(tmp_path)
    RdmaTree(tmp_path)  # loads rdma_ucm
    backend = looking(tree)
    edits = backend.allocate(request(backend, list(by_id(backend).values())))
    assert {node.path.rpartition("/")[2]: node.required for node in edits.nodes} == {
        "uverbs0": True,
        "rdma_cm": False,
    }


def refused(backend: Rdma, reason: str) -> None:
    """Each device is Unhealthy with this reason, and allocating one fails with the same line."""
    devices = by_id(backend).values()
    assert devices
    for device in devices:
        assert device.health.reason == reason
        with pytest.raises(AllocationError) as failure:
            backend.allocate(request(backend, [device]))
        assert reason in str(failure.value)


def test_one_active_port_of_two_is_enough(tmp_path, looking):
    tree = machines.chelsio(tmp_path)
    backend = looking(tree)
    assert by_id(backend)["0000:5e:00.4"].health.healthy
    tree.file("/sys/class/infiniband/cxgb4_0/ports/2/state", "1: DOWN")
    assert not by_id(backend)["0000:5e:00.4"].health.healthy


def test_a_link_that_goes_down_and_up_changes_health_and_nothing_else(tmp_path, looking):
    backend = looking(machines.software(tmp_path))
    before = by_id(backend)
    machines.software(tmp_path, condition=DISABLED)
    down = by_id(backend)
    assert {d.health.reason for d in down.values()} == {"port 1 is down (phys state: disabled)"}
    assert {d.id: (d.claims, d.part_of) for d in down.values()} == {
        d.id: (d.claims, d.part_of) for d in before.values()
    }
    machines.software(tmp_path)
    assert by_id(backend) == before


@pytest.mark.parametrize(
    "machine", [connectx.infiniband_unplugged, connectx.infiniband_without_subnet_manager]
)
def test_ports_without_a_cable_are_healthy_with_the_option(machine, tmp_path, looking):
    backend = looking(machine(tmp_path), RdmaOptions(ignore_port_state=True))
    assert all(device.health.healthy for device in by_id(backend).values())


def test_allocate_uses_the_nodes_of_a_reloaded_driver(tmp_path, looking):
    tree = connectx.connectx6_infiniband(tmp_path)
    backend = looking(tree)
    (device,) = by_id(backend).values()
    card = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    for path in ("infiniband_verbs/uverbs0", "infiniband_mad/umad0", "infiniband_mad/issm0"):
        tree.remove(f"/sys/devices/{card}/{path}")
    tree.uverbs(card, "mlx5_0")
    tree.umad(card, "mlx5_0", 1, issm=True)
    assert nodes(backend, device) == "issm1 rdma_cm umad1 uverbs1"


def test_an_unplugged_adapter_disappears_and_others_stay(tmp_path, looking):
    tree = connectx.virtual_functions(tmp_path)
    backend = looking(tree)
    by_id(backend)
    tree.remove("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.3")
    left = by_id(backend)
    assert sorted(left) == ["0000:3b:00.0", "0000:3b:00.2", "0000:3b:00.4", "0000:3b:00.5"]
    assert all(device.health.healthy for device in left.values())


def test_a_function_without_its_driver_is_gone(tmp_path, looking):
    tree = connectx.connectx5_roce(tmp_path)
    backend = looking(tree)
    by_id(backend)
    card = "/sys/devices/pci0000:ae/0000:ae:00.0/0000:af:00.0"
    for path in (
        "infiniband_mad/umad0",
        "infiniband_verbs/uverbs0",
        "infiniband/mlx5_0",
        "net/ens1f0np0",
        "mlx5_core.rdma.0",
        "mlx5_core.eth.0",
    ):
        tree.remove(f"{card}/{path}")
    (tmp_path / card.lstrip("/") / "driver").unlink()
    assert sorted(by_id(backend)) == ["0000:af:00.1"]


def test_a_device_in_a_pod_stays_listed_and_cannot_be_allocated(tmp_path, looking):
    tree = connectx.connectx5_roce(tmp_path)
    backend = looking(tree, kind=Exclusive)
    before = by_id(backend)
    assert before["0000:af:00.0"].attributes["netnsMode"] == "exclusive"
    connectx.leave_for_a_pod(tree, "0000:af:00.0", "mlx5_0", "ens1f0np0")
    after = by_id(backend)
    assert after == before
    with pytest.raises(AllocationError, match=r"0000:af:00\.0 is in the network namespace of a pod"):
        backend.allocate(request(backend, [after["0000:af:00.0"]]))
    connectx.connectx5_roce(tmp_path)
    assert by_id(backend) == before
    assert nodes(backend, before["0000:af:00.0"]) == "rdma_cm umad0 uverbs0"


def test_a_device_in_a_pod_is_listed_also_by_a_backend_that_starts_later(tmp_path, looking):
    backend = looking(connectx.in_a_pod(tmp_path), kind=Exclusive)
    found = by_id(backend)
    assert sorted(found) == ["0000:af:00.0", "0000:af:00.1"]
    away = found["0000:af:00.0"]
    assert away.health.healthy
    known = {"vendor": "15b3", "device": "1017", "driver": "mlx5_core", "numaNode": 1, "isVf": False}
    assert {key: away.attributes.get(key) for key in known} == known
    assert "rdma:0000:af:00.0" in away.claims
    with pytest.raises(AllocationError, match="is in the network namespace of a pod"):
        backend.allocate(request(backend, [away]))


def test_a_device_whose_card_is_pulled_while_it_is_in_a_pod_is_gone(tmp_path, looking):
    tree = connectx.in_a_pod(tmp_path)
    backend = looking(tree, kind=Exclusive)
    by_id(backend)
    tree.remove("/sys/devices/pci0000:ae/0000:ae:00.0/0000:af:00.0")
    assert sorted(by_id(backend)) == ["0000:af:00.1"]


def test_a_function_that_lost_its_rdma_device_to_a_bond_is_gone(tmp_path, looking):
    tree = connectx.connectx5_roce(tmp_path)
    backend = looking(tree, kind=Exclusive)
    by_id(backend)
    card = "/sys/devices/pci0000:ae/0000:ae:00.0/0000:af:00.1"
    for path in ("infiniband_mad/umad1", "infiniband_verbs/uverbs1", "infiniband/mlx5_1", "mlx5_core.rdma.1"):
        tree.remove(f"{card}/{path}")
    assert sorted(by_id(backend)) == ["0000:af:00.0"]


def test_functions_without_rdma_do_not_count_as_in_a_pod(tmp_path, looking):
    for number, machine in enumerate(MACHINES):
        tree = machine(tmp_path / str(number))
        assert sorted(by_id(looking(tree, kind=Exclusive))) == sorted(MACHINES[machine])


def test_a_software_device_that_was_deleted_leaves_nothing_behind(tmp_path, looking):
    tree = machines.software(tmp_path)
    backend = looking(tree)
    by_id(backend)
    for path in ("infiniband_mad/umad0", "infiniband_verbs/uverbs0", "infiniband/rxe0"):
        tree.remove(f"/sys/devices/virtual/{path}")
    assert sorted(by_id(backend)) == ["siw0"]
