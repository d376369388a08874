"""The nodes of RDMA devices below a function, each with what it is for and what it belongs to."""

from __future__ import annotations

from pathlib import Path

from devhost.backend.infiniband import Node, Role, nodes_below, rdma_cm_node
from devhost.backend.sysfs import Sysfs

FUNCTION = "/sys/devices/pci0000:00/0000:01:00.0"


def entry(root: Path, path: str, name: str, ib_device: str | None = None) -> None:
    directory = root / path.lstrip("/")
    directory.mkdir(parents=True)
    (directory / "uevent").write_text(f"DEVNAME=infiniband/{name}\n")
    if ib_device is not None:
        (directory / "ibdev").write_text(f"{ib_device}\n")


def test_each_node_has_its_role_and_its_device(tmp_path: Path) -> None:
    entry(tmp_path, f"{FUNCTION}/infiniband_verbs/uverbs3", "uverbs3", "mlx5_0")
    entry(tmp_path, f"{FUNCTION}/infiniband_mad/umad1", "umad1", "mlx5_0")
    entry(tmp_path, f"{FUNCTION}/infiniband_mad/issm1", "issm1", "no/name")
    entry(tmp_path, f"{FUNCTION}/infiniband_mad/abi_version", "odd")
    found = list(nodes_below(Sysfs(tmp_path), FUNCTION))
    place = f"{FUNCTION}/infiniband_"
    assert sorted(found, key=lambda node: node.path) == [
        Node(Role.ISSM, "/dev/infiniband/issm1", "", f"{place}mad/issm1"),
        Node(Role.UMAD, "/dev/infiniband/umad1", "mlx5_0", f"{place}mad/umad1"),
        Node(Role.UVERBS, "/dev/infiniband/uverbs3", "mlx5_0", f"{place}verbs/uverbs3"),
    ]


def test_a_function_without_rdma_has_no_nodes(tmp_path: Path) -> None:
    assert not list(nodes_below(Sysfs(tmp_path), FUNCTION))


def test_the_node_for_connections_exists_with_its_module(tmp_path: Path) -> None:
    assert rdma_cm_node(Sysfs(tmp_path)) is None
    entry(tmp_path, "/sys/class/misc/rdma_cm", "rdma_cm")
    assert rdma_cm_node(Sysfs(tmp_path)) == "/dev/infiniband/rdma_cm"
