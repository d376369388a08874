"""A card never serves two pods, also if other backends offer it."""

from __future__ import annotations

from pathlib import Path

import gpu_amd
import gpu_intel
import pytest
from devhost_sriov import Sriov
from devhost_testing.fixtures import BackendFixture
from devhost_testing.trees import Tree

from devhost.config import load
from devhost.discovery import catalog
from devhost.planning.plan import Plan
from devhost.planning.planner import make_plan

GPU = "{name: example.com/gpu, backend: gpu, where: {vendor: intel}}"
FUNCTION = '{name: example.com/vf, backend: sriov, where: {pciClass: "03*", kind: vf}}'


def planned(looking: BackendFixture, root: Path, *entries: str) -> Plan:
    """The plan for a Flex with virtual functions, known to two backends."""
    gpu_intel.flex(root)
    file = root / "devhost.yaml"
    file.write_text("version: 1\nresources:\n" + "".join(f"  - {entry}\n" for entry in entries))
    settings = load(file, catalog.load)
    with BackendFixture(Sriov) as other:
        functions = other(root).discover()
    return make_plan({"gpu": looking(root).discover(), "sriov": functions}, settings)


def names(plan: Plan, resource: str) -> list[str]:
    return [offer.device.id for offer in plan.resources[resource].offers]


@pytest.mark.parametrize("first", ["gpu", "sriov"])
def test_a_virtual_function_goes_to_the_first_entry(
    looking: BackendFixture, tmp_path: Path, first: str
) -> None:
    entries = (GPU, FUNCTION) if first == "gpu" else (FUNCTION, GPU)
    plan = planned(looking, tmp_path, *entries)
    both = set(names(plan, "example.com/gpu")) & set(names(plan, "example.com/vf"))
    assert both == set()
    mine = {"0000:b4:00.1", "0000:b4:00.2"}
    assert mine <= set(names(plan, "example.com/gpu" if first == "gpu" else "example.com/vf"))
    assert "0000:b4:00.3" in names(plan, "example.com/vf"), "one for a virtual machine is never a GPU's"


def test_a_damaged_link_on_the_pci_bus_hides_no_other_card(looking: BackendFixture, tmp_path: Path) -> None:
    gpu_intel.flex(tmp_path)
    before = {device.id: device for device in looking(tmp_path).discover()}
    tree = Tree(tmp_path)
    for file, text in {"class": "0x030000", "vendor": "0x8086", "device": "0x56c0"}.items():
        tree.file(f"/sys/devices/pci0000:ff/damaged/{file}", text)
    tree.link("/sys/bus/pci/devices/0000:ff:00.0", "/sys/devices/pci0000:ff/damaged")
    backend = looking(tmp_path)
    after = {device.id: device for device in backend.discover()}
    assert {name: after[name] for name in before} == before
    backend.probe(list(after.values()))


def test_every_partition_has_separate_claims(looking: BackendFixture, tmp_path: Path) -> None:
    devices = looking(gpu_amd.mi300x(tmp_path, "CPX", "NPS4")).discover()
    claims = [claim for device in devices for claim in device.claims]
    assert len(claims) == len(set(claims)) == 64 * 3
    wholes = {whole for device in devices for whole in device.part_of}
    assert len(wholes) == 8
    assert not wholes & set(claims)
