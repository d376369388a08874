"""Alveo U30: both FPGAs of a card are one device in every state.

Xilinx's plugin hands out whole cards by default (``U30AllocUnit=Card``).
"""

from __future__ import annotations

from pathlib import Path

import fpga_xrt
import pytest
from devhost_fpga.backend import Fpga
from devhost_fpga.options import FpgaOptions, FpgaUse
from devhost_testing.contract import BackendContract
from devhost_testing.fixtures import BackendFixture, by_id, request
from fpga_xrt import XrtTree, u30_fpga

CARD = "u30-XFL1YV0M20E0"
FIRST, SECOND = "0000:21:00", "0000:22:00"


def place(address: str) -> str:
    return f"/sys/devices/pci{address[:7]}/{address}"


def remove(tree: XrtTree, slot: str, *functions: str) -> None:
    for function in functions or ("0", "1"):
        tree.remove(place(f"{slot}.{function}"))


def test_a_card_is_one_device_with_the_nodes_and_claims_of_both_fpgas(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(fpga_xrt.alveo_u30(tmp_path))
    devices = by_id(backend)
    assert list(devices) == [CARD]
    card = devices[CARD]
    assert card.health and not card.withheld
    assert card.claims == {
        *(f"pci:{slot}.{function}" for slot in (FIRST, SECOND) for function in "01"),
        *("node:/dev/dri/renderD128", "node:/dev/dri/renderD129"),
        *("node:/dev/xclmgmt8448", "node:/dev/xclmgmt8704"),
    }
    assert card.attributes["xilinxName"] == "ama_u30"
    assert card.attributes["serial"] == "XFL1YV0M20E0"
    assert card.attributes["pciBusID"] == f"{FIRST}.1"
    edits = backend.allocate(request(backend, [card]))
    assert [node.path for node in edits.nodes] == ["/dev/dri/renderD128", "/dev/dri/renderD129"]
    assert edits.env["FPGA_PCI_EXAMPLE_COM_RESOURCE"] == f"{FIRST}.1,{SECOND}.1"
    managed = {
        node.path for node in backend.allocate(request(backend, [card], FpgaUse(management=True))).nodes
    }
    assert managed - {node.path for node in edits.nodes} == {"/dev/xclmgmt8448", "/dev/xclmgmt8704"}


def test_two_cards_are_never_mixed_in_any_order_of_slots(tmp_path: Path, looking: BackendFixture) -> None:
    tree = XrtTree(tmp_path)
    for bus, serial in (("21", "ONE"), ("22", "TWO"), ("23", "ONE"), ("24", "TWO")):
        u30_fpga(tree, bus, serial)
    backend = looking(tree)
    devices = by_id(backend)
    assert list(devices) == ["u30-ONE", "u30-TWO"]
    given = {
        name: backend.allocate(request(backend, [device])).env["FPGA_PCI_EXAMPLE_COM_RESOURCE"]
        for name, device in devices.items()
    }
    assert given == {"u30-ONE": "0000:21:00.1,0000:23:00.1", "u30-TWO": "0000:22:00.1,0000:24:00.1"}
    assert not devices["u30-ONE"].claims & devices["u30-TWO"].claims


@pytest.mark.parametrize("slot", [FIRST, SECOND])
def test_a_card_has_the_health_of_its_worse_fpga_and_names_it(
    tmp_path: Path, looking: BackendFixture, slot: str
) -> None:
    tree = fpga_xrt.alveo_u30(tmp_path)
    backend = looking(tree)
    before = by_id(backend)[CARD]
    tree.file(f"{place(f'{slot}.1')}/dev_offline", "1")
    during = by_id(backend)
    assert list(during) == [CARD]
    assert during[CARD].health.reason == f"{slot}.1: it is being reset: xocl has set it offline"
    tree.file(f"{place(f'{slot}.1')}/dev_offline", "0")
    assert by_id(backend) == {CARD: before}


@pytest.mark.parametrize("slot", [FIRST, SECOND])
@pytest.mark.parametrize("functions", ["10", "1"], ids=["both functions", "user function"])
def test_a_card_stays_the_same_device_when_one_fpga_disappears(
    tmp_path: Path, looking: BackendFixture, slot: str, functions: str
) -> None:
    tree = fpga_xrt.alveo_u30(tmp_path)
    backend = looking(tree)
    before = by_id(backend)[CARD]
    remove(tree, slot, *functions)
    during = by_id(backend)
    assert list(during) == [CARD], "the other FPGA is not a separate device"
    assert during[CARD].claims >= {claim for claim in before.claims if claim.startswith("pci:")}
    assert during[CARD].health.reason.startswith(f"{slot}.")
    restarted = by_id(looking(tree))
    assert list(restarted) == [CARD]
    assert not restarted[CARD].health
    if functions == "1":
        remove(tree, slot, "0")
    u30_fpga(tree, slot[5:7], "XFL1YV0M20E0")
    after = by_id(backend)
    assert list(after) == [CARD] and after[CARD].health
    assert after[CARD].attributes == before.attributes


def test_a_card_whose_fpgas_are_both_gone_is_gone(tmp_path: Path, looking: BackendFixture) -> None:
    tree = fpga_xrt.alveo_u30(tmp_path)
    backend = looking(tree)
    assert by_id(backend)
    remove(tree, FIRST)
    remove(tree, SECOND)
    assert not by_id(backend)


def test_an_fpga_of_another_card_in_a_known_slot_leaves_the_first_card_incomplete(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = fpga_xrt.alveo_u30(tmp_path)
    backend = looking(tree)
    by_id(backend)
    remove(tree, SECOND)
    by_id(backend)
    u30_fpga(tree, "22", "OTHER")
    devices = by_id(backend)
    assert {name: device.health.reason for name, device in devices.items()} == {
        CARD: f"only {FIRST}.1 of its two FPGAs is present",
        "u30-OTHER": f"only {SECOND}.1 of its two FPGAs is present",
    }


def test_an_fpga_without_serial_number_is_never_allocated(tmp_path: Path, looking: BackendFixture) -> None:
    """Xilinx's plugin does not list it."""
    tree = XrtTree(tmp_path)
    u30_fpga(tree, "21", "")
    u30_fpga(tree, "22", "")
    devices = by_id(looking(tree))
    assert {device.health.reason for device in devices.values()} == {
        "it has no serial number, so its card is unknown"
    }


def test_a_serial_number_that_three_fpgas_have_names_no_card(tmp_path: Path, looking: BackendFixture) -> None:
    tree = fpga_xrt.alveo_u30(tmp_path)
    u30_fpga(tree, "23", "XFL1YV0M20E0")
    devices = by_id(looking(tree))
    assert len(devices) == 3
    assert all("3 FPGAs have the serial number" in one.health.reason for one in devices.values())


def test_other_cards_with_one_serial_number_stay_single_devices(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = XrtTree(tmp_path)
    for bus in ("21", "22"):
        tree.user(tree.function(f"0000:{bus}:00.1", fpga_xrt.U250, "xocl"), serial="SAME")
    assert list(by_id(looking(tree))) == ["0000:21:00.1", "0000:22:00.1"]


class TestU30(BackendContract):
    """Two cards, one of them with an FPGA missing."""

    backend = Fpga

    def tree(self, root: Path) -> None:
        tree = fpga_xrt.alveo_u30(root)
        u30_fpga(tree, "41", "LONELY")


class TestU30Fpgas(BackendContract):
    """Each FPGA by itself."""

    backend = Fpga
    options = FpgaOptions(u30_unit="fpga")

    def tree(self, root: Path) -> None:
        fpga_xrt.alveo_u30(root)
