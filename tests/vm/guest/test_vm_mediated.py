"""Mediated devices of the kernel's sample driver mtty, whose parent is on no bus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from lab.functions import is_viable
from lab.kernel import run, unload
from lab.node import Node

SERIAL = "example.com/serial"
ENTRY = {
    "name": SERIAL,
    "backend": "sriov",
    "where": {"kind": "mdev", "mdevType": "Dual_port_serial"},
    "whenEmpty": "register",
}
PARENT = Path("/sys/devices/virtual/mtty/mtty")
FIRST, SECOND, OTHER = (f"83b8f4f2-509f-382f-3c1e-e6bfe0fa100{number}" for number in range(3))


def create(uuid: str, kind: str = "mtty-2") -> None:
    (PARENT / "mdev_supported_types" / kind / "create").write_text(uuid)


def remove(uuid: str) -> None:
    (PARENT / uuid / "remove").write_text("1")


@pytest.fixture
def mtty() -> Iterator[None]:
    """The driver, without devices."""
    run("modprobe", "mtty")
    yield
    for uuid in (FIRST, SECOND, OTHER):
        with suppress(FileNotFoundError):
            remove(uuid)
    unload("mtty")


async def test_devices_are_followed_and_given_with_their_groups(mtty: None, node: Node) -> None:
    await node.serve(ENTRY)
    await node.shows(SERIAL, healthy=0)
    create(OTHER, "mtty-1")
    create(FIRST)
    await node.shows(SERIAL, healthy=1)
    create(SECOND)
    await node.shows(SERIAL, healthy=2)
    allocation = await node.admit("pod", SERIAL, 2)
    assert dict(allocation.response.envs) == {"MDEV_PCI_RESOURCE_EXAMPLE_COM_SERIAL": f"{FIRST},{SECOND}"}
    groups = [f"/dev/vfio/{(PARENT / uuid / 'iommu_group').resolve().name}" for uuid in (FIRST, SECOND)]
    given = {one.host_path: one.permissions for one in allocation.response.devices}
    assert given == dict.fromkeys(("/dev/vfio/vfio", *groups), "mrw")
    assert all(is_viable(group) for group in groups)
    found = await node.look()
    assert found[OTHER].attributes["mdevType"] == "Single_port_serial"
    node.kubelet.release("pod")
    remove(SECOND)
    await node.shows(SERIAL, healthy=1, total=2)  # a pod had it: it stays, and is not handed out
    assert node.kubelet.healthy(SERIAL) == {FIRST}
