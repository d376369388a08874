"""A card that no driver is bound to is named with the module to load, unless the user chose another."""

from __future__ import annotations

from pathlib import Path

import pytest
from devhost_fpga.backend import Fpga
from devhost_testing.fixtures import BackendFixture
from devhost_testing.trees import Tree
from kit.backend import missing_drivers

AT = "0000:d8:00.0"


def lacks(tree: Tree) -> list[tuple[str, str]]:
    with BackendFixture(Fpga) as looking:
        found = missing_drivers(looking(tree))
        assert all("driver" not in one.attributes for one in found)
        return [(one.subject, one.reason) for one in found]


@pytest.mark.parametrize(
    ("ids", "subject", "reason"),
    [
        ("8086:bcce", f"{AT} (8086:bcce)", "no driver is bound to it (run modprobe dfl-pci)"),
        ("1c2c:1000", f"{AT} (1c2c:1000)", "no driver is bound to it (run modprobe dfl-pci)"),
        ("10ee:5001", AT, "no driver is bound to its user function (run modprobe xocl)"),
        ("10ee:5070", AT, "no driver is bound to it (run modprobe ama_transcoder)"),
    ],
)
def test_a_card_without_a_driver_is_named_with_the_module_to_load(
    tmp_path: Path, ids: str, subject: str, reason: str
) -> None:
    """Vendors' plugins list no card without its driver, and give no reason."""
    tree = Tree(tmp_path)
    tree.function(AT, ids, pci_class="0x120000")
    assert lacks(tree) == [(subject, reason)]


@pytest.mark.parametrize(
    ("ids", "driver", "override"),
    [
        ("8086:bcce", "dfl-pci", ""),
        ("8086:bcce", "vfio-pci", ""),
        ("8086:bcce", "", "vfio-pci"),
        ("10ee:5001", "vfio-pci", ""),
    ],
)
def test_a_deliberately_unbound_card_is_not_reported(
    tmp_path: Path, ids: str, driver: str, override: str
) -> None:
    tree = Tree(tmp_path)
    files = {"driver_override": override} if override else {}
    tree.function(AT, ids, driver, pci_class="0x120000", files=files)
    assert lacks(tree) == []


def test_a_virtual_function_may_be_without_a_driver(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    physical = tree.function(AT, "8086:bcce", "dfl-pci")
    tree.virtual_functions(physical, tree.function("0000:d8:00.1", "8086:bcce"))
    assert lacks(tree) == []
