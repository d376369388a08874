"""The tree builder: the order of calls does not matter, and removal is complete."""

from __future__ import annotations

import tarfile
from pathlib import Path

from devhost_testing.trees import Tree, unpack

from devhost.backend import Event
from devhost.backend.sysfs import Sysfs


def test_a_tree_may_be_built_in_any_order_and_twice(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for _ in range(2):
        path = tree.device(
            "virtual/block/sda", "block", "sda", "8:0", {"queue/rotational": "0"}, DEVTYPE="disk"
        )
        Tree(tmp_path)
    assert path == "/sys/devices/virtual/block/sda"
    assert (tmp_path / "sys/dev/block/8:0/queue/rotational").read_text() == "0\n"
    assert (
        tmp_path / "sys/class/block/sda/uevent"
    ).read_text() == "MAJOR=8\nMINOR=0\nDEVNAME=sda\nDEVTYPE=disk\n"
    assert (tmp_path / "sys/class/block/sda/subsystem").resolve().name == "block"


def test_removing_a_device_removes_its_children_and_all_links_to_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    card = tree.pci("pci0000:00/0000:00:02.0", driver="i915", iommu_group=3)
    tree.device("pci0000:00/0000:00:02.0/drm/card0", "drm", "dri/card0", "226:0")
    assert tree.remove(card) == Event("pci", "remove", card)
    left = [path for path in tmp_path.rglob("*") if path.is_symlink() or path.is_file()]
    assert left == []


def test_a_device_of_a_class_links_to_its_parent(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    card = tree.device("pci0000:00/0000:00:02.0/net/eth0", "net")
    tree.device("virtual/net/lo", "net")
    tree.pci("pci0000:00/0000:00:02.0")
    assert (tmp_path / card.lstrip("/") / "device").resolve().name == "0000:00:02.0"
    assert (tmp_path / "sys/class/net/eth0/device/vendor").read_text() == "0x8086\n"
    assert not (tmp_path / "sys/class/net/lo/device").is_symlink()


def test_a_function_has_the_ports_above_it_and_the_ids_of_its_board(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    below = "0000:3a:00.0/0000:3b:08.0"
    for _ in range(2):
        card = tree.function(
            "0000:3c:00.0",
            "15b3:101d",
            "mlx5_core",
            below=below,
            numa_node=1,
            group=7,
            files={"serial": "A1"},
        )
    assert card == f"/sys/devices/pci0000:3a/{below}/0000:3c:00.0"
    found = Sysfs(tmp_path).pci(card)
    assert found is not None
    assert (found.vendor, found.device, found.driver) == ("15b3", "101d", "mlx5_core")
    assert (found.subsystem_vendor, found.subsystem_device) == ("15b3", "101d")
    assert (found.pci_class, found.numa_node, found.iommu_group) == ("020000", 1, "7")
    assert (tmp_path / card[1:] / "serial").read_text() == "A1\n"
    for port in below.split("/"):
        bridge = tmp_path / "sys/bus/pci/devices" / port
        assert (bridge / "class").read_text() == "0x060400\n"
        assert (bridge / "numa_node").read_text() == "1\n"
    alone = tree.function("0000:00:02.0", "8086:56c0", subsystem="1028:0001", pci_class="0x030000")
    assert alone == "/sys/devices/pci0000:00/0000:00:02.0"
    found = Sysfs(tmp_path).pci(alone)
    assert found is not None
    assert (found.subsystem_vendor, found.subsystem_device, found.driver) == ("1028", "0001", "")


def test_virtual_functions_and_their_physical_function_link_to_each_other(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    physical, *virtual = (tree.pci(f"pci0000:3b/0000:3b:00.{number}") for number in (0, 2, 3))
    tree.virtual_functions(physical, *virtual, total=8)
    functions = tmp_path / "sys/bus/pci/devices"
    assert (functions / "0000:3b:00.0/sriov_totalvfs").read_text() == "8\n"
    assert (functions / "0000:3b:00.0/sriov_numvfs").read_text() == "2\n"
    assert (functions / "0000:3b:00.0/virtfn1").readlink() == Path("../0000:3b:00.3")
    assert (functions / "0000:3b:00.2/physfn").resolve().name == "0000:3b:00.0"
    tree.remove(virtual[1])
    assert not (functions / "0000:3b:00.0/virtfn1").is_symlink()


def test_a_packed_machine_is_unpacked_with_links_and_empty_directories(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "machine")
    tree.device("virtual/mycard/mycard0", "mycard", "mycard0", "240:0", {"serial": "A1"})
    with tarfile.open(tmp_path / "machine.tar.gz", "w:gz") as archive:
        archive.add(tree.root, arcname=".")
    unpack(tmp_path / "machine.tar.gz", tmp_path / "copy")

    def entries(root: Path) -> dict[Path, object]:
        return {
            path.relative_to(root): path.readlink()
            if path.is_symlink()
            else path.is_dir() or path.read_text()
            for path in root.rglob("*")
        }

    assert entries(tmp_path / "copy") == entries(tree.root)
