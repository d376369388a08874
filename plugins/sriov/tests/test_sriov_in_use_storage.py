"""Storage controllers that the node itself uses: the one with its root disk is never offered."""

from __future__ import annotations

from pathlib import Path

import pytest
import sriov_others as others
from devhost_sriov.options import SriovOptions
from devhost_testing.fixtures import by_id
from sriov_tree import SriovTree

PF = "0000:04:00.0"
NVME = "pci0000:00/0000:00:07.0/0000:04:00.0/nvme/nvme0"
ALSO = "; set backends.sriov.allowInUse to offer it"


def machine(root: Path, disk: str = NVME) -> SriovTree:
    """A controller that could have virtual functions, with a disk in two partitions."""
    tree = SriovTree(root)
    files = {"class": "0x010802"}
    tree.function(PF, "1b36:0010", "nvme", below="0000:00:07.0", pci_class="0x010802", total=4, files=files)
    tree.device(NVME, "nvme", "nvme0", "239:0")
    tree.device(f"{disk}/nvme0n1", "block", "nvme0n1", "259:0", DEVTYPE="disk")
    for number in (1, 2):
        path = f"{disk}/nvme0n1/nvme0n1p{number}"
        tree.device(path, "block", f"nvme0n1p{number}", f"259:{number}", DEVTYPE="partition")
        tree.link(f"/sys/class/block/nvme0n1p{number}", f"/sys/devices/{path}")
    tree.link("/sys/class/block/nvme0n1", f"/sys/devices/{disk}/nvme0n1")
    tree.file("/proc/1/mountinfo", "20 1 0:20 / /proc rw - proc proc rw")
    return tree


def mount(tree: SriovTree, *lines: str) -> None:
    tree.file("/proc/1/mountinfo", "\n".join(f"2{n} 1 {line}" for n, line in enumerate(lines)))


def test_the_controller_of_a_mounted_disk_is_withheld(looking, tmp_path):
    tree = machine(tmp_path)
    backend = looking(tree)
    assert by_id(backend)[PF].reserved is None
    mount(tree, "259:2 / /var/lib rw - ext4 /dev/nvme0n1p2 rw", "259:2 / / rw - ext4 /dev/nvme0n1p2 rw")
    assert by_id(backend)[PF].reserved == "it carries the file system at /, on nvme0n1p2"
    tree.file("/proc/1/mountinfo", "")
    assert by_id(backend)[PF].reserved is None


def test_a_file_system_on_a_volume_of_several_disks_counts_for_each_of_them(looking, tmp_path):
    tree = machine(tmp_path)
    tree.device("virtual/block/dm-0", "block", "dm-0", "253:0", DEVTYPE="disk")
    tree.link("/sys/class/block/dm-0", "/sys/devices/virtual/block/dm-0")
    tree.link("/sys/devices/virtual/block/dm-0/slaves/nvme0n1p2", f"/sys/devices/{NVME}/nvme0n1/nvme0n1p2")
    mount(tree, "253:0 / /data rw - xfs /dev/mapper/vg-data rw")
    assert by_id(looking(tree))[PF].reserved == "it carries the file system at /data, on nvme0n1p2"


def test_a_device_on_top_of_a_disk_counts_as_use(looking, tmp_path):
    tree = machine(tmp_path)
    tree.link(f"/sys/devices/{NVME}/nvme0n1/holders/md127", "/sys/devices/virtual/block/md127")
    assert by_id(looking(tree))[PF].reserved == "it carries md127, on nvme0n1"


def test_swap_space_counts(looking, tmp_path):
    tree = machine(tmp_path)
    tree.file("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/nvme0n1p1 partition 8 0 -2")
    assert by_id(looking(tree))[PF].reserved == "it carries swap space, on nvme0n1p1"


def test_with_zfs_every_controller_with_disks_counts_as_in_use(looking, tmp_path):
    tree = machine(tmp_path)
    mount(tree, "0:30 / / rw - zfs rpool/ROOT rw")
    assert by_id(looking(tree))[PF].withheld == (
        f"it is unknown whether nvme0n1 is in a ZFS pool of the node{ALSO}"
    )


def test_with_native_multipath_the_disk_is_found_through_its_subsystem(looking, tmp_path):
    subsystem = "virtual/nvme-subsystem/nvme-subsys0"
    tree = machine(tmp_path, disk=subsystem)
    tree.device(subsystem, "nvme-subsystem")
    tree.link(f"/sys/devices/{subsystem}/nvme0", f"/sys/devices/{NVME}")
    mount(tree, "259:1 / /boot rw - vfat /dev/nvme0n1p1 rw")
    assert by_id(looking(tree))[PF].reserved.startswith("it carries the file system at /boot, on nvme0n1p1")


def test_a_controller_in_use_has_its_purpose_unless_its_use_is_unknown(looking, tmp_path):
    tree = machine(tmp_path)
    mount(tree, "259:1 / / rw - ext4 /dev/nvme0n1p1 rw")
    assert by_id(looking(tree))[PF].attributes["purpose"] == "node-storage"
    mount(tree, "0:30 / / rw - zfs rpool/ROOT rw")
    assert "purpose" not in by_id(looking(tree))[PF].attributes


def test_a_controller_in_use_is_offered_with_the_option(looking, tmp_path):
    tree = machine(tmp_path)
    mount(tree, "259:1 / / rw - ext4 /dev/nvme0n1p1 rw")
    assert by_id(looking(tree, SriovOptions(allow_in_use=True)))[PF].reserved is None


@pytest.mark.parametrize("make", [others.qat, others.nvme])
def test_without_controllers_no_disk_is_read(looking, tmp_path, make):
    tree = make(tmp_path)
    mount(tree, "0:30 / / rw - zfs rpool/ROOT rw")
    assert not any("ZFS" in (device.withheld or "") for device in by_id(looking(tree)).values())
