"""The names of the Intel plugin, exactly, and through the core to the kubelet."""

from __future__ import annotations

import re
from pathlib import Path

import fpga_cards as cards
import pytest
from devhost_fpga.model import Reading, af_name, region_name
from devhost_testing.fixtures import BackendFixture

from devhost.config import load
from devhost.discovery import catalog
from devhost.planning import naming
from devhost.planning.planner import make_plan

INTERFACE, AFU = "ce48969398f05f33946d560708be108a", "d8424dc4a4a3c413f89e433683f9040b"


@pytest.mark.parametrize(
    ("interface_id", "afu_id", "name"),
    [
        # TestGetAfuDevType in pkg/fpga/devtypes_test.go of intel-device-plugins-for-kubernetes
        (INTERFACE, AFU, "af-ce4.d84.zkiWk5jwXzOUbVYHCL4QithCTcSko8QT-J5DNoP5BAs"),
        (
            "bfac4d851ee856fe8c95865ce1bbaa2d",
            "f7df405cbd7acf7222f144b0b93acd18",
            "af-bfa.f7d.v6xNhR7oVv6MlYZc4buqLfffQFy9es9yIvFEsLk6zRg",
        ),
    ],
)
def test_an_accelerator_function_has_the_name_that_intels_plugin_gave_it(
    interface_id: str, afu_id: str, name: str
) -> None:
    assert len(name) == 54
    assert af_name(interface_id, afu_id) == name


@pytest.mark.parametrize(("one", "two"), [("", AFU), (INTERFACE, ""), (INTERFACE[:3], AFU), ("g" * 32, AFU)])
def test_a_name_needs_both_ids(one: str, two: str) -> None:
    assert af_name(one, two) == ""


def test_without_an_id_a_region_has_no_name() -> None:
    assert region_name("") == ""
    assert region_name(INTERFACE) == f"region-{INTERFACE}"


@pytest.mark.parametrize("number", [0, 1, 0x8000_0000_0000_0000, (1 << 128) - 2, 0x1234 << 64])
def test_every_name_is_legal_and_the_core_leaves_it_as_it_is(number: int) -> None:
    name = af_name(f"{number:032x}", f"{number ^ 0xFF:032x}")
    assert len(name) == 54
    whole = naming.expand("fpga.intel.com/{intelName}", {"intelName": name})
    assert whole == f"fpga.intel.com/{name}"
    assert naming.problem(whole) == ""


@pytest.mark.parametrize("text", ["\x00", "?", "ü" * 16, "0x" + AFU, AFU.upper(), f" {AFU} "])
def test_readings_are_ids_or_have_a_reason(text: str) -> None:
    reading = Reading(text)
    assert bool(reading.id) is not bool(reading.flaw("it"))
    assert reading.id in ("", AFU)


def test_the_template_gives_each_card_the_resources_that_intels_plugin_gave_it(
    looking: BackendFixture, tmp_path: Path
) -> None:
    config = tmp_path / "devhost.yaml"
    config.write_text("""
version: 1
resources:
- {name: "fpga.intel.com/{intelName}", backend: fpga, where: {kind: af}}
""")
    settings = load(config, catalog.load)
    plan = make_plan({"fpga": looking(cards.mixed(tmp_path / "root")).discover()}, settings)
    names = {name: [offer.device.id for offer in made.offers] for name, made in plan.resources.items()}
    assert names == {
        "fpga.intel.com/af-695.d84.aVKNtusxV3qMNmj5-qCB9thCTcSko8QT-J5DNoP5BAs": [
            *("0000:05:00.0-port0", "0000:3f:00.0-port0")
        ],
        "fpga.intel.com/af-695.f7d.aVKNtusxV3qMNmj5-qCB9vffQFy9es9yIvFEsLk6zRg": ["0000:3f:00.0-port1"],
    }
    assert all(re.search("[A-Z]", name) for name in names)
