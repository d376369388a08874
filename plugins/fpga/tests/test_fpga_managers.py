"""Regions and managers of the kernel's own classes, on chips that no other family speaks of."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import fpga_kernel
import fpga_xrt
import pytest
from devhost_fpga.managers import Managers
from devhost_fpga.model import FpgaSysfs, Interface
from devhost_testing.fixtures import BackendFixture, by_id, request
from fpga_backend import Faults, reading
from fpga_kernel import KernelTree

from devhost.backend import AllocationError

DEVCFG = "/sys/devices/platform/axi/f8007000.devcfg/fpga_manager/fpga0"
BRIDGE = "/sys/devices/platform/43c10000.decoupler/fpga_bridge/br0"
REGION = "fpga-region-region"

TRANSITIONS = ("firmware request", "parse header", "write init", "write", "write complete")


def test_a_region_is_one_device_with_the_nodes_of_what_is_programmed_in_it(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(fpga_kernel.zynq(tmp_path))
    devices = by_id(backend)
    assert list(devices) == [REGION]
    device = devices[REGION]
    assert device.attributes == {
        "vendor": "xilinx",
        "kind": "region",
        "manager": "Xilinx Zynq FPGA Manager",
        "managerState": "operating",
        "regionState": "ready",
        "driver": "of-fpga-region",
    }
    assert device.claims == {f"fpga:{REGION}", "node:/dev/uio0", "node:/dev/uio1"}
    assert device.health.healthy and not device.withheld
    assert [node.path for node in backend.allocate(request(backend, [device])).nodes] == [
        "/dev/uio0",
        "/dev/uio1",
    ]


def test_a_region_without_any_device_node_is_listed_and_withheld(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    for name in ("43c00000.filter", "43c40000.scaler"):
        tree.remove(f"/sys/devices/platform/fpga-region/{name}")
    device = by_id(looking(tree))[REGION]
    assert "no device node" in device.withheld and device.health.healthy


def test_a_region_whose_node_goes_during_a_scan_stays_a_device_and_is_unhealthy(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = fpga_kernel.zynq(tmp_path)

    class Programmed(FpgaSysfs):
        def text(self, path: str) -> str:
            if path.endswith("fpga0/name"):
                tree.remove("/sys/devices/platform/fpga-region/43c00000.filter")
            return super().text(path)

    assert not by_id(looking(tree, kind=reading(Programmed)))[REGION].health.healthy


def test_an_overlay_that_is_applied_later_makes_a_region_usable(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    for name in ("43c00000.filter", "43c40000.scaler"):
        tree.remove(f"/sys/devices/platform/fpga-region/{name}")
    backend = looking(tree)
    assert by_id(backend)[REGION].withheld
    tree.uio("platform/fpga-region/43c80000.fft", 7)
    assert not by_id(backend)[REGION].withheld
    assert [node.path for node in backend.allocate(request(backend, backend.discover())).nodes] == [
        "/dev/uio7"
    ]


def test_a_manager_with_a_firmware_file_gives_a_slot_to_program(tmp_path: Path) -> None:
    (unit,) = Managers(FpgaSysfs(fpga_kernel.zynq(tmp_path, firmware=True).root)).scan()
    (slot,) = unit.slots
    assert (slot.interface, slot.engine, slot.function) == (Interface.FIRMWARE, DEVCFG, "")
    (unit,) = Managers(FpgaSysfs(fpga_kernel.zynq(tmp_path / "mainline").root)).scan()
    assert unit.slots == ()


def test_an_empty_chip_that_can_be_programmed_is_offered_without_nodes(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = fpga_kernel.zynq(tmp_path, firmware=True)
    for name in ("43c00000.filter", "43c40000.scaler"):
        tree.remove(f"/sys/devices/platform/fpga-region/{name}")
    tree.file(f"{DEVCFG}/state", "power up")
    backend = looking(tree)
    device = by_id(backend)[REGION]
    assert device.health.healthy and not device.withheld
    with pytest.raises(AllocationError, match=r"no device node .*use an entry with `program`"):
        backend.allocate(request(backend, [device]))


# States


@pytest.mark.parametrize("state", TRANSITIONS)
def test_programming_keeps_the_last_health(tmp_path: Path, state: str) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    family = Managers(FpgaSysfs(tmp_path))
    (unit,) = family.scan()
    tree.file(f"{DEVCFG}/state", state)
    (unit,) = family.scan()
    assert unit.is_busy and unit.device.health.healthy
    assert unit.device.attributes["regionState"] == "reconfiguring"
    assert unit.device.attributes["managerState"] == state
    (unit,) = Managers(FpgaSysfs(tmp_path)).scan()
    assert unit.device.health.reason == "it is being reconfigured", "never seen at rest"


@pytest.mark.parametrize(
    "state", ["firmware request error", "parse header error", "write error", "melting error"]
)
def test_an_error_names_the_status_and_ends_with_the_next_programming(tmp_path: Path, state: str) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    family = Managers(FpgaSysfs(tmp_path))
    (before,) = family.scan()
    tree.file(f"{DEVCFG}/state", state)
    tree.file(f"{DEVCFG}/status", "reconfig CRC error\nreconfig fifo overflow error")
    (unit,) = family.scan()
    assert not unit.is_busy
    assert unit.device.attributes["regionState"] == "failed"
    assert unit.device.health.reason == (
        f"its FPGA manager is in state {state!r} (reconfig CRC error, reconfig fifo overflow error): "
        "program it again"
    )
    tree.file(f"{DEVCFG}/state", "operating")
    (tmp_path / DEVCFG.lstrip("/") / "status").unlink()
    (unit,) = family.scan()
    assert unit == before


@pytest.mark.parametrize("state", ["unknown", "contemplating", "…", "operating"])
def test_unknown_manager_states_keep_a_device_healthy(tmp_path: Path, state: str) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    tree.file(f"{DEVCFG}/state", state)
    (unit,) = Managers(FpgaSysfs(tmp_path)).scan()
    assert unit.device.health.healthy and not unit.is_busy
    assert unit.device.attributes["managerState"] == state


@pytest.mark.parametrize(
    ("state", "reason"),
    [("power off", "switched off"), ("reset", "it is not programmed"), ("", "cannot be read")],
)
def test_an_empty_chip_is_unhealthy_with_the_reason(tmp_path: Path, state: str, reason: str) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    tree.file(f"{DEVCFG}/state", state)
    (unit,) = Managers(FpgaSysfs(tmp_path)).scan()
    assert reason in unit.device.health.reason and not unit.is_busy


def test_a_status_makes_an_operating_chip_unhealthy_but_not_an_empty_one(tmp_path: Path) -> None:
    tree = fpga_kernel.zynq(tmp_path, firmware=True)
    tree.file(f"{DEVCFG}/status", "all I/Os are placed in High-Z state")
    (unit,) = Managers(FpgaSysfs(tmp_path)).scan()
    assert "High-Z" in unit.device.health.reason
    tree.file(f"{DEVCFG}/state", "unknown")
    (unit,) = Managers(FpgaSysfs(tmp_path)).scan()
    assert unit.device.health.healthy


@pytest.mark.parametrize("content", [b"", b"\xff\x00\x80", b"z" * 9000])
@pytest.mark.parametrize("file", ["state", "status", "name"])
def test_a_damaged_file_never_raises(tmp_path: Path, file: str, content: bytes) -> None:
    fpga_kernel.zynq(tmp_path)
    (tmp_path / DEVCFG.lstrip("/") / file).write_bytes(content)
    (unit,) = Managers(FpgaSysfs(tmp_path)).scan()
    assert unit.device.id == REGION


def test_a_disabled_bridge_makes_its_region_unhealthy_until_it_is_enabled(tmp_path: Path) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    family = Managers(FpgaSysfs(tmp_path))
    (before,) = family.scan()
    assert f"{BRIDGE}/state" in before.watched
    tree.file(f"{BRIDGE}/state", "disabled")
    (unit,) = family.scan()
    assert "its bridge xlnx,pr-decoupler (br0) is disabled" in unit.device.health.reason
    tree.file(f"{BRIDGE}/state", "enabled")
    (unit,) = family.scan()
    assert unit == before


def test_a_bridge_of_another_region_does_not_matter(tmp_path: Path) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    tree.device("platform/50000000.decoupler", "platform", DRIVER="xlnx-pr-decoupler")
    tree.fpga_bridge("platform/50000000.decoupler", 1, "other", "disabled")
    (unit,) = Managers(FpgaSysfs(tmp_path)).scan()
    assert unit.device.health.healthy


# Who belongs to whom


def test_regions_in_a_region_are_parts_of_it_with_their_own_nodes(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(fpga_kernel.nested(tmp_path))
    devices = by_id(backend)
    outer, first, second = "soc:base-region-region", "c0000000.pr-region", "c0010000.pr-region"
    assert set(devices) == {outer, first, second}
    assert f"fpga:{outer}" in devices[outer].claims
    assert devices[first].part_of == devices[second].part_of == {f"fpga:{outer}"}
    assert not devices[first].claims & devices[second].claims
    given = {
        name: [node.path for node in backend.allocate(request(backend, [device])).nodes]
        for name, device in devices.items()
    }
    assert given == {outer: ["/dev/uio0"], first: ["/dev/uio1"], second: ["/dev/uio2"]}
    assert {device.attributes["managerState"] for device in devices.values()} == {"operating"}


def test_a_region_without_a_manager_uses_that_of_the_region_around_it(tmp_path: Path) -> None:
    tree = fpga_kernel.nested(tmp_path)
    tree.device("platform/soc/spi0.0", "spi", DRIVER="ice40-spi")
    tree.fpga_manager("platform/soc/spi0.0", 1, "Lattice iCE40 FPGA Manager", "write error")
    units = {unit.device.id: unit.device for unit in Managers(FpgaSysfs(tmp_path)).scan()}
    assert units["c0000000.pr-region"].attributes["manager"] == "Altera SOCFPGA FPGA Manager"
    assert units["c0000000.pr-region"].health.healthy
    assert not units["spi0.0"].health.healthy


def test_ids_do_not_depend_on_the_kernels_numbers(tmp_path: Path, looking: BackendFixture) -> None:
    first = by_id(looking(fpga_kernel.zynq(tmp_path / "first")))
    tree = KernelTree(tmp_path / "second")
    tree.device("platform/axi/f8007000.devcfg", "platform", DRIVER="zynq_fpga")
    tree.fpga_manager("platform/axi/f8007000.devcfg", 5, "Xilinx Zynq FPGA Manager")
    tree.of_node("/sys/devices/platform/axi/f8007000.devcfg", "axi/devcfg@f8007000", 0x77)
    tree.device("platform/fpga-region", "platform", DRIVER="of-fpga-region")
    tree.of_node(tree.fpga_region("platform/fpga-region", 3), "fpga-region", fpga_mgr=0x77)
    assert list(by_id(looking(tree))) == list(first)


def test_a_chip_without_regions_is_a_card_with_its_nodes(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(fpga_kernel.ice40(tmp_path))
    devices = by_id(backend)
    assert list(devices) == ["spi0.0", "spi1.0"]
    assert devices["spi0.0"].attributes["vendor"] == "other"
    assert devices["spi1.0"].attributes["vendor"] == "xilinx"
    assert devices["spi1.0"].attributes["kind"] == "card"
    assert devices["spi0.0"].withheld and not devices["spi1.0"].withheld
    assert [node.path for node in backend.allocate(request(backend, [devices["spi1.0"]])).nodes] == [
        "/dev/mychip0"
    ]


def test_a_chip_on_pci_knows_its_place_and_dies_with_its_link(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = fpga_kernel.cvp(tmp_path)
    backend = looking(tree)
    device = by_id(backend)["0000:65:00.0"]
    assert device.attributes["vendor"] == "intel"
    assert device.attributes["pciBusID"] == "0000:65:00.0"
    assert device.numa_nodes == (1,)
    assert device.pcie_path == ("0000:64:00.0", "0000:65:00.0")
    assert "pci:0000:65:00.0" in device.claims | device.part_of
    tree.dies("/sys/devices/pci0000:64/0000:64:00.0/0000:65:00.0")
    assert "lost its link" in by_id(backend)["0000:65:00.0"].health.reason


@pytest.mark.parametrize("bus", ["usb", "spi"])
def test_a_chip_on_another_bus_has_no_attribute_of_the_bus_controller(
    tmp_path: Path, looking: BackendFixture, bus: str
) -> None:
    tree = fpga_kernel.KernelTree(tmp_path)
    controller = tree.function("0000:00:14.0", "8086:a0ed", "xhci_hcd", numa_node=1)
    parent = f"{controller.removeprefix('/sys/devices/')}/adapter/chip0"
    tree.device(parent, bus, DRIVER="chip-driver")
    tree.fpga_manager(parent, 0, "Xilinx Slave Serial FPGA Manager")
    device = by_id(looking(tree))["chip0"]
    assert device.attributes["driver"] == "chip-driver"
    assert not {"pciBusID", "vendorID", "deviceID", "isVf"} & device.attributes.keys()
    assert (device.attributes["numaNode"], device.pcie_path) == (1, ("0000:00:14.0",))
    assert device.part_of == {"pci:0000:00:14.0"}  # it ends when the controller is given away


def test_a_region_without_a_known_manager_is_unhealthy_with_the_reason(tmp_path: Path) -> None:
    tree = fpga_kernel.ice40(tmp_path)
    tree.device("platform/fpga-region", "platform", DRIVER="of-fpga-region")
    tree.fpga_region("platform/fpga-region", 0)
    units = {unit.device.id: unit for unit in Managers(FpgaSysfs(tmp_path)).scan()}
    assert "sysfs does not show which FPGA manager" in units[REGION].device.health.reason


def test_a_chip_on_spi_programs_no_region_that_does_not_name_it(tmp_path: Path) -> None:
    tree = fpga_kernel.KernelTree(tmp_path)
    chip = "pci0000:00/0000:00:1e.2/spi_master/spi0/spi0.0"
    tree.device(chip, "spi", DRIVER="ice40-spi")
    tree.fpga_manager(chip, 0, "Lattice iCE40 FPGA Manager")
    tree.device("platform/fpga-region", "platform", DRIVER="of-fpga-region")
    tree.fpga_region("platform/fpga-region", 0)
    units = {unit.device.id: unit for unit in Managers(FpgaSysfs(tmp_path)).scan()}
    assert "sysfs does not show which FPGA manager" in units[REGION].device.health.reason


def test_a_region_has_the_manager_of_the_nearest_region_around_it(tmp_path: Path) -> None:
    tree = fpga_kernel.KernelTree(tmp_path)
    place = "platform/outer"
    for number, name in enumerate(("outer", "middle", "inner")):
        tree.device(place, "platform", DRIVER="of-fpga-region")
        region = tree.fpga_region(place, number)
        if name != "inner":
            tree.device(f"platform/{name}-chip", "platform")
            tree.fpga_manager(f"platform/{name}-chip", number, f"{name} manager")
            tree.of_node(f"/sys/devices/platform/{name}-chip", f"{name}-chip", number + 1)
            tree.of_node(region, f"{name}-region", fpga_mgr=number + 1)
        place = f"{region.removeprefix('/sys/devices/')}/next{number}"
    units = {unit.device.id: unit.device for unit in Managers(FpgaSysfs(tmp_path)).scan()}
    assert units["next1-region"].attributes["manager"] == "middle manager"


def test_an_interface_id_is_kept_while_it_cannot_be_read(tmp_path: Path, faults: Faults) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    path = "/sys/devices/platform/fpga-region/fpga_region/region0/compat_id"
    tree.file(path, "69528db6eb31577a8c3668f9faa081f6")
    family = Managers(faults.sysfs(tmp_path))
    (before,) = family.scan()
    assert before.device.attributes["interfaceId"] == "69528db6eb31577a8c3668f9faa081f6"
    faults.set(path, errno.EBUSY)
    assert list(family.scan()) == [before]
    faults.set(path, errno.ENOENT)
    (unit,) = family.scan()
    assert unit.device.health.healthy and "interfaceId" not in unit.device.attributes
    faults.clear()
    tree.file(path, "f" * 32)
    (unit,) = family.scan()
    assert "compat_id reads as ones" in unit.device.health.reason


def test_what_another_family_lists_is_not_listed_again(tmp_path: Path, looking: BackendFixture) -> None:
    """xclmgmt makes an fpga_manager of each card (subdev/fmgr.c of XRT)."""
    tree = fpga_kernel.zynq(tmp_path)
    path = tree.function("0000:3b:00.0", fpga_xrt.U250_MANAGEMENT, "xclmgmt")
    tree.manager(path, 15104)
    fmgr = tree.part(path, "fmgr.m").removeprefix("/sys/devices/")
    tree.fpga_manager(fmgr, 1, "Xilinx PCIe FPGA Manager")
    tree.user(tree.function("0000:3b:00.1", fpga_xrt.U250, "xocl"))
    assert set(by_id(looking(tree))) == {"0000:3b:00.1", REGION}
    family = Managers(FpgaSysfs(tmp_path))
    family.exclude(["/sys/devices/platform", "/sys/devices/pci0000:3b"])
    assert list(family.scan()) == []


def test_flash_and_mode_setting_nodes_are_not_allocated(tmp_path: Path, looking: BackendFixture) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    base = "platform/fpga-region/44000000.gpu"
    tree.device(base, "platform", DRIVER="gpu")
    tree.render(f"/sys/devices/{base}")
    tree.device(f"{base}/mtd/mtd0", "mtd", "mtd0", "90:0")
    backend = looking(tree)
    nodes = {node.path for node in backend.allocate(request(backend, backend.discover())).nodes}
    assert nodes == {"/dev/dri/renderD128", "/dev/uio0", "/dev/uio1"}


def test_a_region_that_vanishes_during_a_scan_does_no_harm(tmp_path: Path) -> None:
    class Vanishing(FpgaSysfs):
        def text(self, path: str) -> str:
            shutil.rmtree(tmp_path / "sys/devices/platform/soc:base-region/fpga_region", ignore_errors=True)
            return super().text(path)

    fpga_kernel.nested(tmp_path)
    assert all(unit.device.id for unit in Managers(Vanishing(tmp_path)).scan())
    assert [unit.device.id for unit in Managers(FpgaSysfs(tmp_path)).scan()] == ["ff706000.fpgamgr"]


def test_a_long_or_unusual_name_gives_a_legal_id(tmp_path: Path) -> None:
    tree = KernelTree(tmp_path)
    for name in ("x" * 90, "x" * 89 + "y", "a b$c"):
        tree.device(f"platform/{name}", "platform", DRIVER="some_fpga")
    for number, name in enumerate(("x" * 90, "x" * 89 + "y", "a b$c")):
        tree.fpga_manager(f"platform/{name}", number, "Some FPGA Manager")
    found = [unit.device.id for unit in Managers(FpgaSysfs(tmp_path)).scan()]
    assert len(set(found)) == 3 and all(len(name) <= 63 and " " not in name for name in found)


def test_regions_that_differ_only_in_kernel_numbers_are_withheld(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = fpga_kernel.zynq(tmp_path)
    tree.fpga_region("platform/fpga-region", 7)
    withheld = {device.id: device.withheld for device in looking(tree).discover()}
    first, second = sorted(withheld)
    assert (first, second) == ("fpga-region-region0", "fpga-region-region7")
    assert withheld[first] == "no permanent name in sysfs distinguishes it from region7"
    assert withheld[second] == "no permanent name in sysfs distinguishes it from region0"
