"""An adapter without an RDMA device is named with the module to load, unless the user chose another."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import rdma_connectx as connectx
from devhost_rdma import Rdma
from devhost_testing.fixtures import BackendFixture
from devhost_testing.trees import Tree
from kit.backend import missing_drivers

from devhost.backend import Event, MissingDriver

AT = "0000:5e:00.0"
IB, ETHERNET = "0x020700", "0x020000"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A machine without an adapter."""
    return Tree(tmp_path / "root")


@pytest.fixture
def lacks(looking: BackendFixture[Rdma], tree: Tree) -> Callable[..., list[MissingDriver]]:
    """The missing drivers of a machine with one function."""

    def look(ids: str, driver: str = "", pci_class: str = IB, **files: str) -> list[MissingDriver]:
        tree.function(AT, ids, driver, pci_class=pci_class, files=files)
        return missing_drivers(looking(tree))

    return look


@pytest.mark.parametrize(
    ("ids", "driver", "pci_class", "reason"),
    [
        ("15b3:1021", "", IB, "no driver is bound to it (run modprobe mlx5_ib)"),
        ("15b3:1021", "", ETHERNET, "no driver is bound to it (run modprobe mlx5_ib)"),
        ("15b3:1003", "", IB, "no driver is bound to it (run modprobe mlx4_ib)"),
        ("1d0f:efa1", "", ETHERNET, "no driver is bound to it (run modprobe efa)"),
        ("1077:7322", "", IB, "no driver is bound to it (load the module of the vendor)"),
        (
            "15b3:1021",
            "mlx5_core",
            IB,
            "mlx5_core is bound to it, but its RDMA module is not loaded (run modprobe mlx5_ib)",
        ),
    ],
)
def test_an_adapter_without_its_module_is_named_with_the_module_to_load(
    lacks: Callable[..., list[MissingDriver]], ids: str, driver: str, pci_class: str, reason: str
) -> None:
    """Other plugins do not see such an adapter, and the node has no resource and no reason."""
    (found,) = lacks(ids, driver, pci_class)
    assert (found.subject, found.reason) == (f"{AT} ({ids})", reason)
    assert (found.attributes["vendor"], found.attributes["isVf"]) == (ids[:4], False)
    assert found.attributes.get("linkLayer") == ("infiniband" if pci_class == IB else None)


@pytest.mark.parametrize(
    ("ids", "driver", "files"),
    [
        ("15b3:1021", "vfio-pci", {}),
        ("15b3:1021", "", {"driver_override": "vfio-pci"}),
        ("8086:1572", "", {}),
    ],
    ids=["given to vfio-pci", "reserved for vfio-pci", "no RDMA adapter"],
)
def test_a_deliberately_unbound_card_is_not_reported(
    lacks: Callable[..., list[MissingDriver]], ids: str, driver: str, files: dict[str, str]
) -> None:
    assert lacks(ids, driver, ETHERNET, **files) == []


def test_an_adapter_whose_rdma_device_is_in_a_pod_lacks_no_driver(
    lacks: Callable[..., list[MissingDriver]], tree: Tree
) -> None:
    """RoCE may be switched off, or the device be in a bond or in a pod: the module is loaded all the same."""
    tree.file("/sys/module/mlx5_ib/initstate", "live")
    assert lacks("15b3:1021", "mlx5_core", ETHERNET) == []


def test_a_driver_that_serves_another_adapter_has_its_rdma_module(
    looking: BackendFixture[Rdma], tmp_path: Path
) -> None:
    """A module that is built into the kernel may have no directory."""
    tree = connectx.connectx5_roce(tmp_path)
    shutil.rmtree(tmp_path / "sys/module/mlx5_ib")
    tree.function(AT, "mlx5_core", "15b3:1017", below="0000:5d:00.0", pci_class=ETHERNET)
    assert missing_drivers(looking(tree)) == []


def test_a_virtual_function_may_be_without_a_driver(looking: BackendFixture[Rdma], tree: Tree) -> None:
    tree.file("/sys/module/mlx5_ib/initstate", "live")
    physical = tree.function(AT, "15b3:1021", "mlx5_core")
    tree.virtual_functions(physical, tree.function("0000:5e:00.1", "15b3:101e"))
    assert missing_drivers(looking(tree)) == []


def test_binding_a_driver_clears_the_report(looking: BackendFixture[Rdma], tree: Tree) -> None:
    place = tree.function(AT, "15b3:1021")
    backend = looking(tree)
    assert len(missing_drivers(backend)) == 1
    tree.file("/sys/module/mlx5_ib/initstate", "live")
    tree.function(AT, "15b3:1021", "mlx5_core")
    backend.notice(Event("pci", "bind", place))
    assert missing_drivers(backend) == []
