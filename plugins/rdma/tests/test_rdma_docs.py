"""The page and the example configuration match the code."""

from __future__ import annotations

from pathlib import Path

import pytest
import rdma_connectx as connectx
from devhost_rdma.model import PHYS_STATES, PORT_STATES

from devhost.backend.infiniband import Role
from devhost.config import load
from devhost.discovery import catalog
from devhost.planning.planner import make_plan

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/backends/rdma.md").read_text()
REFERENCE = (ROOT / "docs/reference/backends.md").read_text()


@pytest.mark.parametrize("word", [*PORT_STATES.values(), *PHYS_STATES.values()])
def test_the_reference_names_each_state_of_a_port(word):
    assert f"`{word}`" in REFERENCE.partition("### Attributes of rdma")[2].partition("## sriov")[0]


@pytest.mark.parametrize("role", Role)
def test_the_page_names_each_kind_of_node(role):
    assert f"/dev/infiniband/{role.word}" in PAGE


def test_the_ready_configuration_shares_adapters_and_keeps_virtual_functions_whole(looking, tmp_path):
    example = ROOT / "config/examples/rdma.yaml"
    assert example.read_text().startswith("# ")
    settings = load(example, catalog.load)
    connectx.virtual_functions(tmp_path)
    found = looking(tmp_path, settings.backends["rdma"], tuple(settings.wanted("rdma"))).discover()
    plan = make_plan({"rdma": found}, settings)
    offers = {
        name: {offer.device.id: offer.replicas for offer in resource.offers}
        for name, resource in plan.resources.items()
    }
    assert offers == {
        "rdma/vf": dict.fromkeys((f"0000:3b:00.{n}" for n in range(2, 6)), 1),
        "rdma/hca": {"0000:3b:00.0": 100},
    }
    assert plan.refusals == ()
