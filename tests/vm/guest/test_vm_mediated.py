"""Mediated devices of the kernel's sample drivers, whose parents are on no bus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab.functions import is_viable
from lab.kernel import run, unload
from lab.node import Node

FIRST, SECOND, OTHER = (f"83b8f4f2-509f-382f-3c1e-e6bfe0fa100{number}" for number in range(3))


@dataclass(frozen=True)
class Sample:
    """A sample driver: the directories of two of its types, and the names of these types as attributes."""

    driver: str
    kind: str
    name: str
    other_kind: str
    other_name: str

    @property
    def parent(self) -> Path:
        return Path(f"/sys/devices/virtual/{self.driver}/{self.driver}")

    @property
    def resource(self) -> str:
        return f"example.com/{self.driver}"

    def create(self, uuid: str, kind: str) -> None:
        (self.parent / "mdev_supported_types" / kind / "create").write_text(uuid)

    def remove(self, uuid: str) -> None:
        (self.parent / uuid / "remove").write_text("1")


MTTY = Sample("mtty", "mtty-2", "Dual_port_serial", "mtty-1", "Single_port_serial")
MDPY = Sample("mdpy", "mdpy-vga", "mdpy-vga", "mdpy-xga", "mdpy-xga")
"""A display, the kind of device that virtual machines get of GPUs."""


@pytest.fixture(params=[MTTY, MDPY], ids=lambda sample: sample.driver)
def sample(request: pytest.FixtureRequest) -> Iterator[Sample]:
    """A driver, without devices."""
    found: Sample = request.param
    run("modprobe", found.driver)
    yield found
    for uuid in (FIRST, SECOND, OTHER):
        with suppress(FileNotFoundError):
            found.remove(uuid)
    unload(found.driver)


async def test_devices_are_followed_and_given_with_their_groups(sample: Sample, node: Node) -> None:
    resource = sample.resource
    where = {"kind": "mdev", "mdevType": sample.name}
    await node.serve({"name": resource, "backend": "sriov", "where": where, "whenEmpty": "register"})
    await node.shows(resource, healthy=0)
    sample.create(OTHER, sample.other_kind)
    sample.create(FIRST, sample.kind)
    await node.shows(resource, healthy=1)
    sample.create(SECOND, sample.kind)
    await node.shows(resource, healthy=2)
    allocation = await node.admit("pod", resource, 2)
    variable = f"MDEV_PCI_RESOURCE_EXAMPLE_COM_{sample.driver.upper()}"
    assert dict(allocation.response.envs) == {variable: f"{FIRST},{SECOND}"}
    groups = [
        f"/dev/vfio/{(sample.parent / uuid / 'iommu_group').resolve().name}" for uuid in (FIRST, SECOND)
    ]
    given = {one.host_path: one.permissions for one in allocation.response.devices}
    assert given == dict.fromkeys(("/dev/vfio/vfio", *groups), "mrw")
    assert all(is_viable(group) for group in groups)
    found = await node.look()
    assert found[OTHER].attributes["mdevType"] == sample.other_name
    node.kubelet.release("pod")
    sample.remove(SECOND)
    await node.shows(resource, healthy=1, total=2)  # a pod had it: it stays, and is not handed out
    assert node.kubelet.healthy(resource) == {FIRST}
