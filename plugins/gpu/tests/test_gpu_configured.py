"""Configurations on modelled machines: what selects what, how it is named, and which entry wins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gpu_amd
import gpu_intel
import gpu_others
import pytest
from devhost_testing.fixtures import BackendFixture
from gpu_tree import GpuTree

from devhost.config import load
from devhost.discovery import catalog
from devhost.planning.plan import Plan
from devhost.planning.planner import make_plan

Planned = Callable[..., Plan]


@pytest.fixture
def planned(looking: BackendFixture, tmp_path: Path) -> Planned:
    """Makes the plan of a machine for entries of ``resources`` without their backend."""

    def plan(machine: Callable[[Path], GpuTree], *entries: str) -> Plan:
        file = tmp_path / "devhost.yaml"
        lines = [f"  - {{backend: gpu, {entry}}}" for entry in entries]
        file.write_text("\n".join(["version: 1", "resources:", *lines]))
        settings = load(file, catalog.load)
        root = tmp_path / "root"
        root.mkdir()
        backend = looking(machine(root), settings.backends["gpu"], tuple(settings.wanted("gpu")))
        return make_plan({"gpu": backend.discover()}, settings)

    return plan


def offered(plan: Plan) -> dict[str, int]:
    return {name: len(resource.offers) for name, resource in plan.resources.items()}


def cpx(root: Path) -> GpuTree:
    return gpu_amd.mi300x(root, "CPX", "NPS4", count=2)


@pytest.mark.parametrize(
    ("machine", "where", "count"),
    [
        (gpu_amd.mi210, '{index: "0-1"}', 2),
        (gpu_amd.mi210, "{vendor: amd, not: {index: 0}}", 3),
        (gpu_amd.mi210, '{uuid: ["1901f3d2b2a40000", "1901f3d2b2a40003"]}', 2),
        (gpu_amd.mi210, '{pciBusID: "0000:C3:00.0"}', 1),
        (gpu_amd.mi210, '{memory: "40000-"}', 4),
        (gpu_amd.mi210, '{memory: "70000-"}', 0),
        (gpu_amd.mi210, '{product: "Instinct MI2*", numaNode: 1}', 2),
        (gpu_amd.mi210, "{architecture: gfx90a, kind: gpu}", 4),
        (cpx, '{parent: "0000:1c:00.0"}', 8),
        (cpx, "{kind: partition, profile: cpx_nps4, numaNode: 0}", 16),
        (gpu_intel.flex, "{vendor: intel, kind: vf}", 3),
        (gpu_intel.flex, '{deviceID: ["56C0"], not: {kind: vf}}', 1),
        (gpu_intel.arc, '{vendorID: "8086", cardNode: "*", driver: xe}', 1),
        (gpu_others.virtual_machine, '{vendor: other, renderNode: "*"}', 2),
        (gpu_others.virtual_machine, "{driver: bochs-drm}", 1),
    ],
)
def test_cards_are_selected_by_any_attribute(
    planned: Planned, machine: Callable[[Path], GpuTree], where: str, count: int
) -> None:
    assert offered(planned(machine, f"name: r/0, where: {where}")) == ({"r/0": count} if count else {})


@pytest.mark.parametrize(
    ("machine", "entry", "expected"),
    [
        (
            lambda root: gpu_amd.mi300x(root, "DPX", "NPS1", count=1),
            'name: "amd.com/{profile}", where: {vendor: amd, profile: "*"}',
            {"amd.com/dpx_nps1": 2},
        ),
        (
            gpu_amd.mi300x,
            'name: "amd.com/{product}", where: {product: "*"}',
            {"amd.com/AMD-Instinct-MI300X-OAM": 8},
        ),
        (
            gpu_intel.arc,
            'name: "gpu.intel.com/{driver}", where: {vendor: intel}',
            {"gpu.intel.com/i915": 1, "gpu.intel.com/xe": 1},
        ),
    ],
)
def test_names_are_made_from_modes_models_and_drivers(
    planned: Planned, machine: Callable[[Path], GpuTree], entry: str, expected: dict[str, int]
) -> None:
    assert offered(planned(machine, entry)) == expected


def test_the_number_of_replicas_follows_the_attributes_of_cards(planned: Planned) -> None:
    plan = planned(
        gpu_amd.mi210,
        "name: amd.com/gpu.shared, where: {vendor: amd}, share: {replicas: 2, overrides: "
        "[{where: {numaNode: 1}, replicas: 10}]}",
    )
    replicas = [offer.replicas for offer in plan.resources["amd.com/gpu.shared"].offers]
    assert sorted(replicas) == [2, 2, 10, 10]
