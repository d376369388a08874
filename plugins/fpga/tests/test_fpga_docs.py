"""The page and the example configuration match the code."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import fpga_cards as cards
import pytest
from devhost_fpga.allocation import NODES, VARIABLES
from devhost_fpga.options import FpgaUse
from devhost_testing.fixtures import BackendFixture

from devhost.config import load
from devhost.discovery import catalog
from devhost.planning.planner import make_plan

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/backends/fpga.md").read_text()


@pytest.mark.parametrize("field", [one.name for one in fields(FpgaUse)])
def test_the_page_has_each_key_of_an_entry(field: str) -> None:
    assert f"`{field}: true`" in PAGE or f"`{field}`" in PAGE


@pytest.mark.parametrize("variable", [NODES, *VARIABLES])
def test_the_page_has_each_variable(variable: str) -> None:
    assert f"`{variable}_<RESOURCE>`" in PAGE


def test_the_ready_configuration_offers_every_port_and_no_region(
    looking: BackendFixture, tmp_path: Path
) -> None:
    example = ROOT / "config/examples/fpga.yaml"
    assert example.read_text().startswith("# ")
    settings = load(example, catalog.load)
    plan = make_plan({"fpga": looking(cards.mixed(tmp_path)).discover()}, settings)
    offers = {name: [offer.device.id for offer in made.offers] for name, made in plan.resources.items()}
    assert offers == {"intel.com/fpga": ["0000:05:00.0-port0", "0000:3f:00.0-port0", "0000:3f:00.0-port1"]}
