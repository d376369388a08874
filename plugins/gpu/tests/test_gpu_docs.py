"""The documentation and the shipped configurations agree with the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import gpu_amd
import gpu_intel
import gpu_others
import pytest
import yaml
from devhost_gpu.attributes import KINDS
from devhost_gpu.backend import Gpu
from devhost_gpu.discovery import VENDORS
from devhost_gpu.options import GpuResourceOptions
from devhost_testing.fixtures import BackendFixture
from gpu_tree import GpuTree

from devhost.config import load
from devhost.discovery import catalog
from devhost.dra.answers import read_claim
from devhost.dra.claim_devices import options_for
from devhost.planning.planner import make_plan
from devhost.planning.settings import DraTerms, ResourceSettings, Settings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/backends/gpu.md").read_text()
DRA = ROOT / "docs/dra.md"
EXAMPLE = ROOT / "config/examples/gpu.yaml"
OVERLAYS = [ROOT / f"deploy/kustomize/overlays/{name}/devhost.yaml" for name in ("gpu", "full")]
PROFILES = [ROOT / f"deploy/helm/devhost/profiles/{name}.yaml" for name in ("gpu", "full")]


def test_the_claim_in_the_docs_sets_an_option_of_gpus() -> None:
    (text,) = re.findall(r"(?ms)claim-options.yaml -->\n```yaml fragment\n(.*?)^```$", DRA.read_text())
    devices = yaml.safe_load(text)["spec"]["devices"]
    (config,) = ({**one, "source": "FromClaim"} for one in devices["config"])
    allocated = {"metadata": {"uid": "u"}, "status": {"allocation": {"devices": {"config": [config]}}}}
    claim = read_claim(allocated, config["opaque"]["driver"])
    entry = ResourceSettings(0, "nvidia.com/gpu", "gpu", dra=DraTerms(claim_options=("timeSlice",)))
    found = options_for("gpu", claim.config, GpuResourceOptions(), Gpu, entry, entry.name)
    assert found == GpuResourceOptions(time_slice="short").named(entry.name)


@pytest.mark.parametrize("word", [*VENDORS, *KINDS])
def test_the_page_names_each_vendor_and_kind(word: str) -> None:
    assert f"`{word}`" in PAGE


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (gpu_amd.mi210, {"amd.com/gpu": 4}),
        (gpu_amd.mi300x, {"amd.com/gpu": 8}),
        (lambda root: gpu_amd.mi300x(root, "CPX", "NPS4"), {"amd.com/gpu": 64}),
        (gpu_intel.arc, {"gpu.intel.com/i915": 1, "gpu.intel.com/xe": 1}),
        (gpu_intel.flex, {"gpu.intel.com/i915": 3}),
        (gpu_intel.max1550, {"gpu.intel.com/xe": 4}),
        (gpu_others.virtual_machine, {}),
    ],
)
def test_the_shipped_configuration_offers_the_devices_of_the_machine(
    looking: BackendFixture, tmp_path: Path, machine: Callable[[Path], GpuTree], expected: dict[str, int]
) -> None:
    assert EXAMPLE.read_text().startswith("# ")
    assert offered(looking, machine(tmp_path), load(EXAMPLE, catalog.load)) == expected


@pytest.mark.parametrize(
    "file", [EXAMPLE, *OVERLAYS, *PROFILES], ids=lambda file: f"{file.parts[-2]}/{file.name}"
)
def test_partitions_are_plain_amd_gpus_in_every_file_that_is_shipped(
    looking: BackendFixture, tmp_path: Path, file: Path
) -> None:
    """ROCm's plugin names them so unless it is started with ``-resource_naming_strategy mixed``."""
    text = file.read_text()
    if file in PROFILES:
        text = yaml.safe_dump(yaml.safe_load(text)["config"])
    config = tmp_path / "devhost.yaml"
    config.write_text(text)
    machine = gpu_amd.mi300x(tmp_path / "root", "CPX", "NPS1")
    assert offered(looking, machine, load(config, catalog.load)) == {"amd.com/gpu": 64}


def test_the_example_keeps_the_names_by_partition_mode_as_a_comment(
    looking: BackendFixture, tmp_path: Path
) -> None:
    """What the comment gives is what ROCm's plugin calls them with ``-resource_naming_strategy mixed``."""
    text = EXAMPLE.read_text()
    mixed = "".join(line.replace("# ", "", 1) for line in text.splitlines(True) if line.startswith("  # "))
    config = tmp_path / "devhost.yaml"
    config.write_text("version: 1\nresources:\n" + mixed.partition("\n")[2])
    machine = gpu_amd.mi300x(tmp_path / "root", "CPX", "NPS1")
    assert offered(looking, machine, load(config, catalog.load)) == {"amd.com/cpx_nps1": 64}


def offered(looking: BackendFixture, machine: GpuTree, settings: Settings) -> dict[str, int]:
    """How many devices each resource of backend gpu has on a machine."""
    backend = looking(machine, settings.backends["gpu"], tuple(settings.wanted("gpu")))
    plan = make_plan({"gpu": backend.discover()}, settings)
    return {name: len(resource.offers) for name, resource in plan.resources.items()}
