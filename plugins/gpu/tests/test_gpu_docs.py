"""The page, the package's own table and the ready configuration say what is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gpu_amd
import gpu_intel
import gpu_others
import pytest
from devhost_gpu import card
from gpu_tree import GpuTree

from devhost import catalog
from devhost.config import load
from devhost.plan import make_plan
from devhost.testing.looking import Looking

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/backends/gpu.md").read_text()


@pytest.mark.parametrize(
    "word", [card.NVIDIA, card.AMD, card.INTEL, card.OTHER, card.GPU, card.MIG, card.PARTITION, card.VF]
)
def test_the_page_names_each_vendor_and_kind(word: str) -> None:
    assert f"`{word}`" in PAGE


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (gpu_amd.mi210, {"amd.com/gpu": 4}),
        (gpu_amd.mi300x, {"amd.com/gpu": 8}),
        (lambda root: gpu_amd.mi300x(root, "CPX", "NPS4"), {"amd.com/cpx_nps4": 64}),
        (gpu_intel.arc, {"gpu.intel.com/i915": 1, "gpu.intel.com/xe": 1}),
        (gpu_intel.flex, {"gpu.intel.com/i915": 3}),
        (gpu_intel.max1550, {"gpu.intel.com/xe": 4}),
        (gpu_others.virtual_machine, {}),
    ],
)
def test_the_ready_configuration_offers_what_there_is(
    looking: Looking, tmp_path: Path, machine: Callable[[Path], GpuTree], expected: dict[str, int]
) -> None:
    example = ROOT / "config/examples/gpu.yaml"
    assert example.read_text().startswith("# ")
    settings = load(example, catalog.load)
    backend = looking(machine(tmp_path), settings.backends["gpu"], tuple(settings.wanted("gpu")))
    plan = make_plan({"gpu": backend.discover()}, settings)
    assert {name: len(resource.offers) for name, resource in plan.resources.items()} == expected
