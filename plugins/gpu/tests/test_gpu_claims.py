"""A card never serves two pods, also if other backends offer it."""

from __future__ import annotations

from pathlib import Path

import gpu_amd
import gpu_intel
import pytest
from devhost_sriov import Sriov
from devhost_testing.fixtures import BackendFixture
from devhost_testing.trees import Tree
from kit.plan import offered

from devhost.config import load
from devhost.discovery import catalog
from devhost.dra.slices import Offered, Pool
from devhost.planning.plan import Plan
from devhost.planning.planner import make_plan

GPU = "{name: example.com/gpu, backend: gpu, where: {vendor: intel}}"
FUNCTION = '{name: example.com/vf, backend: sriov, where: {pciClass: "03*", kind: vf}}'


def planned(looking: BackendFixture, root: Path, *entries: str, before: str = "") -> Plan:
    """The plan for a Flex with virtual functions, known to two backends."""
    gpu_intel.flex(root)
    file = root / "devhost.yaml"
    file.write_text(f"version: 1\n{before}\nresources:\n" + "".join(f"  - {entry}\n" for entry in entries))
    settings = load(file, catalog.load)
    with BackendFixture(Sriov) as other:
        functions = other(root).discover()
    return make_plan({"gpu": looking(root).discover(), "sriov": functions}, settings)


@pytest.mark.parametrize("first", ["gpu", "sriov"])
def test_a_virtual_function_goes_to_the_first_entry(
    looking: BackendFixture, tmp_path: Path, first: str
) -> None:
    entries = (GPU, FUNCTION) if first == "gpu" else (FUNCTION, GPU)
    plan = planned(looking, tmp_path, *entries)
    both = set(offered(plan, "example.com/gpu")) & set(offered(plan, "example.com/vf"))
    assert both == set()
    mine = {"0000:b4:00.1", "0000:b4:00.2"}
    assert mine <= set(offered(plan, "example.com/gpu" if first == "gpu" else "example.com/vf"))
    assert "0000:b4:00.3" in offered(plan, "example.com/vf"), "one for a virtual machine is never a GPU's"


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


COUNTED = "{name: example.com/gpu, backend: gpu, where: {vendor: intel}, serve: dra, dra: {counters: true}}"


def test_a_gpu_and_its_virtual_functions_are_published_with_shared_counters(
    looking: BackendFixture, tmp_path: Path
) -> None:
    """A scheduler can give the GPU, or some of its functions, and never both."""
    plan = planned(looking, tmp_path, COUNTED, before="dra: {driver: devhost.example.com}")
    offers = [
        Offered(one.device, one.device.health, counters=True)
        for one in plan.resources["example.com/gpu"].offers
    ]
    pool = Pool("devhost.example.com", "node", "example.com/gpu", "gpu")
    slices, left_out = pool.slices(offers)
    assert not left_out
    ((name, most),) = {one["name"]: one["counters"] for some in slices for one in some.counters}.items()
    ((counter, amount),) = most.items()
    taken = {
        device["attributes"]["id"]["string"]: {
            one["counterSet"]: one["counters"] for one in device.get("consumesCounters", ())
        }
        for some in slices
        for device in some.devices
    }
    one = {name: {counter: {"value": "1"}}}
    functions = dict.fromkeys(["0000:b4:00.1", "0000:b4:00.2", "0000:b4:00.4"], one)
    assert taken == {"0000:4d:00.0": {}, "0000:b4:00.0": {name: {counter: amount}}, **functions}
    assert int(amount["value"]) == 3


def test_without_counters_the_functions_are_offered_instead_of_the_gpu(
    looking: BackendFixture, tmp_path: Path
) -> None:
    found = offered(planned(looking, tmp_path, GPU), "example.com/gpu")
    assert found and "0000:b4:00.0" not in found


def test_a_gpu_for_a_virtual_machine_is_no_whole_of_its_functions(
    looking: BackendFixture, tmp_path: Path
) -> None:
    """With vfio-pci it is no GPU, with or without functions."""
    tree = gpu_intel.flex(tmp_path)
    (whole,) = (one for one in looking(tmp_path).discover() if one.id == "0000:b4:00.0")
    assert whole.divided
    tree.bind("/sys/bus/pci/devices/0000:b4:00.0", "vfio-pci")
    (whole,) = (one for one in looking(tmp_path).discover() if one.id == "0000:b4:00.0")
    assert whole.withheld and not whole.divided
