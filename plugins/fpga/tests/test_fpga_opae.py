"""Cards with the driver of the OPAE project, alone and beside the kernel's own."""

from __future__ import annotations

from pathlib import Path

import fpga_cards as cards
import pytest
from devhost_testing.fixtures import BackendFixture, by_id, request
from fpga_backend import Faults, unhealthy
from fpga_tree import ARRIA, NLB, FpgaTree

PORT, ENGINE = "0000:05:00.0-port0", "0000:05:00.0-fme"


@pytest.fixture
def tree(tmp_path: Path) -> FpgaTree:
    return cards.arria10(tmp_path)


def test_a_card_has_a_device_for_its_port_and_one_for_its_region(
    looking: BackendFixture, tree: FpgaTree
) -> None:
    backend = looking(tree)
    devices = by_id(backend)
    assert list(devices) == [PORT, ENGINE]
    assert devices[PORT].attributes["afuId"] == NLB
    assert devices[ENGINE].attributes["interfaceId"] == ARRIA
    assert devices[ENGINE].attributes["driver"] == "intel-fpga-pci"
    assert devices[ENGINE].numa_nodes == ()
    assert [node.path for node in backend.allocate(request(backend, [devices[PORT]])).nodes] == [
        "/dev/intel-fpga-port.0"
    ]
    assert unhealthy(backend) == {}


@pytest.mark.parametrize(
    ("file", "text", "affected"),
    [
        ("errors/fme-errors/errors", "0x2", [PORT, ENGINE]),
        ("errors/catfatal_errors", "0x2", [PORT, ENGINE]),
        ("thermal_mgmt/threshold2_reached", "1", [PORT, ENGINE]),
        ("thermal_mgmt/threshold1_reached", "1", []),
        ("intel-fpga-port.0/power_state", "0x6", [PORT, ENGINE]),
        ("pr/interface_id", "", [PORT, ENGINE]),
        ("intel-fpga-port.0/afu_id", "ffff", [PORT]),
    ],
)
def test_its_registers_have_different_names(
    looking: BackendFixture, tree: FpgaTree, file: str, text: str, affected: list[str]
) -> None:
    next((tree.root / "sys/devices").rglob(file)).write_text(f"{text}\n")
    assert list(unhealthy(looking(tree))) == affected


def test_a_port_that_is_being_programmed_stays_what_it_was(
    looking: BackendFixture, tree: FpgaTree, faults: Faults
) -> None:
    backend = looking(tree)
    before = by_id(backend)
    faults.set("intel-fpga-port.0/afu_id")
    assert unhealthy(backend) == {}
    assert by_id(backend)[PORT].attributes["afuId"] == before[PORT].attributes["afuId"]


def test_both_drivers_are_served_at_once(looking: BackendFixture, tmp_path: Path) -> None:
    """Intel's plugin takes one of them, at its start and for ever."""
    devices = by_id(looking(cards.mixed(tmp_path)))
    assert {str(device.attributes["driver"]) for device in devices.values()} == {"dfl-pci", "intel-fpga-pci"}
    assert len(devices) == 5
