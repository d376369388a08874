"""The reader of sysfs: what it makes of links, numbers and what is not there; it never raises or waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from devhost_testing.trees import Tree

from devhost.backend.sysfs import (
    SYSFS_LIMIT,
    Sysfs,
    function_path,
    is_live,
    natural,
    pci_path,
    pcie_path,
    prefix_of,
    read_line,
    read_lines,
)

PORT = "pci0000:3a/0000:3a:00.0"
CARD = f"{PORT}/0000:3b:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.pci(PORT, driver="pcieport", numa_node=1)
    tree.pci(CARD, driver="mlx5_core", vendor="0x15B3", device="0x1021", iommu_group=17)
    tree.device(f"{CARD}/infiniband/mlx5_0", "infiniband", files={"node_type": "1: CA"}, NAME="mlx5_0")
    return tree


@pytest.fixture
def sysfs(tree: Tree) -> Sysfs:
    return Sysfs(tree.root)


def test_the_real_root_needs_no_prefix():
    assert prefix_of(Path("/")) == ""
    assert Sysfs(Path("/")).prefix == ""


def test_a_recorded_tree_is_distinguished_from_a_mounted_sysfs(tree, tmp_path):
    assert is_live(Path("/"))
    (tmp_path / "host").mkdir()
    (tmp_path / "host/sys").symlink_to("/sys")
    assert is_live(tmp_path / "host")
    assert not is_live(tree.root)
    assert not is_live(tmp_path / "absent")


def test_a_root_behind_a_link_is_resolved_once(tree, tmp_path):
    (tmp_path / "link").symlink_to(tree.root)
    assert Sysfs(tmp_path / "link").prefix == os.path.realpath(tree.root)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"4: ACTIVE\n", "4: ACTIVE"),
        (b"  two\nlines\n", "two\nlines"),
        (b"", ""),
        (b"\xff\xfe", ""),
        (b"a\0b", ""),
        (b"x" * SYSFS_LIMIT, "x" * SYSFS_LIMIT),
        (b"x" * (SYSFS_LIMIT + 1), ""),
    ],
)
def test_a_text_is_a_page_of_printable_characters_or_nothing(content, text, tmp_path):
    (tmp_path / "file").write_bytes(content)
    assert read_line(str(tmp_path / "file")) == text


def test_an_unreadable_file_is_empty(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "loop", "with\0nul"):
        assert read_line(str(path)) == ""
        assert read_lines(str(path)) == []


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert read_line(str(tmp_path / "pipe")) == ""


@pytest.mark.parametrize(
    ("text", "number"), [("17", 17), ("0x11", 17), ("-1", -1), ("", None), ("many", None), ("9" * 5000, None)]
)
def test_numbers_are_decimal_or_hexadecimal(text, number, tree, sysfs):
    tree.file("/sys/number", text)
    assert sysfs.integer("/sys/number") == number


def test_a_uevent_is_a_mapping(sysfs):
    assert sysfs.uevent(f"/sys/devices/{CARD}")["PCI_SLOT_NAME"] == "0000:3b:00.0"
    assert sysfs.uevent("/sys/absent") == {}


def test_a_text_from_hardware_replaces_no_line_of_the_driver_core(tree, sysfs):
    path = tree.device("virtual/misc/odd", "misc")
    tree.file(f"{path}/uevent", "DRIVER=mlx5_core\nMODALIAS=x\nDRIVER=evil")
    assert sysfs.uevent(path) == {"DRIVER": "mlx5_core", "MODALIAS": "x"}


@pytest.mark.parametrize(("text", "node"), [("0", 0), ("-1", None), ("65536", None), ("", None)])
def test_a_numa_node_that_no_kernel_has_counts_as_none(tree, sysfs, text, node):
    path = tree.pci("pci0000:00/0000:00:02.0")
    tree.file(f"{path}/numa_node", text)
    assert sysfs.numa_node(path) == node


def test_names_are_in_natural_order(tree, sysfs):
    for name in ("mlx5_10", "mlx5_9", "mlx5_1"):
        tree.file(f"/sys/x/{name}")
    assert sysfs.names("/sys/x") == ["mlx5_1", "mlx5_9", "mlx5_10"]
    assert sysfs.listed("/sys/x") == sysfs.names("/sys/x")
    assert sysfs.names("/sys/absent") == sysfs.listed("/sys/absent") == []
    assert sorted(["a", "a1b", "a1", "a02"], key=natural) == ["a", "a1", "a1b", "a02"]


def test_only_a_missing_directory_is_listed_as_empty(sysfs, monkeypatch):
    def refused(path: str) -> object:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refused)
    monkeypatch.setattr(os, "scandir", refused)
    assert sysfs.names("/sys/class") == []
    with pytest.raises(PermissionError):
        sysfs.listed("/sys/class")
    with pytest.raises(PermissionError):
        sysfs.identities("/sys/class")


def test_a_recreated_entry_has_another_identity(tree, sysfs):
    tree.file("/sys/x/one")
    tree.file("/sys/x/two")
    before = sysfs.identities("/sys/x")
    assert before == sysfs.identities("/sys/x")
    (tree.root / "sys/x/one").rename(tree.root / "sys/x/old")
    tree.file("/sys/x/one")
    after = sysfs.identities("/sys/x")
    assert after["two"] == before["two"]
    assert after["one"] != before["one"]
    assert sysfs.identities("/sys/absent") == sysfs.identities("/sys/x/two") == {}


def test_a_link_in_a_class_or_bus_leads_to_the_device(sysfs):
    card = f"/sys/devices/{CARD}"
    assert sysfs.device("/sys/class/infiniband/mlx5_0") == f"{card}/infiniband/mlx5_0"
    assert sysfs.device("/sys/bus/pci/devices/0000:3b:00.0") == card
    assert sysfs.device(f"{card}/infiniband/mlx5_0") == f"{card}/infiniband/mlx5_0"


def test_a_link_through_a_link_is_followed_as_the_kernel_does(tree, sysfs):
    tree.link(f"/sys/devices/{CARD}/infiniband/mlx5_0/device", f"/sys/devices/{CARD}")
    assert sysfs.device("/sys/class/infiniband/mlx5_0/device") == f"/sys/devices/{CARD}"
    tree.link("/sys/class/net/through", "/sys/class/infiniband/mlx5_0")
    assert sysfs.device("/sys/class/net/through") == f"/sys/devices/{CARD}/infiniband/mlx5_0"


def test_a_broken_link_or_one_out_of_the_tree_is_ignored(tree, sysfs):
    listing = tree.root / "sys/class/infiniband"
    (listing / "loop").symlink_to("loop")
    (listing / "gone").symlink_to("../../devices/virtual/infiniband/gone")
    (listing / "out").symlink_to("/sys/devices/virtual")
    (listing / "up").symlink_to("../../../../../../../../etc")
    (listing / "plain").mkdir()
    for name in ("loop", "gone", "out", "up", "plain", "absent"):
        assert sysfs.device(f"/sys/class/infiniband/{name}") == ""


def test_the_last_name_of_a_link_and_the_link_itself(sysfs):
    assert sysfs.target(f"/sys/devices/{CARD}/driver") == "mlx5_core"
    assert sysfs.link(f"/sys/devices/{CARD}/driver").endswith("bus/pci/drivers/mlx5_core")
    assert sysfs.target("/sys/absent") == sysfs.link("/sys/absent") == ""


def test_a_pci_function_is_found_from_any_device_below_it(sysfs):
    function = sysfs.pci(f"/sys/devices/{CARD}/infiniband/mlx5_0")
    assert function is not None
    assert function == sysfs.pci(f"/sys/devices/{CARD}")
    assert (function.address, function.path) == ("0000:3b:00.0", f"/sys/devices/{CARD}")
    assert (function.vendor, function.device, function.driver) == ("15b3", "1021", "mlx5_core")
    assert (function.iommu_group, function.is_virtual) == ("17", False)
    assert function.numa_node == 1, "it says -1 itself, and hangs on a port that is near node 1"
    assert sysfs.pci("/sys/devices/virtual/misc/fuse") is None


def test_the_path_of_a_pci_function_ends_at_the_last_address():
    assert pci_path(f"/sys/devices/{CARD}/mlx5_core.sf.4/infiniband/mlx5_2") == f"/sys/devices/{CARD}"
    assert pci_path("/sys/devices/virtual/infiniband/rxe0") == ""


def test_the_innermost_function_that_has_a_device_is_a_pci_or_a_scalable_one():
    card = f"/sys/devices/{CARD}"
    assert function_path(f"{card}/net/eth0") == function_path(card) == card
    assert function_path(f"{card}/mlx5_core.sf.4/infiniband/mlx5_2") == f"{card}/mlx5_core.sf.4"
    assert function_path("/sys/devices/virtual/infiniband/rxe0") == ""
    assert pcie_path(f"/sys/devices/{CARD}/net/ib0") == ("0000:3a:00.0", "0000:3b:00.0")
    assert pcie_path("/sys/devices/pci10000:e0/10000:e0:06.0/10000:e1:00.0") == (
        "10000:e0:06.0",
        "10000:e1:00.0",
    )


def test_a_virtual_function_names_the_physical_one(tree, sysfs):
    virtual = f"{PORT}/0000:3b:00.2"
    tree.pci(virtual)
    tree.link(f"/sys/devices/{virtual}/physfn", f"/sys/devices/{CARD}")
    function = sysfs.pci(f"/sys/devices/{virtual}")
    assert function is not None
    assert function.physical_function == "0000:3b:00.0"
    assert function.is_virtual


def test_a_machine_without_numa_has_no_node(tree, sysfs):
    tree.pci("pci0000:00/0000:00:02.0")
    assert sysfs.numa_node("/sys/devices/pci0000:00/0000:00:02.0") is None
    assert sysfs.numa_node("/sys/devices/virtual/misc/fuse") is None


def test_a_function_whose_configuration_space_reads_as_ones_is_dead(tree, sysfs):
    path = f"/sys/devices/{CARD}"
    assert not sysfs.is_dead(path), "there is none"
    config = tree.root / path[1:] / "config"
    for header, dead in (
        (b"\xff" * 256, True),
        (b"\xff" * 64, True),
        (b"\xff" * 63, False),
        (b"\xff" * 4 + bytes(60), False),  # a virtual function
        (b"\x86\x80" * 32, False),
    ):
        config.write_bytes(header)
        assert sysfs.is_dead(path) is dead, header
    config.write_bytes(b"\xff" * 64)
    for state, dead in (("D0", True), ("D3hot", True), ("D3cold", False)):
        tree.file(f"{path}/power_state", state)
        assert sysfs.is_dead(path) is dead, state


@pytest.mark.parametrize("name", ["", "../etc/shadow", "a/../../b", "/etc/shadow", "a b"])
def test_a_node_has_the_name_that_the_kernel_gives_it_and_no_other(tree, sysfs, name):
    path = tree.device("virtual/misc/odd", "misc")
    tree.file(f"{path}/uevent", "MAJOR=10\nDEVNAME=vfio/noiommu-3")
    assert sysfs.node(path) == sysfs.node(path, "/dev/odd") == "/dev/vfio/noiommu-3"
    tree.file(f"{path}/uevent", f"MAJOR=10\nDEVNAME={name}")
    assert (sysfs.node(path), sysfs.node(path, "/dev/odd")) == ("", "/dev/odd")
