"""The machine itself: everything the other tests want is there, and can be changed from inside."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
from lab.hotplug import Refused
from lab.kernel import run, settle, text
from lab.links import devices, nodes
from lab.waiting import until

from devhost import __version__

PCI = Path("/sys/bus/pci/devices")


def serials() -> set[str]:
    """The serial numbers of the disks that the kernel has."""
    return {text(disk / "device/serial") for disk in Path("/sys/block").glob("nvme*")}


def functions(driver: str) -> list[Path]:
    """The PCI functions that a driver serves."""
    return sorted(path.parent for path in PCI.glob("*/driver") if path.resolve().name == driver)


def test_the_network_card_and_the_disk_have_virtual_functions_behind_an_iommu():
    (card,), (disk,) = functions("igb"), functions("nvme")
    assert text(card / "sriov_totalvfs") == "7"
    assert text(disk / "sriov_totalvfs") == "4"
    assert (card / "iommu_group").resolve() != (disk / "iommu_group").resolve()


def test_a_gpu_with_and_a_display_without_a_render_node_are_there():
    settle()
    kinds = {text(path / "device/vendor"): path.name for path in Path("/sys/class/drm").glob("card?")}
    assert {"0x1af4", "0x1234"} <= set(kinds)
    assert len(list(Path("/dev/dri").glob("renderD*"))) == 1
    assert list(Path("/dev/dri/by-path").iterdir())


@pytest.mark.parametrize(
    "module",
    [
        "netdevsim",
        "vdpa_sim_net",
        "mtty",
        "vgem",
        "vkms",
        "dfl-pci",
        "dfl-fme",
        "dfl-afu",
        "vfio-pci",
        "rdma_ucm",
    ],
)
def test_a_module_that_a_backend_wants_can_be_loaded(module):
    run("modprobe", module)


def test_the_project_is_found_like_an_installed_one():
    assert importlib.metadata.version("devhost") == __version__
    points = importlib.metadata.entry_points(group="devhost")
    packages = {path.parent.name for path in Path("/project/plugins").glob("*/pyproject.toml")}
    assert {point.name for point in points} == packages
    for point in points:
        point.load()


def test_the_working_tree_cannot_be_changed():
    with pytest.raises(OSError, match="Read-only"):
        Path("/project/README.md").touch()


def test_rxe_and_siw_can_be_made_and_go_again(links):
    card = links.dummy("dummy0")
    links.rxe("rxe0", card)
    links.siw("siw0", card)
    settle()
    assert devices() == {"rxe0", "siw0"}
    assert {Path(node).name[:4] for node in nodes("rxe0")} == {"uver", "umad"}
    assert {Path(node).name[:4] for node in nodes("siw0")} == {"uver"}
    assert all(Path(node).is_char_device() for name in devices() for node in nodes(name))
    assert Path("/dev/infiniband/rdma_cm").is_char_device()
    links.delete("rxe0")
    links.delete("siw0")
    assert devices() == set()


async def test_a_device_can_be_plugged_and_pulled_from_inside(slots):
    function = await slots.plug("e1000e", "adapter", "free0")
    await until("its driver has it", lambda: (function / "driver").exists())
    await slots.pull("adapter")
    assert not function.exists()


def test_what_qemu_refuses_is_reported_with_the_reason(slots):
    with pytest.raises(Refused, match="nosuchdevice"):
        slots.monitor("device_add", driver="nosuchdevice", id="x")


async def test_udevd_makes_links_only_while_it_runs(slots, udevd):
    udevd.stop()
    await slots.plug("nvme", "disk", "free0", serial="plugged", drive="spare0")
    await until("the kernel has the disk", lambda: "plugged" in serials())
    by_id = Path("/dev/disk/by-id")
    assert not [link for link in by_id.iterdir() if "plugged" in link.name]
    udevd.start()
    assert [link for link in by_id.iterdir() if "plugged" in link.name]


def test_only_root_is_here():
    assert os.geteuid() == 0
