"""What network plugins read of a function, by the rules of the specification; and nodes that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sriov_network as network
import sriov_others as others
from devhost_sriov import Sriov
from devhost_sriov.options import PLAIN, SriovOptions, SriovUse
from devhost_testing.fixtures import BackendFixture, by_id, request

from devhost.allocation.device_info import flaw
from devhost.allocation.resource_backend import MissingPath, ResourceBackend, Terms
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import Scanner
from devhost.planning.settings import ResourceSettings
from devhost.telemetry.metrics import Metrics


def told(backend: Sriov, name: str, use: SriovUse = PLAIN) -> Mapping[str, Any] | None:
    """The document of a function, by the rules of the core if there is one."""
    device = by_id(backend)[name]
    document = backend.device_info(device, request(backend, [device], use))
    assert document is None or flaw(document) == ""
    return document


def test_the_document_of_a_virtual_function_has_the_physical_one(
    tmp_path: Path, looking: BackendFixture
) -> None:
    assert told(looking(network.igb(tmp_path)), "0000:02:10.0") == {
        "type": "pci",
        "version": "1.1.0",
        "pci": {"pci-address": "0000:02:10.0", "pf-pci-address": "0000:02:00.0"},
    }


def test_in_switchdev_mode_the_document_has_representor_and_rdma_device(
    tmp_path: Path, looking: BackendFixture
) -> None:
    assert told(looking(network.mlx5_switchdev(tmp_path)), "0000:3b:00.3", SriovUse(rdma=True)) == {
        "type": "pci",
        "version": "1.1.0",
        "pci": {
            "pci-address": "0000:3b:00.3",
            "pf-pci-address": "0000:3b:00.0",
            "representor-device": "ens3f0npf0vf1",
            "rdma-device": "mlx5_3",
        },
    }


def test_the_document_has_what_the_container_gets(tmp_path: Path, looking: BackendFixture) -> None:
    backend, use = looking(network.mlx5_switchdev(tmp_path)), SriovUse(vhost_net=True)
    document = told(backend, "0000:3b:00.2", use)
    assert document is not None
    assert "rdma-device" not in document["pci"]
    assert document["pci"]["vhost-net"] == "/dev/vhost-net"


def test_a_function_bound_to_vfio_has_a_document(tmp_path: Path, looking: BackendFixture) -> None:
    document = told(looking(network.i40e_with_vfio(tmp_path)), "0000:5e:02.2")
    assert document is not None
    assert document["pci"] == {"pci-address": "0000:5e:02.2", "pf-pci-address": "0000:5e:00.0"}


def test_the_document_of_a_vdpa_device_has_its_path(tmp_path: Path, looking: BackendFixture) -> None:
    tree = network.vdpa(tmp_path)
    tree.device("pci0000:3a/0000:3a:00.0/0000:3b:00.3/vdpa1/virtio5", "virtio", DRIVER="virtio_net")
    backend = looking(tree)
    place = {"pf-pci-address": "0000:3b:00.0"}
    assert told(backend, "0000:3b:00.2") == {
        "type": "vdpa",
        "version": "1.1.0",
        "vdpa": {
            "parent-device": "vdpa0",
            "driver": "vhost",
            "path": "/dev/vhost-vdpa-0",
            "pci-address": "0000:3b:00.2",
            **place,
        },
    }
    document = told(backend, "0000:3b:00.3")
    assert document is not None
    assert document["vdpa"] == {
        "parent-device": "vdpa1",
        "driver": "virtio",
        "path": "/sys/bus/virtio/devices/virtio5",
        "pci-address": "0000:3b:00.3",
        **place,
    }


def test_a_function_with_an_unbound_vdpa_device_is_a_pci_function(
    tmp_path: Path, looking: BackendFixture
) -> None:
    document = told(looking(network.vdpa(tmp_path)), "0000:3b:00.4")
    assert document is not None
    assert document["type"] == "pci"


def test_other_functions_have_no_document(tmp_path: Path, looking: BackendFixture) -> None:
    assert told(looking(others.qat(tmp_path)), "0000:6b:00.1") is None


def test_a_scalable_function_without_vdpa_has_no_document(tmp_path: Path, looking: BackendFixture) -> None:
    assert told(looking(network.mlx5_switchdev(tmp_path)), "mlx5_core.sf.2") is None


@pytest.mark.parametrize(
    ("machine", "function", "node"),
    [
        (network.i40e_with_vfio, "0000:5e:02.2", "/dev/vfio/vfio"),
        (others.gpu, "0000:4d:00.1", "/dev/vfio/vfio"),
        (others.qat, "0000:6b:00.3", "/dev/vfio/82"),
        (network.mlx5_switchdev, "0000:3b:00.2", "/dev/infiniband/rdma_cm"),
        (network.vdpa, "0000:3b:00.2", "/dev/vhost-vdpa-0"),
    ],
)
async def test_a_missing_node_is_named_and_nothing_is_allocated(
    tmp_path: Path, machine: Any, function: str, node: str
) -> None:
    machine(tmp_path)
    source = BackendRunner(Sriov, SriovOptions(), tmp_path, {"*"})
    devices = {device.id: device for device in source.discover([])}
    scanner = Scanner(source, Metrics(), lambda caused_at: None)
    backend = ResourceBackend("a.b/c", scanner, ResourceSettings(0, "a.b/c", "sriov"))
    terms = Terms(SriovUse(rdma="infiniband" in node))
    assert backend.ask([devices[function]], terms).edits.env["PCIDEVICE_A_B_C"] == function
    (tmp_path / node.lstrip("/")).unlink()
    with pytest.raises(MissingPath, match=f"^a.b/c: {node} does not exist on the node$"):
        backend.ask([devices[function]], terms)
    source.close()
