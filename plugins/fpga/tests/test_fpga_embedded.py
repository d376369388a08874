"""Zynq, Kria and Versal with XRT's driver zocl."""

from __future__ import annotations

from pathlib import Path

import fpga_kernel
import pytest
from devhost_fpga.embedded import Embedded
from devhost_fpga.model import FpgaSysfs, Interface
from devhost_testing.fixtures import BackendFixture, by_id, request

NAME = "axi:zyxclmm_drm"
ZOCL = f"/sys/devices/platform/axi/{NAME}"
PCAP = "/sys/devices/platform/firmware:zynqmp-firmware/firmware:zynqmp-firmware:pcap/fpga_manager/fpga0"


def test_a_kria_is_one_card_with_the_render_node_of_zocl(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(fpga_kernel.kria_kv260(tmp_path))
    devices = by_id(backend)
    assert list(devices) == [NAME], "neither its manager nor its region a second time, nor the display"
    assert devices[NAME].attributes == {
        "vendor": "xilinx",
        "kind": "card",
        "driver": "zocl-drm",
        "manager": "Xilinx ZynqMP FPGA Manager",
        "managerState": "operating",
        "regionState": "ready",
    }
    assert devices[NAME].claims == {f"fpga:{NAME}", "node:/dev/dri/renderD128"}
    assert [node.path for node in backend.allocate(request(backend, [devices[NAME]])).nodes] == [
        "/dev/dri/renderD128"
    ]


def test_its_manager_can_be_programmed_where_the_kernel_has_a_file_for_it(tmp_path: Path) -> None:
    fpga_kernel.kria_kv260(tmp_path)
    (unit,) = Embedded(FpgaSysfs(tmp_path)).scan()
    assert [(slot.interface, slot.engine) for slot in unit.slots] == [(Interface.FIRMWARE, PCAP)]
    (tmp_path / PCAP.lstrip("/") / "firmware").unlink()
    (unit,) = Embedded(FpgaSysfs(tmp_path)).scan()
    assert unit.slots == ()


def test_without_zocl_the_kernels_own_region_is_listed_instead(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = fpga_kernel.kria_kv260(tmp_path)
    backend = looking(tree)
    assert list(by_id(backend)) == [NAME]
    tree.remove(ZOCL)  # the application's overlay is taken away
    assert list(by_id(backend)) == ["fpga-full-region"]


def test_the_module_may_be_loaded_later(tmp_path: Path, looking: BackendFixture) -> None:
    tree = fpga_kernel.kria_kv260(tmp_path)
    tree.remove(f"{ZOCL}/drm/renderD128")
    (tmp_path / ZOCL.lstrip("/") / "driver").unlink()
    backend = looking(tree)
    assert by_id(backend)[NAME].health.reason == "no driver is bound to it (run modprobe zocl)"
    tree.link(f"{ZOCL}/driver", "/sys/bus/platform/drivers/zocl-drm")
    assert by_id(backend)[NAME].health.reason == "zocl created no render node for it"
    tree.render(ZOCL)
    assert by_id(backend)[NAME].health.healthy


@pytest.mark.parametrize("state", ["write error", "firmware request error", "unknown", "dreaming", ""])
def test_a_failed_image_does_not_block_the_next_container(tmp_path: Path, state: str) -> None:
    tree = fpga_kernel.kria_kv260(tmp_path)
    tree.file(f"{PCAP}/state", state)
    (unit,) = Embedded(FpgaSysfs(tmp_path)).scan()
    assert unit.device.health.healthy and not unit.is_busy
    assert unit.device.attributes["regionState"] == ("failed" if not state or "error" in state else "ready")


def test_while_it_is_being_programmed_it_is_busy_and_stays_what_it_was(tmp_path: Path) -> None:
    tree = fpga_kernel.kria_kv260(tmp_path)
    family = Embedded(FpgaSysfs(tmp_path))
    (before,) = family.scan()
    tree.file(f"{PCAP}/state", "write")
    (unit,) = family.scan()
    assert unit.is_busy and unit.device.health == before.device.health
    tree.file(f"{PCAP}/state", "power off")
    (unit,) = family.scan()
    assert "switched off" in unit.device.health.reason
