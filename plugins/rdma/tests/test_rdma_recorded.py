"""Machines that ``devhost record`` recorded. Packed: git keeps no empty directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from devhost_testing.fixtures import BackendFixture, by_id
from devhost_testing.trees import unpack

from devhost.backend import Device

MACHINES = Path(__file__).with_name("recorded")


@pytest.fixture
def software(tmp_path: Path, looking: BackendFixture) -> dict[str, Device]:
    """Linux 6.12.107, Debian 13: rxe0 on an interface that is up, siw0 on one that is down."""
    unpack(MACHINES / "linux-6.12-rxe-siw.tar.xz", tmp_path)
    return by_id(looking(tmp_path))


def test_software_devices_of_a_real_kernel_are_distinguished(software: dict[str, Device]) -> None:
    assert software.keys() == {"rxe0", "siw0"}
    alike = {"linkLayer": "ethernet", "ports": 1, "isVf": False, "hasIssm": False, "hasRdmaCm": True}
    own = {
        "rxe0": {"nodeType": "ca", "transport": "ib", "driver": "rdma_rxe", "hasUmad": True},
        "siw0": {"nodeType": "rnic", "transport": "iwarp", "driver": "siw", "hasUmad": False},
    }
    for name, expected in own.items():
        wanted = {**alike, **expected, "ibDevices": (name,)}
        assert {key: software[name].attributes.get(key) for key in wanted} == wanted


def test_a_port_that_was_down_when_it_was_recorded_is_down(software: dict[str, Device]) -> None:
    assert software["rxe0"].health.healthy
    assert software["rxe0"].attributes["portState"] == "active"
    assert software["siw0"].health.reason.startswith("port 1 is down")
    assert software["siw0"].attributes["portState"] == "down"
