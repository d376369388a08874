"""Files of sysfs that the configuration names: attributes of functions, and names of resources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from devhost_testing.fixtures import by_id
from devhost_testing.node import Node
from sriov_tree import SriovTree

from devhost.backend import Event

PF, VF = "0000:6b:00.0", "0000:6b:01.0"
SERVICES = "pf.sysattr.qat/cfg_services"
ENTRY = """
resources:
- name: "qat.intel.com/{pf.sysattr.qat/cfg_services}"
  nameMap: {"sym;asym": cy, "asym;sym": cy}
  backend: sriov
  where: {kind: vf}
"""


def accelerator(root: Path, address: str = PF, virtual: str = VF, group: int = 60) -> tuple[SriovTree, str]:
    """An accelerator with one virtual function, and the directory of the physical one."""
    tree = SriovTree(root)
    path = tree.function(address, "8086:4940", "4xxx", pci_class="0x0b4000", total=16)
    tree.vfio(tree.virtual(path, virtual, "8086:4941", "vfio-pci", group=group), cdev=False)
    return tree, f"/sys/devices/{path}"


def attributes(backend: Any, device: str = VF) -> dict[str, Any]:
    return {name: value for name, value in by_id(backend)[device].attributes.items() if "sysattr" in name}


def test_only_the_files_that_the_configuration_names_are_attributes(looking: Any, tmp_path: Path) -> None:
    tree, path = accelerator(tmp_path)
    tree.file(f"{path}/qat/cfg_services", "sym;asym")
    tree.file(f"{path}/qat/state", "up")
    assert attributes(looking(tmp_path)) == {}
    backend = looking(tmp_path, wanted=(SERVICES, "sysattr.numa_node", "pf.sysattr.absent"))
    assert attributes(backend) == {SERVICES: "sym;asym", "sysattr.numa_node": "0"}
    assert attributes(backend, PF) == {"sysattr.numa_node": "0"}


def test_a_file_that_is_named_later_is_read_then(looking: Any, tmp_path: Path) -> None:
    tree, path = accelerator(tmp_path)
    tree.file(f"{path}/qat/state", "up")
    backend = looking(tmp_path, wanted=())
    assert attributes(backend) == {}
    backend.context.wanted = ("pf.sysattr.qat/state",)
    backend.notice(
        Event("usb", "add", "/sys/devices/platform/usb1")
    )  # only what an event names is read again
    assert attributes(backend) == {"pf.sysattr.qat/state": "up"}
    backend.context.wanted = ()
    assert attributes(backend) == {}


def test_a_file_that_changes_is_read_again(looking: Any, tmp_path: Path) -> None:
    tree, path = accelerator(tmp_path)
    tree.file(f"{path}/qat/cfg_services", "dc")
    backend = looking(tmp_path, wanted=(SERVICES,))
    assert attributes(backend) == {SERVICES: "dc"}
    tree.file(f"{path}/qat/cfg_services", "sym")
    assert attributes(backend) == {SERVICES: "sym"}


@pytest.mark.parametrize("content", ["a\x1b[31mb", "a\0b", "x" * 5000, "", "\udcff"])
def test_text_that_is_not_plain_or_too_long_is_no_attribute(
    looking: Any, tmp_path: Path, content: str
) -> None:
    _, path = accelerator(tmp_path)
    place = tmp_path / path.removeprefix("/") / "qat"
    place.mkdir()
    (place / "cfg_services").write_bytes(content.encode(errors="surrogateescape"))
    assert attributes(looking(tmp_path, wanted=(SERVICES,))) == {}


@pytest.mark.parametrize(
    "name", ["../../../../etc/secret", "config", "sriov_numvfs", "qat/../driver_override"]
)
def test_files_elsewhere_and_those_that_block_or_act_are_not_read(
    looking: Any, tmp_path: Path, name: str
) -> None:
    tree, path = accelerator(tmp_path)
    tree.file("/etc/secret", "secret")
    tree.file(f"{path}/config", "binary")
    tree.file(f"{path}/driver_override", "4xxx")
    tree.file(f"{path}/qat/state", "up")
    assert attributes(looking(tmp_path, wanted=(f"pf.sysattr.{name}",))) == {}


async def test_values_in_names_are_replaced_and_others_made_legal(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        services = ("sym;asym", "asym;sym", "dc", "asym;dc")
        for n, text in enumerate(services):
            tree, path = accelerator(node.root, f"0000:{n + 6}b:00.0", f"0000:{n + 6}b:01.0", 60 + n)
            tree.file(f"{path}/qat/cfg_services", text)
        node.configure(ENTRY)
        async with node.served():
            names = {"qat.intel.com/cy": 2, "qat.intel.com/dc": 1, "qat.intel.com/asym-dc": 1}
            await node.offers(names, only=True)
            tree.file(f"{path}/qat/cfg_services", "sym")
            node.look()
            await node.offers({"qat.intel.com/cy": 2, "qat.intel.com/sym": 1, "qat.intel.com/asym-dc": 0})
