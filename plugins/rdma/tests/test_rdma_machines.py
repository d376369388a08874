"""What the backend makes of machines laid out as the kernel lays them out, looked at from outside."""

from __future__ import annotations

import pytest
import rdma_connectx as connectx
import rdma_machines as machines
from devhost_testing.fixtures import by_id, request
from rdma_backend import nodes
from rdma_expected import MACHINES
from rdma_tree import RdmaTree

EACH = [(machine, name) for machine, devices in MACHINES.items() for name in devices]
each_device = pytest.mark.parametrize(
    ("machine", "name"), EACH, ids=[f"{machine.__name__}-{name}" for machine, name in EACH]
)
each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)


@each_machine
def test_every_machine_has_exactly_its_devices(machine, tmp_path, looking):
    assert sorted(by_id(looking(machine(tmp_path)))) == sorted(MACHINES[machine])


@each_device
def test_the_attributes_of_a_device_match_the_kernel(machine, name, tmp_path, looking):
    expected = MACHINES[machine][name]
    device = by_id(looking(machine(tmp_path)))[name]
    found = {key: device.attributes.get(key) for key in expected.attributes}
    assert found == dict(expected.attributes)
    assert [key for key in expected.absent if key in device.attributes] == []
    assert "" not in device.attributes.values()
    assert device.numa_nodes == (() if expected.numa is None else (expected.numa,))


@each_device
def test_a_container_gets_all_nodes_of_its_device_and_no_others(machine, name, tmp_path, looking):
    backend = looking(machine(tmp_path))
    device = by_id(backend)[name]
    assert nodes(backend, device) == MACHINES[machine][name].nodes
    assert nodes(backend, device) == MACHINES[machine][name].nodes


@each_device
def test_every_unhealthy_device_has_the_right_reason(machine, name, tmp_path, looking):
    device = by_id(looking(machine(tmp_path)))[name]
    assert (device.health.reason or "") == MACHINES[machine][name].reason
    assert device.health.healthy is not bool(device.health.reason)


@each_machine
def test_every_node_except_the_shared_one_is_claimed_by_one_device(machine, tmp_path, looking):
    backend = looking(machine(tmp_path))
    claims = []
    for device in by_id(backend).values():
        own = set(nodes(backend, device).split()) - {"rdma_cm"}
        claimed = {claim for claim in device.claims if claim.startswith("node:")}
        assert claimed == {f"node:/dev/infiniband/{name}" for name in own}
        claims += device.claims
    assert len(claims) == len(set(claims))


def test_a_function_is_part_of_its_pci_function(tmp_path, looking):
    devices = by_id(looking(connectx.virtual_functions(tmp_path)))
    for name, device in devices.items():
        assert f"rdma:{name}" in device.claims
        assert device.part_of == {f"pci:{name}"}
        assert not any(claim.startswith("pci:") for claim in device.claims)


def test_a_scalable_function_is_also_part_of_its_auxiliary_device(tmp_path, looking):
    found = by_id(looking(connectx.scalable_function(tmp_path)))
    assert found["mlx5_core.sf.2"].part_of == {"pci:0000:03:00.0", "aux:mlx5_core.sf.2"}


def test_the_path_through_pcie_leads_from_the_root_port_to_the_function(tmp_path, looking):
    device = by_id(looking(connectx.scalable_function(tmp_path)))["mlx5_core.sf.2"]
    assert device.pcie_path == ("0000:00:01.0", "0000:03:00.0")
    assert by_id(looking(machines.software(tmp_path / "2")))["rxe0"].pcie_path == ()


def test_a_container_gets_the_names_of_its_rdma_devices(tmp_path, looking):
    backend = looking(connectx.connectx8_xdr(tmp_path))
    edits = backend.allocate(request(backend, list(by_id(backend).values())))
    assert edits.env["RDMA_DEVICES"] == "mlx5_0,smi1"
    assert edits.env["RDMA_DEVICES_EXAMPLE_COM_RESOURCE"] == "mlx5_0,smi1"  # for those with two resources
    backend = looking(connectx.virtual_functions(tmp_path / "2"))
    found = by_id(backend)
    edits = backend.allocate(request(backend, [found["0000:3b:00.4"], found["0000:3b:00.2"]]))
    assert sorted(edits.env["RDMA_DEVICES"].split(",")) == ["mlx5_2", "mlx5_4"]


def test_several_devices_share_one_connection_manager(tmp_path, looking):
    backend = looking(connectx.connectx5_roce(tmp_path))
    assert nodes(backend, *by_id(backend).values()) == "rdma_cm umad0 umad1 uverbs0 uverbs1"


def test_a_software_device_of_an_earlier_kernel_has_its_own_id(tmp_path, looking):
    backend = looking(machines.siw_below_its_card(tmp_path))
    (device,) = by_id(backend).values()
    assert device.id == "siw0"
    assert device.health.healthy
    assert device.attributes["ibDevice"] == "siw0"
    assert device.attributes["transport"] == "iwarp"
    assert nodes(backend, device) == "rdma_cm uverbs0"


def test_many_adapters_are_all_found_with_their_own_nodes(tmp_path, looking):
    backend = looking(connectx.many(tmp_path, 40))
    found = by_id(backend)
    assert len(found) == 40
    assert all(device.health.healthy for device in found.values())
    claims = [claim for device in found.values() for claim in device.claims if claim.startswith("node:")]
    assert len(claims) == len(set(claims)) == 3 * 40


def test_a_machine_with_modules_and_no_adapter_has_no_devices(tmp_path, looking):
    assert by_id(looking(RdmaTree(tmp_path, "mlx5_core", "mlx5_ib"))) == {}
