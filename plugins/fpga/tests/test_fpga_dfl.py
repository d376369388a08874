"""Cards with the kernel's own driver: what is found, and under which names."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import fpga_cards as cards
import pytest
from devhost_fpga.model import FpgaSysfs
from devhost_testing.fixtures import BackendFixture, by_id, request
from fpga_backend import Faults, reading, unhealthy
from fpga_tree import ARRIA, NLB, ONES, OTHER, STRATIX, FpgaTree

CARD = "0000:3f:00.0"
PORT0, PORT1, ENGINE = f"{CARD}-port0", f"{CARD}-port1", f"{CARD}-fme"


@pytest.fixture
def tree(tmp_path: Path) -> FpgaTree:
    return cards.two_ports(tmp_path)


def test_a_card_has_one_device_for_each_port_and_one_for_all_of_them(
    looking: BackendFixture, tree: FpgaTree
) -> None:
    devices = by_id(looking(tree))
    assert list(devices) == [PORT0, PORT1, ENGINE]
    assert [device.attributes["kind"] for device in devices.values()] == ["af", "af", "region"]
    assert devices[PORT0].attributes["afuId"] == NLB
    assert devices[PORT1].attributes["afuId"] == OTHER
    assert devices[ENGINE].attributes["ports"] == 2
    for device in devices.values():
        assert device.health
        assert device.attributes["interfaceId"] == ARRIA
        assert device.attributes["vendor"] == "intel"
        assert device.attributes["pciBusID"] == CARD
        assert device.attributes["driver"] == "dfl-pci"
        assert device.attributes["bitstreamId"] == "23000410010309"
        assert device.attributes["isVf"] is False
        assert device.numa_nodes == (1,)
        assert device.pcie_path == ("0000:3a:00.0", "0000:3b:00.0", "0000:3c:09.0", CARD)


def test_a_region_and_its_ports_never_go_to_two_pods(looking: BackendFixture, tree: FpgaTree) -> None:
    devices = by_id(looking(tree))
    assert devices[PORT0].claims & devices[ENGINE].claims
    assert devices[PORT1].claims & devices[ENGINE].claims
    assert not devices[PORT0].claims & devices[PORT1].claims
    assert all(f"pci:{CARD}" in device.part_of for device in devices.values())


def test_the_second_port_of_an_engine_is_not_lost_from_its_region(
    looking: BackendFixture, tree: FpgaTree
) -> None:
    """Intel's plugin keeps the ports in a copy of the region that it throws away."""
    backend = looking(tree)
    given = backend.allocate(request(backend, [by_id(backend)[ENGINE]]))
    assert [node.path for node in given.nodes] == ["/dev/dfl-port.0", "/dev/dfl-port.1"]


def test_several_regions_of_one_engine_are_one_region_with_one_interface(
    looking: BackendFixture, tree: FpgaTree
) -> None:
    """Intel's plugin ends when it finds two ``compat_id`` below an engine: there is one for each port."""
    assert len(list(tree.root.glob("sys/devices/**/compat_id"))) == 2
    assert by_id(looking(tree))[ENGINE].attributes["interfaceId"] == ARRIA


def test_a_port_is_named_by_its_number_on_the_card_and_not_by_the_kernels_index(
    looking: BackendFixture, tmp_path: Path
) -> None:
    tree = FpgaTree(tmp_path)
    tree.port(tree.container(tree.function("0000:10:00.0")), 0)  # takes dfl-port.0
    container = tree.container(tree.function(CARD))
    tree.engine(container, ports=2)
    tree.port(container, 1, OTHER)
    tree.port(container, 0, NLB)
    devices = by_id(looking(tree))
    assert devices[PORT1].attributes["afuId"] == OTHER
    assert devices[PORT0].attributes["afuId"] == NLB


def test_two_identical_cards_are_two_devices_with_separate_nodes(
    looking: BackendFixture, tmp_path: Path
) -> None:
    """Intel's hook notes "already used" in a copy, so that two equal regions can become one port."""
    backend = looking(cards.twins(tmp_path))
    devices = by_id(backend)
    assert list(devices) == [
        *("0000:af:00.0-port0", "0000:af:00.0-fme", "0000:d8:00.0-port0", "0000:d8:00.0-fme")
    ]
    nodes = [backend.allocate(request(backend, [device])).nodes for device in devices.values()]
    assert nodes[0] != nodes[2]
    assert (
        devices["0000:af:00.0-fme"].attributes["intelName"]
        == devices["0000:d8:00.0-fme"].attributes["intelName"]
    )
    assert not devices["0000:af:00.0-fme"].claims & devices["0000:d8:00.0-fme"].claims


def test_the_pci_class_does_not_matter(looking: BackendFixture, tmp_path: Path) -> None:
    """Intel's plugin ends at a card with another class than 1200."""
    devices = by_id(looking(cards.twins(tmp_path)))
    assert devices["0000:d8:00.0-port0"].attributes["vendorID"] == "1c2c"
    assert devices["0000:d8:00.0-port0"].health


def test_a_port_of_a_virtual_function_belongs_to_the_engine_of_the_physical_one(
    looking: BackendFixture, tmp_path: Path
) -> None:
    devices = by_id(looking(cards.virtual(tmp_path)))
    port, engine = devices["0000:05:00.1-port0"], devices["0000:05:00.0-fme"]
    assert port.attributes["isVf"] is True
    assert port.attributes["interfaceId"] == ARRIA
    assert str(port.attributes["intelName"]).startswith("af-695.d84.")
    assert port.claims < engine.claims
    assert port.part_of == {"pci:0000:05:00.0", "pci:0000:05:00.1"}


def test_a_port_with_an_invisible_engine_can_be_used(looking: BackendFixture, tmp_path: Path) -> None:
    """As in a virtual machine that has nothing but the virtual function."""
    tree = FpgaTree(tmp_path)
    tree.port(tree.container(tree.function("0000:00:05.0", cards.PAC_VF)), 0)
    backend = looking(tree)
    (device,) = backend.discover()
    assert device.id == "0000:00:05.0-port0"
    assert device.health
    assert "interfaceId" not in device.attributes
    assert "intelName" not in device.attributes
    assert backend.allocate(request(backend, [device])).nodes


def test_an_engine_without_ports_is_unhealthy_with_the_likely_cause(
    looking: BackendFixture, tmp_path: Path
) -> None:
    tree = FpgaTree(tmp_path)
    tree.engine(tree.container(tree.function(CARD)), ports=2)
    assert unhealthy(looking(tree)) == {
        ENGINE: "it has no visible port: virtual functions have them, or their module is not loaded"
    }


def test_cards_on_other_buses_are_found(looking: BackendFixture, tmp_path: Path) -> None:
    backend = looking(cards.soc(tmp_path))
    devices = by_id(backend)
    assert list(devices) == ["c000000.fpga-dfl-port0", "c000000.fpga-dfl-fme"]
    assert devices["c000000.fpga-dfl-port0"].attributes["interfaceId"] == STRATIX
    assert devices["c000000.fpga-dfl-port0"].attributes["driver"] == "dfl-platform"
    assert "pciBusID" not in devices["c000000.fpga-dfl-port0"].attributes
    assert backend.allocate(request(backend, list(devices.values())))


def test_modules_may_come_later_and_cards_may_go(looking: BackendFixture, tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    backend = looking(tmp_path)
    assert backend.discover() == []
    tree = cards.two_ports(tmp_path)
    assert len(backend.discover()) == 3
    cards.arria10(tmp_path, tree)
    assert len(backend.discover()) == 5
    card = next((tmp_path / "sys/devices").rglob(CARD))
    tree.remove(f"/{card.relative_to(tmp_path)}")
    assert list(by_id(backend)) == ["0000:05:00.0-port0", "0000:05:00.0-fme"]


def test_a_card_that_goes_during_a_scan_leaves_no_device_that_never_was_there(
    looking: BackendFixture, tree: FpgaTree
) -> None:
    gone: list[Path] = []

    class Vanishing(FpgaSysfs):
        def text(self, path: str) -> str:
            if path.endswith("dfl-port.0/id"):
                gone.append(tree.root / path.removeprefix("/").rpartition("/")[0])
                shutil.rmtree(gone[-1])
            return super().text(path)

    found = {*by_id(looking(tree, kind=reading(Vanishing)))}
    assert gone
    assert found < {PORT0, PORT1, ENGINE}


def test_a_port_without_its_driver_names_the_module(looking: BackendFixture, tree: FpgaTree) -> None:
    port = next((tree.root / "sys/devices").rglob("dfl-port.0"))
    for name in ("id", "afu_id", "power_state"):
        (port / name).unlink()
    reasons = unhealthy(looking(tree))
    assert reasons == {f"{CARD}-dfl-port.0": "its driver shows no attributes (is module dfl_afu loaded?)"}


def test_unchanged_fpgas_are_the_same_objects(looking: BackendFixture, tree: FpgaTree) -> None:
    backend = looking(tree)
    before = by_id(backend)
    assert all(before[name] is device for name, device in by_id(backend).items())
    next((tree.root / "sys/devices").rglob("dfl-port.1/afu_id")).write_text(f"{NLB}\n")
    after = by_id(backend)
    assert after[PORT0] is before[PORT0]
    assert after[PORT1].attributes["afuId"] == NLB


# What makes Intel's plugin end


@pytest.mark.parametrize("text", ["", "\n", "0", "69528db6", "not an id", "z" * 32, "9" * 5000])
def test_an_invalid_interface_id_is_a_reason_and_not_a_name(
    looking: BackendFixture, tree: FpgaTree, text: str
) -> None:
    """Issue 667 of intel-device-plugins: an empty id became the resource ``region-``, and that the end."""
    for file in (tree.root / "sys/devices").rglob("compat_id"):
        file.write_text(text)
    backend = looking(tree)
    for device in by_id(backend).values():
        assert not device.health
        assert "interface id" in device.health.reason
        assert "interfaceId" not in device.attributes
        assert "intelName" not in device.attributes


def test_an_invalid_interface_id_beside_a_valid_one_is_the_reason(
    looking: BackendFixture, tree: FpgaTree
) -> None:
    next((tree.root / "sys/devices").rglob("compat_id")).write_text("")
    assert unhealthy(looking(tree))[ENGINE] == "its interface id is empty"


def test_a_card_that_cannot_be_programmed_has_no_interface_id_and_works(
    looking: BackendFixture, tmp_path: Path
) -> None:
    tree = FpgaTree(tmp_path)
    container = tree.container(tree.function(CARD))
    tree.engine(container, interface_id=None)
    tree.port(container, 0)
    devices = by_id(looking(tree))
    assert all(device.health for device in devices.values())
    assert not any("interfaceId" in device.attributes for device in devices.values())
    assert devices[PORT0].attributes["afuId"] == NLB


def test_a_missing_interface_id_is_not_a_fault(
    looking: BackendFixture, tree: FpgaTree, faults: Faults
) -> None:
    faults.set("compat_id", errno.ENOENT)
    devices = by_id(looking(tree))
    assert all(device.health and "interfaceId" not in device.attributes for device in devices.values())


@pytest.mark.parametrize("text", ["d8", "d84", "", "d8424dc4a4a3c413f89e433683f9040", "d8424dc4-a4a3"])
def test_a_short_afu_id_is_a_reason(looking: BackendFixture, tree: FpgaTree, text: str) -> None:
    """Intel's plugin takes three digits of an id without looking whether it has them."""
    next((tree.root / "sys/devices").rglob("dfl-port.0/afu_id")).write_text(text)
    backend = looking(tree)
    assert list(unhealthy(backend)) == [PORT0]
    assert "AFU id" in unhealthy(backend)[PORT0]
    assert "intelName" not in by_id(backend)[PORT0].attributes


def test_ids_are_accepted_in_other_spellings(looking: BackendFixture, tree: FpgaTree) -> None:
    file = next((tree.root / "sys/devices").rglob("dfl-port.0/afu_id"))
    file.write_text("D8424DC4-A4A3-C413-F89E-433683F9040B\n")
    assert by_id(looking(tree))[PORT0].attributes["afuId"] == NLB


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENXIO])
def test_one_unreadable_port_hides_no_other(
    looking: BackendFixture, tmp_path: Path, faults: Faults, number: int
) -> None:
    """Intel's plugin ends its whole look, and itself, at the first file it cannot read."""
    backend = looking(cards.mixed(tmp_path))
    faults.set("dfl-port.1/afu_id", number)
    reasons = unhealthy(backend)
    assert list(reasons) == [PORT1]
    assert reasons[PORT1].startswith("its AFU id cannot be read: ")
    assert len(backend.discover()) == 5


def test_an_id_that_is_a_directory_is_a_reason(looking: BackendFixture, tree: FpgaTree) -> None:
    file = next((tree.root / "sys/devices").rglob("dfl-port.0/afu_id"))
    file.unlink()
    file.mkdir()
    assert list(unhealthy(looking(tree))) == [PORT0]


def test_different_interface_ids_make_an_engine_unhealthy(looking: BackendFixture, tree: FpgaTree) -> None:
    next((tree.root / "sys/devices").rglob("compat_id")).write_text(f"{STRATIX}\n")
    assert "different interface ids" in unhealthy(looking(tree))[ENGINE]


def test_two_ports_with_one_number_are_two_devices(looking: BackendFixture, tree: FpgaTree) -> None:
    next((tree.root / "sys/devices").rglob("dfl-port.1/id")).write_text("0\n")
    assert list(by_id(looking(tree))) == [PORT0, f"{CARD}-dfl-port.1", ENGINE]


def test_a_class_that_cannot_be_listed_is_an_error_and_empties_nothing(
    looking: BackendFixture, tmp_path: Path
) -> None:
    backend = looking(cards.mixed(tmp_path))
    before = by_id(backend)
    shutil.rmtree(tmp_path / "sys/class/fpga")
    (tmp_path / "sys/class/fpga").write_text("no directory")
    after = by_id(backend)
    assert after.keys() == before.keys()
    assert {name for name, device in after.items() if not device.health} == {
        *("0000:05:00.0-port0", "0000:05:00.0-fme")
    }
    assert ONES not in str(after)


def test_a_damaged_link_to_a_physical_function_is_ignored(looking: BackendFixture, tree: FpgaTree) -> None:
    (card,) = (tree.root / "sys/devices").rglob(CARD)
    (card / "physfn").symlink_to("../no address ")
    devices = by_id(looking(tree))
    assert list(devices) == [PORT0, PORT1, ENGINE]
    assert all(device.part_of == {f"pci:{CARD}"} for device in devices.values())
