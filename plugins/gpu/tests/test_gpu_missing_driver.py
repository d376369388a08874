"""A GPU that its vendor's driver does not drive is named with the fix, unless the user chose another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from devhost_gpu import Gpu
from devhost_testing.fixtures import BackendFixture
from devhost_testing.trees import Tree
from kit.backend import missing_drivers

from devhost.backend import MissingDriver

AT = "0000:3b:00.0"


@pytest.fixture
def lacks(looking: BackendFixture[Gpu], tmp_path: Path) -> Callable[..., list[MissingDriver]]:
    """What is said of a machine with one function."""

    def look(ids: str, driver: str = "", pci_class: str = "0x030200", **files: str) -> list[MissingDriver]:
        tree = Tree(tmp_path / "root")
        tree.function(AT, ids, driver, pci_class=pci_class, files=files)
        return missing_drivers(looking(tree))

    return look


@pytest.mark.parametrize(
    ("ids", "pci_class", "vendor", "fix"),
    [
        ("10de:2330", "0x030200", "nvidia", "install NVIDIA's driver, then run modprobe nvidia"),
        ("1002:740f", "0x038000", "amd", "run modprobe amdgpu"),
        ("1002:74a1", "0x120000", "amd", "run modprobe amdgpu"),
        ("8086:56c0", "0x038000", "intel", "run modprobe i915, or modprobe xe for newer cards"),
    ],
)
def test_a_gpu_without_a_driver_is_named_with_the_module_to_load(
    lacks: Callable[..., list[MissingDriver]], ids: str, pci_class: str, vendor: str, fix: str
) -> None:
    """Vendors' plugins see no GPU without its driver, and say that the node has none."""
    (found,) = lacks(ids, pci_class=pci_class)
    assert (found.subject, found.reason) == (f"{AT} ({ids})", f"no driver is bound to it ({fix})")
    assert found.attributes["vendor"] == vendor
    assert found.attributes["pciBusID"] == AT
    assert "driver" not in found.attributes


def test_an_nvidia_gpu_of_nouveau_lacks_its_driver(lacks: Callable[..., list[MissingDriver]]) -> None:
    (found,) = lacks("10de:2330", "nouveau")
    assert found.reason == "bound to nouveau (install NVIDIA's driver, then run modprobe nvidia)"


@pytest.mark.parametrize(
    ("ids", "driver", "files"),
    [
        ("10de:2330", "vfio-pci", {}),
        ("1002:740f", "amdgpu", {}),
        ("10de:2330", "", {"driver_override": "vfio-pci"}),
        ("1a03:2000", "", {}),
    ],
    ids=["given to vfio-pci", "driven", "reserved for vfio-pci", "graphics of a BMC"],
)
def test_a_driver_that_the_user_chose_is_not_reported_as_missing(
    lacks: Callable[..., list[MissingDriver]], ids: str, driver: str, files: dict[str, str]
) -> None:
    assert lacks(ids, driver, **files) == []


def test_a_virtual_function_may_be_without_a_driver(looking: BackendFixture[Gpu], tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    physical = tree.function(AT, "8086:56c0", "i915", pci_class="0x038000")
    virtual = tree.function("0000:3b:00.1", "8086:56c0", pci_class="0x038000")
    tree.virtual_functions(physical, virtual)
    assert missing_drivers(looking(tree)) == []


def test_a_driver_that_is_loaded_ends_it(looking: BackendFixture[Gpu], tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    tree.function(AT, "1002:740f", pci_class="0x038000")
    backend = looking(tree)
    assert len(missing_drivers(backend)) == 1
    tree.function(AT, "1002:740f", "amdgpu", pci_class="0x038000")
    assert missing_drivers(backend) == []
