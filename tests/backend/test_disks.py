"""Which disks carry what is mounted, down to the hardware, also where the kernel names it indirectly."""

from __future__ import annotations

from pathlib import Path

import pytest
from devhost_testing.trees import Tree

from devhost.backend.disks import SWAP, Disks, disks
from devhost.backend.sysfs import Sysfs

ATA = "pci0000:00/0000:00:17.0/ata1/block/sda"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """One disk with two partitions, and a volume on the second."""
    made = Tree(tmp_path)
    made.device(ATA, "block", "sda", "8:0")
    for number in (1, 2):
        made.device(f"{ATA}/sda{number}", "block", f"sda{number}", f"8:{number}")
        made.link(f"/sys/class/block/sda{number}", f"/sys/devices/{ATA}/sda{number}")
    made.device("virtual/block/dm-0", "block", "dm-0", "253:0")
    made.link("/sys/devices/virtual/block/dm-0/slaves/sda2", f"/sys/devices/{ATA}/sda2")
    made.link("/dev/mapper/root", "/dev/dm-0")
    return made


def mounted(tree: Tree, *lines: str, process: str = "1") -> None:
    tree.file(f"/proc/{process}/mountinfo", "\n".join(f"2{n} 1 {line}" for n, line in enumerate(lines)))


def found(tree: Tree) -> Disks:
    known = disks(Sysfs(tree.root))
    return Disks({path.rpartition("/")[2]: what for path, what in known.carried.items()}, known.is_complete)


def test_without_proc_no_disk_is_known_to_be_in_use(tree: Tree) -> None:
    assert found(tree) == Disks()


def test_a_volume_leads_to_its_disks_and_the_shortest_mount_point_counts(tree: Tree) -> None:
    mounted(tree, "253:0 / /var/lib rw - xfs /dev/dm-0 rw", "253:0 / / rw - xfs /dev/dm-0 rw")
    assert found(tree) == Disks({"dm-0": "/", "sda2": "/"})


def test_of_two_volumes_on_one_disk_the_one_with_the_shorter_mount_point_counts(tree: Tree) -> None:
    tree.device("virtual/block/dm-1", "block", "dm-1", "253:1")
    tree.link("/sys/devices/virtual/block/dm-1/slaves/sda2", f"/sys/devices/{ATA}/sda2")
    mounted(tree, "253:1 / /var/lib rw - xfs /dev/dm-1 rw", "253:0 / / rw - xfs /dev/dm-0 rw")
    assert found(tree) == Disks({"dm-0": "/", "dm-1": "/var/lib", "sda2": "/"})


def test_a_file_system_with_an_anonymous_number_is_found_by_its_source(tree: Tree) -> None:
    tree.file("/sys/fs/btrfs/0b0b/devices/sdb1", "")
    tree.file("/sys/fs/btrfs/0c1d/devices/sda1", "")
    tree.file("/sys/fs/btrfs/0c1d/devices/sda2", "")
    mounted(tree, "0:40 /@ / rw shared:1 - btrfs /dev/sda1 rw")
    assert found(tree) == Disks({"sda1": "/", "sda2": "/"})
    mounted(tree, "0:41 / / rw - bcachefs /dev/mapper/root:/dev/sda1 rw")
    assert found(tree).carried.keys() == {"dm-0", "sda2", "sda1"}


def test_a_file_system_without_a_disk_is_ignored(tree: Tree) -> None:
    mounted(
        tree, "0:5 / /dev rw - devtmpfs udev rw", "0:9 / /mnt rw - nfs4 srv:/data rw", "nonsense", "8:1 /"
    )
    assert found(tree) == Disks()


def test_swap_space_counts_unless_something_is_mounted_there(tree: Tree) -> None:
    tree.file(
        "/proc/swaps", "Filename Type Size Used Priority\n/dev/sda1 partition 8 0 -2\n/swap file 8 0 -3\n"
    )
    mounted(tree)
    assert found(tree) == Disks({"sda1": SWAP})


def test_only_the_selected_mount_points_count(tree: Tree) -> None:
    mounted(tree, "8:1 / /boot rw - ext4 /dev/sda1 rw", "8:2 / /data rw - ext4 /dev/sda2 rw")
    known = disks(Sysfs(tree.root), lambda point: point == "/data")
    assert [path.rpartition("/")[2] for path in known.carried] == ["sda2"]


def test_with_a_zfs_pool_the_disks_in_use_are_unknown(tree: Tree) -> None:
    mounted(tree, "0:30 / / rw - zfs rpool/ROOT rw", "8:1 / /boot rw - ext4 /dev/sda1 rw")
    assert found(tree) == Disks({"sda1": "/boot"}, is_complete=False)


def test_without_the_first_process_its_own_mounts_are_the_best_there_is(tree: Tree) -> None:
    mounted(tree, "8:1 / /etc/hosts rw - ext4 /dev/sda1 rw", process="self")
    assert found(tree) == Disks({"sda1": "/etc/hosts"})
