"""Health: faults, warnings, and recovery when the cause is gone."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import fpga_cards as cards
import pytest
from devhost_fpga.dfl import DFL_LAYOUT, EngineFamily
from devhost_testing.fixtures import BackendFixture, by_id
from fpga_backend import Faults, unhealthy
from fpga_tree import ARRIA, NLB, ONES, OTHER, FpgaTree

CARD = "0000:3f:00.0"
PORT0, PORT1, ENGINE = f"{CARD}-port0", f"{CARD}-port1", f"{CARD}-fme"
EVERY = [PORT0, PORT1, ENGINE]


@pytest.fixture
def tree(tmp_path: Path) -> FpgaTree:
    return cards.two_ports(tmp_path)


def at(tree: FpgaTree, name: str) -> Path:
    """The first file or directory that ends so."""
    return next((tree.root / "sys/devices").rglob(name))


def write(tree: FpgaTree, name: str, text: str) -> None:
    at(tree, name).write_text(f"{text}\n")


# Registers, states and alarms


@pytest.mark.parametrize(
    ("file", "text", "affected", "reason"),
    [
        ("dfl-fme.0/errors/catfatal_errors", "0x800", EVERY, "errors/catfatal_errors is 0x800"),
        ("dfl-fme.0/errors/nonfatal_errors", "0x40", EVERY, "errors/nonfatal_errors is 0x40"),
        ("dfl-fme.0/errors/fme_errors", "0x2", EVERY, "errors/fme_errors is 0x2"),
        ("dfl-fme.0/errors/pcie0_errors", "0x1", EVERY, "errors/pcie0_errors is 0x1"),
        ("dfl-fme.0/errors/pcie1_errors", "0x10", EVERY, "errors/pcie1_errors is 0x10"),
        ("temp1_crit_alarm", "1", EVERY, "alarm temp1_crit_alarm at 55 °C"),
        ("power1_crit_alarm", "1", EVERY, "alarm power1_crit_alarm at 30 W"),
        ("dfl-port.1/errors/errors", "0x4", [PORT1, ENGINE], "errors/errors is 0x4"),
        ("dfl-port.1/power_state", "0x6", [PORT1, ENGINE], "power_state is AP6: shut down"),
        ("fpga_manager/fpga0/state", "write error", [ENGINE], "its FPGA manager is in state 'write error'"),
        (
            "fpga_manager/fpga0/state",
            "parse header error",
            [ENGINE],
            "its FPGA manager is in state 'parse header error'",
        ),
        (
            "fpga_manager/fpga0/status",
            "reconfig CRC error\nreconfig fifo overflow error",
            [ENGINE],
            "its FPGA manager reports reconfig CRC error, reconfig fifo overflow error",
        ),
    ],
)
def test_each_fault_makes_its_devices_unhealthy_until_it_clears(
    looking: BackendFixture, tree: FpgaTree, file: str, text: str, affected: list[str], reason: str
) -> None:
    backend = looking(tree)
    before = at(tree, file).read_text()
    assert unhealthy(backend) == {}
    write(tree, file, text)
    found = unhealthy(backend)
    assert list(found) == affected
    assert all(reason in text for text in found.values())
    at(tree, file).write_text(before)
    assert unhealthy(backend) == {}


@pytest.mark.parametrize(
    ("file", "text", "warning"),
    [
        ("dfl-fme.0/errors/nonfatal_errors", "0x3", "errors/nonfatal_errors is 0x3"),
        ("temp1_max_alarm", "1", "alarm temp1_max_alarm at 55 °C"),
        ("dfl-port.0/power_state", "0x1", "power_state is AP1: throttled"),
        ("dfl-port.0/ap2_event", "1", "ap2_event is 0x1"),
    ],
)
def test_throttling_is_logged_once_and_keeps_devices_healthy(
    looking: BackendFixture,
    tree: FpgaTree,
    caplog: pytest.LogCaptureFixture,
    file: str,
    text: str,
    warning: str,
) -> None:
    backend = looking(tree)
    with caplog.at_level(logging.WARNING):
        backend.discover()
        assert caplog.messages == []
        write(tree, file, text)
        assert unhealthy(backend) == {}
        assert f"{PORT0}: {warning}" in caplog.messages
        caplog.clear()
        backend.discover()
        assert caplog.messages == []


def test_of_two_alarms_the_first_is_the_reason(looking: BackendFixture, tree: FpgaTree) -> None:
    backend = looking(tree)
    for file in ("temp1_crit_alarm", "power1_crit_alarm"):
        write(tree, file, "1")
    assert unhealthy(backend)[ENGINE] == "alarm temp1_crit_alarm at 55 °C"


def test_a_power_state_without_throttling_is_not_logged(
    looking: BackendFixture, tree: FpgaTree, caplog: pytest.LogCaptureFixture
) -> None:
    backend = looking(tree)
    write(tree, "dfl-port.0/power_state", "0x3")
    assert unhealthy(backend) == {}
    assert not any("power_state" in message for message in caplog.messages)


@pytest.mark.parametrize("state", ["unknown", "power off", "operating", "some state of a later kernel", ""])
def test_other_manager_states_keep_devices_healthy(
    looking: BackendFixture, tree: FpgaTree, state: str
) -> None:
    write(tree, "fpga_manager/fpga0/state", state)
    backend = looking(tree)
    assert unhealthy(backend) == {}
    assert by_id(backend)[ENGINE].attributes.get("managerState", "") == state


def test_a_failed_programming_of_a_card_with_one_port_counts_for_that_port(
    looking: BackendFixture, tmp_path: Path
) -> None:
    tree = cards.d5005(tmp_path)
    write(tree, "fpga_manager/fpga0/state", "write complete error")
    backend = looking(tree)
    assert list(unhealthy(backend)) == ["0000:86:00.0-port0", "0000:86:00.0-fme"]
    assert by_id(backend)["0000:86:00.0-fme"].attributes["regionState"] == "failed"


def test_the_reason_names_the_first_error(looking: BackendFixture, tree: FpgaTree) -> None:
    write(tree, "dfl-port.0/errors/errors", "0x11")
    write(tree, "dfl-port.0/errors/first_error", "0x10")
    assert unhealthy(looking(tree))[PORT0] == "errors/errors is 0x11, first_error is 0x10"


def test_the_first_error_does_not_count_once_errors_are_cleared(
    looking: BackendFixture, tree: FpgaTree
) -> None:
    write(tree, "dfl-port.0/errors/first_error", "0x10")
    write(tree, "dfl-fme.0/errors/first_error", "0x10")
    assert unhealthy(looking(tree)) == {}


def test_locked_registers_are_read_neither_by_scans_nor_during_programming(
    looking: BackendFixture, tree: FpgaTree, faults: Faults
) -> None:
    """``fme_pr`` in drivers/fpga/dfl-fme-pr.c holds the lock of the engine all the time."""
    write(tree, "dfl-fme.0/errors/fme_errors", "0x2")
    backend = looking(tree)
    devices = backend.discover()
    assert all(device.health for device in devices)
    assert set(backend.probe(devices)) == set(EVERY)
    write(tree, "fpga_manager/fpga0/state", "write")
    faults.set("errors/fme_errors", errno.EIO)
    assert set(backend.probe(backend.discover())) == set(EVERY)  # the last verdict
    fresh = looking(tree)
    assert fresh.probe(fresh.discover()) == {}


# A link that was lost


def test_a_card_that_lost_its_link_keeps_its_names_and_is_unhealthy(
    looking: BackendFixture, tmp_path: Path
) -> None:
    tree = cards.mixed(tmp_path)
    backend = looking(tree)
    before = by_id(backend)
    function = next((tmp_path / "sys/devices").rglob(CARD))
    kept = {
        file: file.read_bytes() for file in function.rglob("*") if file.is_file() and not file.is_symlink()
    }
    tree.kill(f"/{function.relative_to(tmp_path)}")
    after = by_id(backend)
    assert after.keys() == before.keys()
    lost = "its PCI function does not respond: it failed or lost its link"
    assert {
        name: device.health.reason for name, device in after.items() if not device.health
    } == dict.fromkeys(EVERY, lost)
    for name, device in after.items():
        assert device.attributes == before[name].attributes
        assert device.claims == before[name].claims
    for file, content in kept.items():
        file.write_bytes(content)
    assert by_id(backend) == before


def test_a_card_without_a_link_since_the_start_hides_no_other_card(
    looking: BackendFixture, tmp_path: Path
) -> None:
    tree = cards.mixed(tmp_path)
    function = next((tmp_path / "sys/devices").rglob(CARD))
    tree.kill(f"/{function.relative_to(tmp_path)}")
    backend = looking(tree)
    devices = by_id(backend)
    assert {name for name, device in devices.items() if device.health} == {
        *("0000:05:00.0-port0", "0000:05:00.0-fme")
    }
    assert len(devices) == 5
    assert ONES not in str([device.attributes for device in devices.values()])


@pytest.mark.parametrize(("file", "affected"), [("dfl-port.0/afu_id", [PORT0]), ("compat_id", EVERY)])
def test_an_id_of_ones_is_unhealthy_and_keeps_the_last_id(
    looking: BackendFixture, tree: FpgaTree, file: str, affected: list[str]
) -> None:
    backend = looking(tree)
    before = by_id(backend)
    files = [path for path in (tree.root / "sys/devices").rglob("*") if str(path).endswith(file)]
    for path in files:
        path.write_text(f"{ONES}\n")
    found = unhealthy(backend)
    assert list(found) == affected
    assert all("reads as ones" in reason for reason in found.values())
    assert all(by_id(backend)[name].attributes == device.attributes for name, device in before.items())


def test_an_id_of_ones_does_not_change_the_name_of_a_port(looking: BackendFixture, tree: FpgaTree) -> None:
    write(tree, "dfl-port.0/afu_id", ONES)
    assert list(by_id(looking(tree))) == EVERY


# Programming that goes on


def test_a_port_that_is_being_programmed_stays_what_it_was(
    looking: BackendFixture, tree: FpgaTree, faults: Faults
) -> None:
    """Intel's plugin ends itself here: ``afu_id`` gives EBUSY while the port is in reset."""
    backend = looking(tree)
    before = by_id(backend)
    faults.set("dfl-port.0/afu_id")
    during = by_id(backend)
    assert during.keys() == before.keys()
    assert all(device.health for device in during.values())
    assert during[PORT0].attributes == {**before[PORT0].attributes, "regionState": "busy"}
    assert during[PORT1] is before[PORT1]
    assert during[ENGINE].attributes["regionState"] == "busy"
    faults.clear()
    write(tree, "dfl-port.0/afu_id", OTHER)
    after = by_id(backend)
    assert after[PORT0].attributes["afuId"] == OTHER
    assert after[PORT0].attributes["regionState"] == "ready"


def test_a_port_that_was_busy_since_the_start_is_unhealthy(
    looking: BackendFixture, tree: FpgaTree, faults: Faults
) -> None:
    faults.set("dfl-port.0/afu_id", errno.EBUSY)
    backend = looking(tree)
    assert unhealthy(backend) == {PORT0: "it is being reconfigured"}
    assert "afuId" not in by_id(backend)[PORT0].attributes
    faults.clear()
    assert unhealthy(backend) == {}


def test_a_port_whose_programming_failed_is_unhealthy_and_not_busy(
    looking: BackendFixture, tree: FpgaTree, faults: Faults
) -> None:
    """The driver leaves such a port in reset: its ``afu_id`` gives EBUSY until the card is bound again."""
    backend = looking(tree)
    backend.discover()
    write(tree, "fpga_manager/fpga0/state", "write error")
    faults.set("dfl-port.0/afu_id")
    reason = (
        "its FPGA manager is in state 'write error', and its driver holds the port in reset: "
        "unbind the card from its driver and bind it again"
    )
    assert unhealthy(backend) == {PORT0: reason, ENGINE: f"{PORT0}: {reason}"}
    found = by_id(backend)
    assert [found[name].attributes["regionState"] for name in EVERY] == ["failed", "ready", "failed"]
    write(tree, "fpga_manager/fpga0/state", "unknown")
    faults.clear()
    assert unhealthy(backend) == {}


def test_a_port_that_stays_busy_too_long_is_unhealthy(tree: FpgaTree, faults: Faults) -> None:
    """As one whose reset was never acknowledged, which the driver does not end."""
    now = [0.0]
    family = EngineFamily(faults.sysfs(tree.root), DFL_LAYOUT, lambda: now[0])

    def look() -> dict[str, tuple[str, object]]:
        devices = [unit.device for unit in family.scan()]
        return {one.id: (one.health.reason or "", one.attributes["regionState"]) for one in devices}

    healthy = look()
    faults.set("dfl-port.0/afu_id")
    for now[0] in (10.0, 60.0, 70.0):
        assert look() == {PORT0: ("", "busy"), PORT1: ("", "ready"), ENGINE: ("", "busy")}
    now[0] = 71.0
    rebind = "unbind the card from its driver and bind it again"
    reason = f"its driver has held it in reset for more than 60 s: {rebind}"
    failed = {PORT0: (reason, "failed"), PORT1: ("", "ready"), ENGINE: (f"{PORT0}: {reason}", "failed")}
    assert look() == failed
    write(tree, "fpga_manager/fpga0/state", "write")
    assert look()[PORT0] == ("", "reconfiguring")
    write(tree, "fpga_manager/fpga0/state", "unknown")
    faults.clear()
    assert look() == healthy
    faults.set("dfl-port.0/afu_id")
    assert look()[PORT0] == ("", "busy"), "the time starts again"


@pytest.mark.parametrize(
    "state", ["firmware request", "parse header", "write init", "write", "write complete"]
)
def test_a_manager_that_is_programming_is_busy_and_healthy(
    looking: BackendFixture, tree: FpgaTree, state: str
) -> None:
    backend = looking(tree)
    backend.discover()
    write(tree, "fpga_manager/fpga0/state", state)
    write(tree, "fpga_manager/fpga0/status", "reconfig operation error")  # of the time before
    assert unhealthy(backend) == {}
    assert by_id(backend)[ENGINE].attributes["regionState"] == "reconfiguring"


def test_knowledge_about_a_removed_card_is_dropped(
    looking: BackendFixture, tmp_path: Path, faults: Faults
) -> None:
    """Another card in the same slot must not inherit the ids of the one before."""
    tree = cards.d5005(tmp_path)
    backend = looking(tree)
    backend.discover()
    card = next((tmp_path / "sys/devices").rglob("0000:86:00.0"))
    tree.remove(f"/{card.relative_to(tmp_path)}")
    assert backend.discover() == []
    faults.set("afu_id")
    cards.d5005(tmp_path)
    assert "afuId" not in by_id(backend)["0000:86:00.0-port0"].attributes


def test_a_card_replaced_between_two_scans_inherits_nothing(
    looking: BackendFixture, tmp_path: Path, faults: Faults
) -> None:
    """The kernel gives another inode to each directory in sysfs, also under the same name."""
    tree = cards.d5005(tmp_path / "root")
    backend = looking(tree)
    backend.discover()
    card = next((tree.root / "sys/devices").rglob("0000:86:00.0"))
    card.rename(tmp_path / "old")  # and not removed, so that its inodes stay in use
    faults.set("afu_id")
    cards.d5005(tmp_path / "root")
    assert "afuId" not in by_id(backend)["0000:86:00.0-port0"].attributes


def test_names_and_claims_do_not_depend_on_health(looking: BackendFixture, tree: FpgaTree) -> None:
    before = by_id(looking(tree))
    write(tree, "dfl-fme.0/errors/catfatal_errors", "0x1")
    after = by_id(looking(tree))
    assert after.keys() == before.keys()
    assert all(after[name].claims == device.claims for name, device in before.items())
    assert all(after[name].attributes == device.attributes for name, device in before.items())
    assert {ARRIA, NLB} <= set(after[PORT0].attributes.values())
