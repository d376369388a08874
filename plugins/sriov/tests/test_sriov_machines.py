"""What is found on modelled machines, by what a user will read of it."""

from __future__ import annotations

import pytest
import sriov_network as network
import sriov_others as others
from devhost_testing.fixtures import by_id
from sriov_tree import SriovTree


def test_every_virtual_function_has_its_parent_and_number(looking, tmp_path):
    found = by_id(looking(network.igb(tmp_path)))
    assert list(found) == ["0000:02:00.0", *(f"0000:02:10.{n}" for n in (0, 2, 4, 6))]
    assert found["0000:02:10.4"].attributes == {
        "kind": "vf",
        "vendor": "8086",
        "device": "10ca",
        "subsystemVendor": "1af4",
        "subsystemDevice": "1100",
        "pciClass": "020000",
        "driver": "igbvf",
        "isVfio": False,
        "pciBusID": "0000:02:10.4",
        "pciSlot": "0000:02:10",
        "pcieRoot": "pci0000:00",
        "pfName": "enp2s0",
        "pfNames": ("enp2s0",),
        "pfPciBusID": "0000:02:00.0",
        "vfIndex": 2,
        "iommuGroup": 14,
        "netDevs": ("enp2s0v2",),
        "mac": "02:00:5e:10:00:05",
        "linkType": "ether",
        "linkState": "down",
        "mtu": 1500,
        "isRdma": False,
    }
    assert found["0000:02:10.4"].pcie_path == ("0000:00:05.0", "0000:02:10.4")
    assert found["0000:02:10.4"].numa_nodes == ()


def test_a_physical_function_has_its_numbers_of_virtual_functions(looking, tmp_path):
    attributes = by_id(looking(network.igb(tmp_path)))["0000:02:00.0"].attributes
    assert (attributes["kind"], attributes["totalVfs"], attributes["numVfs"]) == ("pf", 7, 4)
    assert "pfName" not in attributes and "vfIndex" not in attributes


def test_a_physical_function_with_virtual_ones_is_withheld(looking, tmp_path):
    found = by_id(looking(network.mlx5_switchdev(tmp_path / "switchdev")))
    reason = "it has 2 virtual functions and 2 scalable functions, which are offered instead"
    assert found["0000:3b:00.0"].withheld == reason
    assert not any(device.withheld for device in found.values() if device.attributes["kind"] != "pf")
    one = by_id(looking(network.connectx3_two_ports(tmp_path / "one")))["0000:05:00.0"]
    assert one.withheld == "it has 1 virtual function, which is offered instead"
    alone = by_id(looking(network.igb(tmp_path / "alone", 0)))["0000:02:00.0"]
    assert not alone.withheld
    assert [one.divided for one in (found["0000:3b:00.0"], one, alone)] == [True, True, False]


def test_the_uplink_gives_the_name_instead_of_representors(looking, tmp_path):
    found = by_id(looking(network.mlx5_switchdev(tmp_path)))
    names = {device.attributes["pfName"] for device in found.values() if "pfName" in device.attributes}
    assert names == {"ens3f0np0", "ens3f1np1"}
    assert found["0000:3b:00.0"].attributes["netDevs"] == ("ens3f0np0",)


def test_each_function_has_its_representor(looking, tmp_path):
    found = by_id(looking(network.mlx5_switchdev(tmp_path)))
    assert {name: device.attributes.get("representor") for name, device in found.items()} == {
        "0000:3b:00.0": None,
        "mlx5_core.sf.2": "en3f0pf0sf88r",
        "mlx5_core.sf.3": "en3f0pf0sf89r",
        "0000:3b:00.1": None,
        "0000:3b:00.2": "ens3f0npf0vf0",
        "0000:3b:00.3": "ens3f0npf0vf1",
        "0000:3b:01.2": "ens3f1npf1vf0",
        "0000:3b:01.3": "ens3f1npf1vf1",
    }
    assert {device.attributes["eswitchMode"] for device in found.values()} == {"switchdev"}


def test_representors_without_a_parent_are_found_by_their_switch(looking, tmp_path):
    found = by_id(looking(network.bnxt_switchdev(tmp_path)))
    names = [found[f"0000:86:02.{number}"].attributes["representor"] for number in range(2)]
    assert names == ["eth0", "eth1"]


def test_ports_with_plain_numbers_are_representors_only_beside_an_uplink(looking, tmp_path):
    tree = SriovTree(tmp_path)
    for number in range(2):
        card = tree.function(f"0000:0{number}:00.0", "19ee:4000", "nfp", total=8)
        tree.netdev(card, f"port{number}", port_name="0")
    tree.netdev(card, "uplink", port_name="p0")
    path = tree.virtual(card, "0000:01:08.0", "19ee:6003", "nfp_netvf")
    found = by_id(looking(tree))
    assert [found[f"0000:0{number}:00.0"].attributes["netDevs"] for number in range(2)] == [
        ("port0",),
        ("uplink",),
    ]
    assert found[path.rpartition("/")[2]].attributes["representor"] == "port1"


def test_a_scalable_function_is_found_with_its_devices(looking, tmp_path):
    device = by_id(looking(network.mlx5_switchdev(tmp_path)))["mlx5_core.sf.2"]
    attributes = device.attributes
    assert (attributes["kind"], attributes["sfNum"], attributes["driver"]) == ("sf", 88, "mlx5_core.sf")
    assert (attributes["netDevs"], attributes["rdmaDevices"]) == (("enp59s0f0s88",), ("mlx5_10",))
    assert (attributes["pfPciBusID"], attributes["device"]) == ("0000:3b:00.0", "101d")
    assert device.claims == {"aux:mlx5_core.sf.2", "node:/dev/infiniband/uverbs6"}
    assert device.part_of == {"pci:0000:3b:00.0"}
    assert device.pcie_path == ("0000:3a:00.0", "0000:3b:00.0")


def test_a_function_for_programs_claims_its_iommu_group(looking, tmp_path):
    found = by_id(looking(network.i40e_with_vfio(tmp_path)))
    assert found["0000:5e:02.0"].claims == {"pci:0000:5e:02.0"}
    group = {"iommu:62", "node:/dev/vfio/62"}
    for n, function in enumerate(("0000:5e:02.2", "0000:5e:02.3")):
        own = {f"pci:{function}", f"node:/dev/vfio/devices/vfio{n}"}
        assert found[function].claims == own | group
    assert found["0000:5e:02.3"].part_of == {"pci:0000:5e:00.0"}


def test_a_bound_function_has_the_link_type_of_its_physical_one(looking, tmp_path):
    found = by_id(looking(network.i40e_with_vfio(tmp_path)))
    bound = found["0000:5e:02.2"].attributes
    assert (bound["linkType"], bound["driver"], bound.get("netDevs")) == ("ether", "vfio-pci", None)
    assert found["0000:5e:00.0"].attributes["acpiIndex"] == 3


def test_virtual_functions_of_a_fabric_show_their_partition(looking, tmp_path):
    found = by_id(looking(network.connectx_infiniband(tmp_path)))
    assert [device.attributes["pKey"] for device in found.values()] == ["0xffff", "0xffff", "0x8001"]
    assert {device.attributes["linkType"] for device in found.values()} == {"infiniband"}
    assert found["0000:af:00.2"].attributes["rdmaDevices"] == ("mlx5_2",)


def test_the_first_of_several_ports_gives_the_name_and_all_can_be_selected(looking, tmp_path):
    virtual = by_id(looking(network.connectx3_two_ports(tmp_path)))["0000:05:00.1"].attributes
    assert (virtual["pfName"], virtual["pfNames"]) == ("ens2d1", ("ens2d1", "ens2"))


def test_the_driver_of_a_vdpa_device_gives_its_type(looking, tmp_path):
    found = by_id(looking(network.vdpa(tmp_path)))
    types = [found[f"0000:3b:00.{number}"].attributes.get("vdpaType") for number in (2, 3, 4)]
    assert types == ["vhost", "virtio", None]


def test_an_interface_of_a_virtio_device_belongs_to_the_function_below(looking, tmp_path):
    tree = network.vdpa(tmp_path / "vdpa")
    tree.netdev("pci0000:3a/0000:3a:00.0/0000:3b:00.3/vdpa1/virtio0", "eth7")
    assert by_id(looking(tree))["0000:3b:00.3"].attributes["netDevs"] == ("eth7",)
    alone = by_id(looking(others.virtio_nic(tmp_path / "nic")))
    assert alone["0000:00:03.0"].attributes["netDevs"] == ("ens3",)


def test_functions_of_any_class_are_found_once_they_are_virtual(looking, tmp_path):
    for number, (machine, pci_class, count) in enumerate(
        ((others.qat, "0b4000", 4), (others.nvme, "010802", 2), (others.gpu, "038000", 2))
    ):
        found = by_id(looking(machine(tmp_path / str(number)))).values()
        virtual = [device for device in found if device.attributes["kind"] == "vf"]
        assert [device.attributes["pciClass"] for device in virtual] == [pci_class] * count
        assert [device.attributes["vfIndex"] for device in virtual] == list(range(count))
        assert not any("pfName" in device.attributes for device in virtual)


def test_a_function_of_another_class_is_listed_only_with_a_driver_for_programs(looking, tmp_path):
    found = by_id(looking(others.gpu(tmp_path / "gpu")))
    assert {"0000:17:00.0", "0000:17:00.1"} < found.keys()
    assert "0000:18:00.0" not in found
    assert "0000:05:00.0" not in by_id(looking(others.nvme(tmp_path / "nvme")))


def test_chipset_functions_are_not_listed(looking, tmp_path):
    assert by_id(looking(others.chipset(tmp_path))) == {}


def test_an_invalid_number_of_virtual_functions_is_ignored(looking, tmp_path):
    tree = SriovTree(tmp_path)
    tree.function("0000:05:00.0", "1b36:0010", "nvme", pci_class="0x010802", total=-3)
    assert by_id(looking(tree)) == {}


def test_without_an_interface_there_is_an_address_but_no_name(looking, tmp_path):
    found = by_id(looking(others.without_interface(tmp_path)))
    attributes = found["0000:3b:01.1"].attributes
    assert attributes["pfPciBusID"] == "0000:3b:00.0"
    assert not {"pfName", "pfNames", "linkType", "netDevs", "mac", "linkState"} & attributes.keys()


def test_invalid_files_omit_their_attribute(looking, tmp_path):
    found = by_id(looking(others.odd(tmp_path)))
    assert (
        not {"device", "subsystemVendor", "acpiIndex", "totalVfs"} & found["0000:02:00.0"].attributes.keys()
    )
    card = found["0000:03:00.0"].attributes
    assert card["netDevs"] == ("eth0",)
    assert not {"mtu", "mac", "linkState", "linkType"} & card.keys()
    assert "vfIndex" not in found["0000:03:02.0"].attributes
    assert found["0000:01:00.0"].attributes["vendor"] == "ffff"


def test_a_damaged_link_on_the_bus_hides_no_other_function(looking, tmp_path):
    tree = network.igb(tmp_path)
    before = set(by_id(looking(tree)))
    tree.file("/sys/devices/virtual/odd/class", "0x020000")
    link = tmp_path / "sys/bus/pci/devices/0000:02:10.2"
    link.unlink()
    link.symlink_to("../../../devices/virtual/odd")
    assert set(by_id(looking(tree))) == before - {"0000:02:10.2"}


@pytest.mark.parametrize("group", ["٣", "x", ""])
def test_an_invalid_iommu_group_is_not_claimed(looking, tmp_path, group):
    tree = others.qat(tmp_path)
    (function,) = (tmp_path / "sys/devices").rglob("0000:6b:00.4")
    (function / "iommu_group").unlink()
    (function / "iommu_group").symlink_to(f"../groups/{group}")
    device = by_id(looking(tree))["0000:6b:00.4"]
    assert not device.health
    assert not [claim for claim in device.claims if claim.startswith("iommu:")]


@pytest.mark.parametrize(
    ("driver", "is_passed_on"),
    [
        ("vfio-pci", True),
        ("mlx5_vfio_pci", True),
        ("nvgrace-gpu-vfio-pci", True),
        ("uio_pci_generic", True),
        ("igb_uio", True),
        ("igb", False),
        ("vfiofoo", False),
        ("", False),
    ],
)
def test_drivers_for_programs_are_known_by_name(driver, is_passed_on):
    from devhost_sriov.model import is_passed_on as answer

    assert answer(driver) is is_passed_on
