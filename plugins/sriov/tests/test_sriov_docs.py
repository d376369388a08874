"""The page and the example configuration match the code."""

from __future__ import annotations

from pathlib import Path

import pytest
import sriov_network as network
import sriov_others as others
from devhost_sriov.attributes import LINK_TYPES, OPERATIONAL_STATES
from devhost_sriov.model import FunctionKind

from devhost.config import load
from devhost.discovery import catalog
from devhost.planning.planner import make_plan

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs/reference/backends.md").read_text()


@pytest.mark.parametrize("word", [*FunctionKind, *LINK_TYPES.values(), *OPERATIONAL_STATES])
def test_the_reference_names_each_word_of_an_attribute(word):
    assert f"`{word}`" in REFERENCE.partition("### Attributes of sriov")[2].partition("## udev")[0]


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (
            network.i40e_with_vfio,
            {"sriov/dpdk": ["0000:5e:02.2", "0000:5e:02.3"], "sriov/net": ["0000:5e:02.0", "0000:5e:02.1"]},
        ),
        (
            network.mlx5_switchdev,
            {
                "sriov/net": [
                    *("0000:3b:00.2", "0000:3b:00.3", "0000:3b:01.2", "0000:3b:01.3"),
                    *("mlx5_core.sf.2", "mlx5_core.sf.3"),
                ]
            },
        ),
        (others.qat, {"sriov/accelerator": [f"0000:6b:00.{number}" for number in range(1, 5)]}),
        (others.chipset, {}),
    ],
)
def test_the_ready_configuration_offers_every_part_and_no_whole(looking, tmp_path, machine, expected):
    example = ROOT / "config/examples/sriov.yaml"
    assert example.read_text().startswith("# ")
    settings = load(example, catalog.load)
    backend = looking(machine(tmp_path), settings.backends["sriov"], tuple(settings.wanted("sriov")))
    plan = make_plan({"sriov": backend.discover()}, settings)
    offers = {
        name: [offer.device.id for offer in resource.offers] for name, resource in plan.resources.items()
    }
    assert offers == expected
