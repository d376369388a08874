"""What a container gets with a function, by what drives it: all that is needed, or one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sriov_network as network
import sriov_others as others
from devhost_sriov.allocation import CONTAINER, IOMMU
from devhost_sriov.options import PLAIN, SriovUse
from devhost_testing.fixtures import BackendFixture, by_id, request
from sriov_tree import SriovTree

from devhost.backend import AllocationError, DeviceNode, Edits

if TYPE_CHECKING:
    from devhost_sriov import Sriov

RESOURCE = "intel.com/sriov-net"
IDS, INFO = "PCIDEVICE_INTEL_COM_SRIOV_NET", "PCIDEVICE_INTEL_COM_SRIOV_NET_INFO"
KUBEVIRT = "PCI_RESOURCE_INTEL_COM_SRIOV-NET"

RDMA = SriovUse(rdma=True)


def given(backend: Sriov, *names: str, use: SriovUse = PLAIN) -> Edits:
    """What a container gets with these functions through an entry with the options ``use``."""
    devices = by_id(backend)
    return backend.allocate(request(backend, [devices[name] for name in names], use, RESOURCE))


def info_of(edits: Edits, name: str) -> dict[str, dict[str, str]]:
    """The entry of one function in the variable."""
    found: dict[str, dict[str, str]] = json.loads(edits.env[INFO])[name]
    return found


def single(
    tmp_path: Path, driver: str, *, group: int | None = None, pci_class: str = "0x020000"
) -> SriovTree:
    """A machine with one virtual function, 0000:3b:02.0."""
    tree = SriovTree(tmp_path)
    whole = tree.function(
        "0000:3b:00.0", "8086:1592", "ice", below="0000:3a:00.0", total=4, pci_class=pci_class
    )
    tree.virtual(whole, "0000:3b:02.0", "8086:1889", driver, group=group)
    return tree


VF = "0000:3b:02.0"
PATH = f"pci0000:3a/0000:3a:00.0/{VF}"


def test_an_interface_is_left_to_the_network_plugin(tmp_path: Path, looking: BackendFixture) -> None:
    edits = given(looking(network.igb(tmp_path)), "0000:02:10.0")
    assert (edits.nodes, edits.mounts, edits.annotations, edits.cdi_devices) == ((), (), {}, ())
    assert info_of(edits, "0000:02:10.0") == {"generic": {"deviceID": "0000:02:10.0"}}


def test_functions_are_named_in_the_same_order_for_any_order_of_tokens(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(network.igb(tmp_path))
    ids = ["0000:02:10.6", "0000:02:10.0", "0000:02:10.2"]
    edits = given(backend, *ids)
    assert edits.env[IDS] == "0000:02:10.0,0000:02:10.2,0000:02:10.6"
    assert list(json.loads(edits.env[INFO])) == sorted(ids)
    assert given(backend, *reversed(ids)) == edits


def test_both_variable_names_that_pods_may_read_are_set(tmp_path: Path, looking: BackendFixture) -> None:
    env = given(looking(network.igb(tmp_path)), "0000:02:10.0").env
    assert env[IDS] == env["PCIDEVICE_INTEL_COM_SRIOV-NET"] == "0000:02:10.0"
    assert env[INFO] == env["PCIDEVICE_INTEL_COM_SRIOV-NET_INFO"]
    assert len(env) == 4


def test_vfio_gives_the_container_the_group_and_the_device_itself(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = others.qat(tmp_path)
    tree.node(IOMMU, "10:125")
    edits = given(looking(tree), "0000:6b:00.4")
    assert edits.nodes == (
        DeviceNode("/dev/vfio/vfio"),
        DeviceNode("/dev/vfio/83"),
        DeviceNode("/dev/vfio/devices/vfio0", required=False),
        DeviceNode("/dev/iommu", required=False),
    )
    assert info_of(edits, "0000:6b:00.4")["vfio"] == {
        "mount": "/dev/vfio/vfio",
        "dev-mount": "/dev/vfio/83",
        "cdev-mount": "/dev/vfio/devices/vfio0",
    }


def test_a_kernel_without_vfio_devices_gives_only_the_group(tmp_path: Path, looking: BackendFixture) -> None:
    edits = given(looking(others.qat(tmp_path)), "0000:6b:00.3")
    assert edits.nodes == (DeviceNode("/dev/vfio/vfio"), DeviceNode("/dev/vfio/82"))


def test_a_kernel_without_groups_gives_only_the_device_itself(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = others.qat(tmp_path)
    (tmp_path / "dev/vfio/83").unlink()
    edits = given(looking(tree), "0000:6b:00.4")
    assert edits.nodes == (DeviceNode("/dev/vfio/devices/vfio0"), DeviceNode("/dev/iommu"))


def test_a_vendor_vfio_driver_counts_as_vfio(tmp_path: Path, looking: BackendFixture) -> None:
    edits = given(looking(others.gpu(tmp_path)), "0000:4d:00.1")
    assert DeviceNode("/dev/vfio/91") in edits.nodes


def test_without_an_iommu_the_node_has_both_names_that_programs_open(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = single(tmp_path, "vfio-pci", group=7)
    tree.file("/sys/kernel/iommu_groups/7/name", "vfio-noiommu")
    edits = given(looking(tree), VF)
    assert edits.nodes == (
        DeviceNode(CONTAINER),
        DeviceNode("/dev/vfio/noiommu-7"),
        DeviceNode("/dev/vfio/noiommu-7", "/dev/vfio/7"),
    )
    assert info_of(edits, VF)["vfio"] == {"mount": CONTAINER, "dev-mount": "/dev/vfio/7"}


def test_two_functions_of_one_group_get_its_node_once_from_the_core(
    tmp_path: Path, looking: BackendFixture
) -> None:
    edits = Edits.merge([given(looking(network.i40e_with_vfio(tmp_path)), "0000:5e:02.2", "0000:5e:02.3")])
    assert [node.path for node in edits.nodes if node.path.startswith("/dev/vfio/6")] == ["/dev/vfio/62"]


def test_a_group_with_a_member_in_use_by_the_host_is_refused(tmp_path: Path, looking: BackendFixture) -> None:
    tree = network.i40e_with_vfio(tmp_path)
    neighbour = "pci0000:5d/0000:5d:00.0/0000:5e:00.1"
    tree.pci(neighbour, driver="i40e", iommu_group=62)
    with pytest.raises(AllocationError) as caught:
        given(looking(tree), "0000:5e:02.2")
    assert str(caught.value) == (
        "0000:5e:02.2 cannot be used: 0000:5e:00.1 in the same IOMMU group 62 is bound to i40e "
        "(bind it to vfio-pci, or to no driver)"
    )


@pytest.mark.parametrize("driver", ["", "pcieport", "pci-stub", "vfio-pci", "mlx5_vfio_pci"])
def test_a_harmless_member_of_a_group_is_accepted(
    tmp_path: Path, looking: BackendFixture, driver: str
) -> None:
    tree = network.i40e_with_vfio(tmp_path)
    tree.pci("pci0000:5d/0000:5d:00.0/0000:5e:00.1", driver=driver, iommu_group=62)
    assert DeviceNode("/dev/vfio/62") in given(looking(tree), "0000:5e:02.2").nodes


def test_vfio_without_a_group_is_refused_with_a_hint(tmp_path: Path, looking: BackendFixture) -> None:
    with pytest.raises(AllocationError, match=f"^{VF} has no IOMMU group .is the IOMMU enabled"):
        given(looking(single(tmp_path, "vfio-pci")), VF)


@pytest.mark.parametrize("driver", ["uio_pci_generic", "igb_uio"])
def test_uio_gives_the_node_of_the_driver(tmp_path: Path, looking: BackendFixture, driver: str) -> None:
    tree = single(tmp_path, driver)
    tree.device(f"{PATH}/uio/uio5", "uio", "uio5", "245:5")
    edits = given(looking(tree), VF)
    assert edits.nodes == (DeviceNode("/dev/uio5"),)
    assert info_of(edits, VF)["uio"] == {"mount": "/dev/uio5"}


def test_a_uio_driver_without_a_device_is_refused(tmp_path: Path, looking: BackendFixture) -> None:
    with pytest.raises(AllocationError, match=f"^{VF}: its driver igb_uio created no uio device$"):
        given(looking(single(tmp_path, "igb_uio")), VF)


def test_the_rdma_nodes_of_a_function_come_with_it_and_no_others(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = network.mlx5_switchdev(tmp_path)
    vf = "pci0000:3a/0000:3a:00.0/0000:3b:00.2"
    for name, number in (("umad2", 2), ("issm2", 66)):
        tree.device(f"{vf}/infiniband_mad/{name}", "infiniband_mad", f"infiniband/{name}", f"231:{number}")
    edits = given(looking(tree), "0000:3b:00.2", use=RDMA)
    (uverbs,) = [p.name for p in (tmp_path / "sys/devices" / vf / "infiniband_verbs").iterdir()]
    assert edits.nodes == (
        DeviceNode(f"/dev/infiniband/{uverbs}"),
        DeviceNode("/dev/infiniband/umad2"),
        DeviceNode("/dev/infiniband/issm2"),
        DeviceNode("/dev/infiniband/rdma_cm"),
    )
    assert info_of(edits, "0000:3b:00.2")["rdma"] == {
        "uverbs": f"/dev/infiniband/{uverbs}",
        "umad": "/dev/infiniband/umad2",
        "issm": "/dev/infiniband/issm2",
        "rdma_cm": "/dev/infiniband/rdma_cm",
        "rdma_dev": "mlx5_2",
    }


def test_a_scalable_function_brings_its_own_rdma_device(tmp_path: Path, looking: BackendFixture) -> None:
    edits = given(looking(network.mlx5_switchdev(tmp_path)), "mlx5_core.sf.2", use=RDMA)
    assert edits.env[IDS] == "mlx5_core.sf.2"
    assert info_of(edits, "mlx5_core.sf.2")["rdma"]["rdma_dev"] == "mlx5_10"


def test_an_entry_without_rdma_gets_no_rdma_node(tmp_path: Path, looking: BackendFixture) -> None:
    """As in sriov-network-device-plugin, where only ``isRdma: true`` gives them."""
    edits = given(looking(network.mlx5_switchdev(tmp_path)), "0000:3b:00.2")
    assert edits.nodes == ()
    assert info_of(edits, "0000:3b:00.2") == {"generic": {"deviceID": "0000:3b:00.2"}}


def companion(tree: SriovTree, function: str, name: str) -> None:
    """A second RDMA device of a function, without verbs, as an XDR adapter has one."""
    path = f"pci0000:3a/0000:3a:00.0/{function}"
    tree.device(f"{path}/infiniband/{name}", "infiniband", files={"node_type": "1: CA"})
    for number, node in ((60, "umad60"), (124, "issm60")):
        tree.device(
            f"{path}/infiniband_mad/{node}", "infiniband_mad", f"infiniband/{node}", f"231:{number}",
            files={"ibdev": name},
        )  # fmt: skip


@pytest.mark.parametrize("name", ["smi1", "a_smi"])
def test_the_one_rdma_device_that_is_named_is_the_one_with_verbs(
    tmp_path: Path, looking: BackendFixture, name: str
) -> None:
    """sriov-network-device-plugin names one too, so that ``ib_write_bw -d`` takes it; the rest are nodes."""
    tree = network.mlx5_switchdev(tmp_path)
    companion(tree, "0000:3b:00.2", name)
    tree.device(
        "pci0000:3a/0000:3a:00.0/0000:3b:00.2/infiniband_mad/umad61", "infiniband_mad", "infiniband/umad61",
        "231:61", files={"ibdev": "mlx5_2"},
    )  # fmt: skip
    edits = given(looking(tree), "0000:3b:00.2", use=RDMA)
    info = info_of(edits, "0000:3b:00.2")["rdma"]
    assert (info["rdma_dev"], info["umad"]) == ("mlx5_2", "/dev/infiniband/umad61")
    assert info["issm"] == "/dev/infiniband/issm60", "of a kind that the device itself has not"
    assert {"/dev/infiniband/umad60", "/dev/infiniband/umad61"} <= {node.path for node in edits.nodes}


def test_the_first_of_several_devices_with_verbs_is_named_with_its_node(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = network.mlx5_switchdev(tmp_path)
    path = "pci0000:3a/0000:3a:00.0/0000:3b:00.2"
    (uverbs,) = [one.name for one in (tmp_path / "sys/devices" / path / "infiniband_verbs").iterdir()]
    tree.device(f"{path}/infiniband/mlx4_7", "infiniband")
    tree.device(
        f"{path}/infiniband_verbs/uverbs50", "infiniband_verbs", "infiniband/uverbs50", "231:250",
        files={"ibdev": "mlx4_7"},
    )  # fmt: skip
    edits = given(looking(tree), "0000:3b:00.2", use=RDMA)
    info = info_of(edits, "0000:3b:00.2")["rdma"]
    assert (info["rdma_dev"], info["uverbs"]) == ("mlx4_7", "/dev/infiniband/uverbs50")
    assert f"/dev/infiniband/{uverbs}" in {node.path for node in edits.nodes}


def test_an_rdma_device_that_cannot_be_opened_is_refused(tmp_path: Path, looking: BackendFixture) -> None:
    tree = network.mlx5_switchdev(tmp_path)
    backend = looking(tree)
    devices = by_id(backend)
    (uverbs,) = (tmp_path / "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2/infiniband_verbs").iterdir()
    tree.remove(f"/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2/infiniband_verbs/{uverbs.name}")
    with pytest.raises(AllocationError, match=r"has no uverbs node .is module ib_uverbs loaded"):
        backend.allocate(request(backend, [devices["0000:3b:00.2"]], RDMA))


def test_an_rdma_device_in_the_network_namespace_of_a_pod_is_refused(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = network.mlx5_switchdev(tmp_path)
    backend = looking(tree)
    devices = by_id(backend)
    tree.remove("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2/infiniband/mlx5_2")
    with pytest.raises(AllocationError, match=r"is in the network namespace of a pod$"):
        backend.allocate(request(backend, [devices["0000:3b:00.2"]], RDMA))


def test_a_companion_does_not_replace_the_rdma_device_in_a_pod(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = network.mlx5_switchdev(tmp_path)
    companion(tree, "0000:3b:00.2", "smi1")
    tree.remove("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2/infiniband/mlx5_2")
    with pytest.raises(AllocationError, match=r"is in the network namespace of a pod$"):
        given(looking(tree), "0000:3b:00.2", use=RDMA)


def test_vhost_net_comes_with_network_functions_on_request(tmp_path: Path, looking: BackendFixture) -> None:
    use = SriovUse(vhost_net=True)
    edits = given(looking(network.igb(tmp_path / "nic")), "0000:02:10.0", use=use)
    assert edits.nodes == (DeviceNode("/dev/vhost-net"), DeviceNode("/dev/net/tun"))
    assert info_of(edits, "0000:02:10.0")["vhost"] == {
        "net-mount": "/dev/vhost-net",
        "tun-mount": "/dev/net/tun",
    }
    assert given(looking(others.qat(tmp_path / "qat")), "0000:6b:00.1", use=use).nodes == ()


def test_a_vdpa_device_for_programs_gives_its_node_and_one_for_the_kernel_none(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(network.vdpa(tmp_path))
    edits = given(backend, "0000:3b:00.2")
    assert edits.nodes == (DeviceNode("/dev/vhost-vdpa-0"),)
    assert info_of(edits, "0000:3b:00.2")["vdpa"] == {"mount": "/dev/vhost-vdpa-0"}
    assert given(backend, "0000:3b:00.3").nodes == ()


def test_configured_info_is_added_for_each_function(tmp_path: Path, looking: BackendFixture) -> None:
    info = {"*": {"token": "abc", "zone": "1"}, "0000:02:10.2": {"token": "def"}}
    use = SriovUse(info=info)
    edits = given(looking(network.igb(tmp_path)), "0000:02:10.0", "0000:02:10.2", use=use)
    assert info_of(edits, "0000:02:10.0")["extra"] == {"token": "abc", "zone": "1"}
    assert info_of(edits, "0000:02:10.2")["extra"] == {"token": "def", "zone": "1"}


def test_kubevirt_finds_functions_bound_to_vfio_by_the_name_it_looks_for(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend, use = looking(others.qat(tmp_path)), SriovUse(kubevirt=True)
    assert (
        given(backend, "0000:6b:00.4", "0000:6b:00.3", use=use).env[KUBEVIRT] == "0000:6b:00.3,0000:6b:00.4"
    )
    with pytest.raises(
        AllocationError, match=r"^0000:6b:00\.1: kubevirt: true needs vfio, and it is bound to"
    ):
        given(backend, "0000:6b:00.4", "0000:6b:00.1", use=use)


VGPU = "0000:41:00.4"


def test_a_vgpu_is_passed_on_although_its_driver_is_not_called_vfio(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(others.vgpu(tmp_path))
    device = by_id(backend)[VGPU]
    assert (device.health.healthy, device.withheld, device.attributes["isVfio"]) == (True, None, True)
    assert device.attributes["vgpuType"] == 1145
    assert {"iommu:64", "node:/dev/vfio/64"} <= device.claims
    edits = given(backend, VGPU, use=SriovUse(kubevirt=True))
    assert edits.env[KUBEVIRT] == VGPU
    assert [(node.path, node.permissions) for node in edits.nodes if node.required] == [
        ("/dev/vfio/vfio", "mrw"),
        ("/dev/vfio/64", "mrw"),
    ]


def test_a_virtual_function_without_a_configured_vgpu_is_withheld(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = others.vgpu(tmp_path)
    backend = looking(tree)
    assert by_id(backend)["0000:41:00.5"].withheld == (
        "no vGPU is configured: its nvidia/current_vgpu_type is 0 (write the number of a vGPU type to it)"
    )
    device = by_id(backend)[VGPU]
    tree.file(f"/sys/devices/pci0000:40/0000:40:01.0/{VGPU}/nvidia/current_vgpu_type", "0")
    with pytest.raises(
        AllocationError, match=f"^{VGPU} has no vGPU any longer: its nvidia/current_vgpu_type"
    ):
        backend.allocate(request(backend, [device]))


def test_a_function_of_any_class_with_a_vfio_device_is_listed(
    tmp_path: Path, looking: BackendFixture
) -> None:
    """Whatever its driver is called, such as a variant for one vendor's adapters."""
    tree = SriovTree(tmp_path)
    path = tree.function("0000:17:00.0", "10de:2342", "egm", pci_class="0x030200", group=95)
    assert "0000:17:00.0" not in by_id(looking(tree))
    tree.vfio(path)
    assert by_id(looking(tree))["0000:17:00.0"].attributes["isVfio"] is True


def test_a_member_of_a_group_with_a_vfio_device_keeps_the_group_usable(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = network.i40e_with_vfio(tmp_path)
    other = "pci0000:5d/0000:5d:00.0/0000:5e:00.1"
    tree.pci(other, driver="egm", iommu_group=62)
    tree.vfio(other)
    assert DeviceNode("/dev/vfio/62") in given(looking(tree), "0000:5e:02.2").nodes


def test_kubevirt_gets_vfio_nodes_with_the_permissions_that_it_expects(
    tmp_path: Path, looking: BackendFixture
) -> None:
    """KubeVirt gives ``/dev/vfio/vfio`` and the group with ``mrw``; other entries give ``rw``."""
    backend = looking(others.qat(tmp_path))
    nodes = given(backend, "0000:6b:00.4", use=SriovUse(kubevirt=True)).nodes
    assert {"/dev/vfio/vfio", "/dev/vfio/83"} <= {node.path for node in nodes}
    assert {node.permissions for node in nodes} == {"mrw"}
    assert {node.permissions for node in given(backend, "0000:6b:00.4").nodes} == {"rw"}


def test_numbers_are_read_at_allocate(tmp_path: Path, looking: BackendFixture) -> None:
    tree = single(tmp_path, "uio_pci_generic")
    tree.device(f"{PATH}/uio/uio0", "uio", "uio0", "245:0")
    backend = looking(tree)
    device = by_id(backend)[VF]
    tree.remove(f"/sys/devices/{PATH}/uio/uio0")
    tree.device(f"{PATH}/uio/uio3", "uio", "uio3", "245:3")
    assert backend.allocate(request(backend, [device])).nodes == (DeviceNode("/dev/uio3"),)


def test_a_function_that_was_rebound_meanwhile_is_refused(tmp_path: Path, looking: BackendFixture) -> None:
    tree = single(tmp_path, "vfio-pci", group=9)
    backend = looking(tree)
    device = by_id(backend)[VF]
    (tmp_path / "sys/devices" / PATH / "driver").unlink()
    with pytest.raises(AllocationError, match=f"^{VF} is now bound to no driver; it was bound to vfio-pci$"):
        backend.allocate(request(backend, [device]))
    tree.link(f"/sys/devices/{PATH}/driver", "/sys/bus/pci/drivers/iavf")
    with pytest.raises(AllocationError, match=f"^{VF} is now bound to iavf; it was bound to vfio-pci$"):
        backend.allocate(request(backend, [device]))


def test_a_function_that_is_gone_is_refused_before_and_after_the_next_scan(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = single(tmp_path, "iavf")
    backend = looking(tree)
    device = by_id(backend)[VF]
    backend.notice(tree.remove(f"/sys/devices/{PATH}"))
    for _ in range(2):
        with pytest.raises(AllocationError, match=f"^{VF} is gone$"):
            backend.allocate(request(backend, [device]))
        backend.discover()
