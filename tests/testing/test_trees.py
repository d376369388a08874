"""The tree builder: the same machine whatever the order of the calls, and nothing left of what is removed."""

from __future__ import annotations

from pathlib import Path

from devhost.backend import Event
from devhost.testing.trees import Tree


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


def test_removing_a_device_takes_what_hangs_on_it_and_all_links_to_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    card = tree.pci("pci0000:00/0000:00:02.0", driver="i915", iommu_group=3)
    tree.device("pci0000:00/0000:00:02.0/drm/card0", "drm", "dri/card0", "226:0")
    assert tree.remove(card) == Event("pci", "remove", card)
    left = [path for path in tmp_path.rglob("*") if path.is_symlink() or path.is_file()]
    assert left == []
