"""XRT cards that appear, disappear, fail, are reset and recover."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fpga_xrt
import pytest
from devhost_fpga.model import FpgaSysfs
from devhost_fpga.xrt import Xrt
from devhost_testing.fixtures import BackendFixture, by_id, request
from fpga_backend import reading
from fpga_xrt import XrtTree
from kit.machine import Recording

USER = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1"
MANAGER = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"


def reason(tree: XrtTree, looking: BackendFixture, name: str = "0000:3b:00.1") -> str:
    return by_id(looking(tree))[name].health.reason


def part(tree: XrtTree, path: str, name: str) -> str:
    (found,) = (tree.root / path.lstrip("/")).glob(f"{name}.*")
    return f"{path}/{found.name}"


# Order of arrival


def test_a_card_without_drivers_names_the_module_to_load(tmp_path: Path, looking: BackendFixture) -> None:
    tree = XrtTree(tmp_path)
    tree.function("0000:3b:00.0", fpga_xrt.U250_MANAGEMENT)
    tree.function("0000:3b:00.1", fpga_xrt.U250)
    devices = by_id(looking(tree))
    assert list(devices) == ["0000:3b:00.1"]
    assert devices["0000:3b:00.1"].health.reason == (
        "no driver is bound to its user function (run modprobe xocl)"
    )


def test_a_module_loaded_later_makes_the_card_healthy_without_a_restart(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = XrtTree(tmp_path)
    user = tree.function("0000:3b:00.1", fpga_xrt.U250)
    backend = looking(tree)
    assert not by_id(backend)["0000:3b:00.1"].health.healthy
    tree.link(f"{user}/driver", "/sys/bus/pci/drivers/xocl")
    (tmp_path / "sys/bus/pci/drivers/xocl").mkdir(parents=True)
    tree.file(f"{user}/user_pf")
    assert by_id(backend)["0000:3b:00.1"].health.reason == (
        "it is being reset, or its driver is still probing it"
    )
    tree.user(user)
    device = by_id(backend)["0000:3b:00.1"]
    assert device.health.healthy and device.attributes["shell"] == fpga_xrt.U250_SHELL


def test_a_management_function_that_comes_after_its_user_function_joins_it(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = XrtTree(tmp_path)
    tree.user(tree.function("0000:3b:00.1", fpga_xrt.U250, "xocl"))
    backend = looking(tree)
    assert "pci:0000:3b:00.0" not in by_id(backend)["0000:3b:00.1"].claims
    tree.manager(tree.function("0000:3b:00.0", fpga_xrt.U250_MANAGEMENT, "xclmgmt"), 15104)
    devices = by_id(backend)
    assert list(devices) == ["0000:3b:00.1"]
    assert {"pci:0000:3b:00.0", "node:/dev/xclmgmt15104"} < devices["0000:3b:00.1"].claims


@pytest.mark.parametrize(
    ("driver", "reason"),
    [("xclmgmt", "not enabled the user"), ("", "no driver"), ("vfio-pci", "bound to vfio-pci")],
)
def test_a_management_function_alone_is_unhealthy_with_the_reason(
    tmp_path: Path, looking: BackendFixture, driver: str, reason: str
) -> None:
    tree = XrtTree(tmp_path)
    path = tree.function("0000:3b:00.0", fpga_xrt.U250_MANAGEMENT, driver)
    if driver == "xclmgmt":
        tree.manager(path, 15104)
    devices = by_id(looking(tree))
    assert list(devices) == ["0000:3b:00.0"]
    assert "only its management function" in devices["0000:3b:00.0"].health.reason
    assert reason in devices["0000:3b:00.0"].health.reason


@pytest.mark.parametrize("driver", ["vfio-pci", "xdma"])
def test_a_card_that_another_driver_has_is_withheld(
    tmp_path: Path, looking: BackendFixture, driver: str
) -> None:
    tree = XrtTree(tmp_path)
    tree.function("0000:3b:00.1", fpga_xrt.U250, driver)
    device = by_id(looking(tree))["0000:3b:00.1"]
    assert driver in device.withheld and not device.health.healthy


# Health, both ways


def offline(tree: XrtTree, value: str) -> None:
    tree.file(f"{USER}/dev_offline", value)


def mailbox(tree: XrtTree, value: str) -> None:
    tree.file(f"{USER}/ready", "0x0" if value != "0" else "0x1")


def firewall(tree: XrtTree, value: str) -> None:
    tree.file(f"{part(tree, MANAGER, 'firewall.m')}/status", "524288" if value != "0" else "0")


def memory(tree: XrtTree, value: str) -> None:
    tree.file(f"{part(tree, MANAGER, 'mig.m')}/ecc_status", "3" if value != "0" else "2")


def heat(tree: XrtTree, value: str) -> None:
    tree.file(f"{part(tree, MANAGER, 'xmc.m')}/xmc_fpga_temp", "98" if value != "0" else "96")


def link(tree: XrtTree, value: str) -> None:
    (tree.root / USER.lstrip("/") / "config").write_bytes((b"\xff" if value != "0" else b"\x10") * 64)


def no_shell(tree: XrtTree, value: str) -> None:
    tree.file(f"{MANAGER}/ready", "0" if value != "0" else "1")


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (offline, "offline"),
        (mailbox, "does not answer xocl"),
        (firewall, "has tripped, status 0x80000: reset the card"),
        (memory, "uncorrectable memory error in bank0"),
        (heat, "98 °C"),
        (link, "lost its link"),
        (no_shell, "unknown shell"),
    ],
)
def test_each_driver_state_makes_the_card_unhealthy_until_it_clears(
    tmp_path: Path, looking: BackendFixture, turn: Callable[[XrtTree, str], None], reason: str
) -> None:
    tree = fpga_xrt.alveo_u250(tmp_path)
    backend = looking(tree)
    before = by_id(backend)["0000:3b:00.1"]
    assert before.health.healthy
    turn(tree, "1")
    assert reason in by_id(backend)["0000:3b:00.1"].health.reason
    turn(tree, "0")
    assert by_id(backend)["0000:3b:00.1"] == before


def test_a_card_with_a_dead_link_does_not_affect_others(tmp_path: Path, looking: BackendFixture) -> None:
    tree = fpga_xrt.alveo_u280(tmp_path)
    backend = looking(tree)
    other = by_id(backend)["0000:af:00.1"]
    for function in "01":
        tree.dies(f"/sys/devices/pci0000:d8/0000:d8:00.{function}")
    devices = by_id(backend)
    assert not devices["0000:d8:00.1"].health.healthy
    assert devices["0000:af:00.1"] == other


class Recorded(Recording, FpgaSysfs):
    """The backend's reader, recorded."""


def test_firewall_and_sensors_are_never_read_on_the_user_function(tmp_path: Path) -> None:
    """xocl asks xclmgmt for them through a mailbox, and writes to the kernel's log at each read."""
    tree = fpga_xrt.alveo_u250(tmp_path)
    tree.part(USER, "firewall.u", status="1")
    tree.part(USER, "mig.u", ecc_status="1")
    tree.file(f"{MANAGER}/error", "something")
    sysfs = Recorded(tmp_path)
    (unit,) = Xrt(sysfs).scan()
    assert unit.device.health.healthy
    assert not [path for path in sysfs.paths if ".u." in path and not path.endswith(("/VBNV", "/timestamp"))]
    assert not [path for path in sysfs.paths if path.endswith("/error")], "reading it clears it"
    assert not [path for path in unit.watched if ".u." in path or path.endswith("temp")]


@pytest.mark.parametrize("number", ["2130048AK02K", "\n"])
def test_the_serial_number_is_read_once_per_card(tmp_path: Path, number: str) -> None:
    tree = XrtTree(tmp_path)
    tree.user(tree.function("0000:3b:00.1", fpga_xrt.U250, "xocl"), serial=number)
    sysfs = Recorded(tmp_path)
    family = Xrt(sysfs)
    for _ in range(3):
        (unit,) = family.scan()
        assert unit.device.attributes.get("serial", "") == number.strip()
    assert len([path for path in sysfs.paths if path.endswith("/serial_num")]) == 1


# Reset and removal


def test_a_reset_makes_one_card_temporarily_unhealthy_and_no_other(
    tmp_path: Path, looking: BackendFixture
) -> None:
    """`xbutil reset` in a pod took all cards of a node from Xilinx's plugin until it was restarted."""
    tree = fpga_xrt.alveo_u280(tmp_path)
    user = "/sys/devices/pci0000:af/0000:af:00.1"
    backend = looking(tree)
    before = by_id(backend)
    tree.reset_begins(user)
    during = by_id(backend)
    assert during["0000:af:00.1"].health.reason == "it is being reset, or its driver is still probing it"
    assert during["0000:af:00.1"].attributes == before["0000:af:00.1"].attributes, "its resource must stay"
    assert during["0000:d8:00.1"] == before["0000:d8:00.1"]
    tree.user(user, "xilinx_u280_gen3x16_xdma_base_1", serial="21770205K01Y")
    after = by_id(backend)
    assert after["0000:af:00.1"].health.healthy
    assert after["0000:af:00.1"].attributes == before["0000:af:00.1"].attributes
    assert [node.path for node in backend.allocate(request(backend, [after["0000:af:00.1"]])).nodes] == [
        "/dev/dri/renderD128"
    ]


def test_a_reset_that_takes_the_functions_away_brings_the_same_device_back(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = fpga_xrt.alveo_u280(tmp_path)
    backend = looking(tree)
    before = by_id(backend)
    for function in "10":
        tree.remove(f"/sys/devices/pci0000:af/0000:af:00.{function}")
    assert list(by_id(backend)) == ["0000:d8:00.1"]
    tree.manager(
        tree.function("0000:af:00.0", fpga_xrt.U280_MANAGEMENT, "xclmgmt", numa_node=1), 44800, "21770205K01Y"
    )
    user = tree.function("0000:af:00.1", fpga_xrt.U280, "xocl", numa_node=1)
    tree.user(user, "xilinx_u280_gen3x16_xdma_base_1", serial="21770205K01Y")
    after = by_id(backend)
    assert after["0000:af:00.1"].health.healthy
    assert after["0000:af:00.1"].attributes == before["0000:af:00.1"].attributes
    assert after["0000:d8:00.1"] == before["0000:d8:00.1"]


def test_cards_of_earlier_drivers_without_the_file_ready_are_healthy(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = fpga_xrt.alveo_u250(tmp_path)
    (tmp_path / USER.lstrip("/") / "ready").unlink()
    assert by_id(looking(tree))["0000:3b:00.1"].health.healthy
    tree.file(f"{USER}/ready", "?")
    assert "does not answer xocl" in reason(tree, looking)


def test_another_card_in_the_same_slot_does_not_inherit_its_identity(tmp_path: Path) -> None:
    """The kernel never uses an inode of sysfs again, unlike other file systems: this test sets it."""

    class Inodes(FpgaSysfs):
        offset = 0

        def identities(self, path: str) -> dict[str, int]:
            return {name: inode + self.offset for name, inode in super().identities(path).items()}

    tree, sysfs = fpga_xrt.alveo_u250(tmp_path), Inodes(tmp_path)
    family = Xrt(sysfs)
    (unit,) = family.scan()
    assert unit.device.attributes["serial"] == "2130048AK02K"
    tree.reset_begins(USER)
    (unit,) = family.scan()
    assert unit.device.attributes["serial"] == "2130048AK02K", "the same card, in its reset"
    sysfs.offset = 1
    (unit,) = family.scan()
    assert not {"serial", "shell", "xilinxName"} & unit.device.attributes.keys()


def test_a_card_whose_render_node_goes_during_a_scan_stays_as_it_was_and_is_unhealthy(
    tmp_path: Path, looking: BackendFixture
) -> None:
    sysfs = Recorded(tmp_path)
    backend = looking(fpga_xrt.alveo_u250(tmp_path), kind=reading(lambda root: sysfs))
    before = by_id(backend)["0000:3b:00.1"]
    sysfs.vanishing = f"{USER}/drm", f"{USER}/drm"
    during = by_id(backend)["0000:3b:00.1"]
    assert before.health.healthy and not during.health.healthy
    assert during.attributes == before.attributes
    assert by_id(backend)["0000:3b:00.1"].health.reason == "xocl created no render node for it"


def test_a_card_that_vanishes_during_a_scan_does_no_harm(tmp_path: Path, looking: BackendFixture) -> None:
    sysfs = Recorded(tmp_path)
    sysfs.vanishing = "0000:af:00.1", "/sys/devices/pci0000:af/0000:af:00.1"
    devices = by_id(looking(fpga_xrt.alveo_u280(tmp_path), kind=reading(lambda root: sysfs)))
    assert devices["0000:d8:00.1"].health.healthy
    if "0000:af:00.1" in devices:
        assert not devices["0000:af:00.1"].health.healthy
