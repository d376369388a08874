"""The page, the package's own table and the ready configuration say what is."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import devhost_rdma
import pytest
import rdma_connectx as connectx
from devhost_rdma import Rdma
from devhost_rdma.attributes import ATTRIBUTES
from devhost_rdma.hca import PHYS_STATES, PORT_STATES
from devhost_rdma.nodes import Role

from devhost import catalog
from devhost.config import load
from devhost.plan import make_plan
from devhost.source import ServiceContext

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/backends/rdma.md").read_text()
README = (ROOT / "plugins/rdma/README.md").read_text()


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_page_gives_each_attribute_its_type(name):
    words = {str: "text", int: "number", bool: "true/false", list: "list"}
    row = next(line for line in PAGE.splitlines() if re.match(rf"\| (`\w+`, )?`{name}`", line))
    kind = f"hex {words[str]}" if ATTRIBUTES[name].hex else words[ATTRIBUTES[name].type]
    assert row.split(" | ")[1] == kind


@pytest.mark.parametrize("word", [*PORT_STATES.values(), *PHYS_STATES.values()])
def test_the_page_names_each_state_of_a_port(word):
    assert f"`{word}`" in PAGE


@pytest.mark.parametrize("role", Role)
def test_the_page_names_each_kind_of_node(role):
    assert f"/dev/infiniband/{role.word}" in PAGE


def test_the_packages_table_has_every_module():
    named = set(re.findall(r"`([\w*]+)`", "\n".join(re.findall(r"(?m)^\| `.*?\|", README))))
    modules = {path.stem for path in Path(devhost_rdma.__file__).parent.glob("*.py")}
    modules -= {"__init__", "options"}
    assert [one for one in modules if not any(fnmatch(one, name) for name in named)] == []
    assert [name for name in named if not any(fnmatch(one, name) for one in modules)] == []


def test_the_ready_configuration_shares_adapters_and_keeps_virtual_functions_whole(tmp_path):
    example = ROOT / "config/examples/rdma.yaml"
    assert example.read_text().startswith("# ")
    settings = load(example, catalog.load)
    connectx.virtual_functions(tmp_path)
    context = ServiceContext("rdma", tmp_path, tuple(settings.wanted("rdma")))
    found = Rdma(settings.backends["rdma"], context).discover()
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
