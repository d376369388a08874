"""Kernel texts as attribute values, and the reasons for inactive ports."""

from __future__ import annotations

import pytest
from devhost_rdma import model
from devhost_rdma.model import IbDevice, Kind, Place, Port, best_port, health_of, place_at, place_of
from devhost_rdma.nodes import in_order

from devhost.backend import Cause
from devhost.backend.infiniband import Node, Role

PCI = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("1: CA", "ca"),
        ("4: RNIC", "rnic"),
        ("6: usNIC UDP", "usnic_udp"),
        ("7: unspecified", "unspecified"),
        ("9: <unknown>", ""),
        ("CA", ""),
        ("1", ""),
        ("", ""),
        ("٣: ?", ""),
        ("123456789: CA", ""),
    ],
)
def test_a_node_type_is_known_by_its_number(text, word):
    assert model.numbered(text, model.NODE_TYPES) == word


@pytest.mark.parametrize(
    ("text", "gigabits"),
    [
        ("100 Gb/sec (4X EDR)", 100),
        ("2.5 Gb/sec (1X SDR)", 2),
        ("1600 Gb/sec (8X XDR)", 1600),
        ("0 Gb/sec (1X SDR)", 0),
        ("12.", None),
        ("-1 Gb/sec", None),
        ("9" * 4000, None),
        ("", None),
    ],
)
def test_a_rate_is_in_whole_gigabits(text, gigabits):
    assert model.rate(text) == gigabits


@pytest.mark.parametrize(
    ("text", "guid"),
    [
        ("0C42:A103:00F4:5B2E", "0c42:a103:00f4:5b2e"),
        ("0000:0000:0000:0000", ""),
        ("0c42a10300f45b2e", ""),
        ("(null)", ""),
    ],
)
def test_an_unset_guid_is_empty(text, guid):
    assert model.guid(text) == guid


def test_vendor_texts_are_one_short_line():
    assert model.label("28.39.1002") == "28.39.1002"
    assert model.label("a\nb") == ""
    assert model.label("x" * 129) == ""


@pytest.mark.parametrize(
    ("node_type", "transport"),
    [
        ("ca", "ib"),
        ("switch", "ib"),
        ("rnic", "iwarp"),
        ("usnic", "usnic"),
        ("usnic_udp", "usnic_udp"),
        ("unspecified", "unspecified"),
        ("", ""),
    ],
)
def test_the_transport_follows_from_the_node_type(node_type, transport):
    assert IbDevice("x", "/x", node_type, "", "", "", "", ()).transport == transport


def test_the_device_that_programs_open_is_the_main_one_under_any_name():
    companion, main = (IbDevice(name, f"/{name}", "ca", "", "", "", "", ()) for name in ("smi1", "x0"))
    nodes = {
        "smi1": [Node(Role.UMAD, "/dev/umad0", "smi1", "")],
        "x0": [Node(Role.UVERBS, "/dev/u0", "x0", "")],
    }
    assert in_order([companion, main], nodes) == [main, companion]


def port(number: int = 1, state: str = "active", rate: int | None = 100, **other: str) -> Port:
    words = {"phys_state": "link_up", "link_layer": "ethernet"} | other
    return Port(number, state, words["phys_state"], words["link_layer"], rate)


def test_the_fastest_active_port_represents_the_device_else_the_first():
    slow, fast, down = port(1, rate=40), port(2, rate=200), port(3, "down", 400)
    assert best_port([slow, fast, down]) is fast
    assert best_port([down, slow]) is slow
    assert best_port([down]) is down
    assert best_port([port(1, rate=None), port(2, rate=None)]) == port(1, rate=None)
    assert best_port([]) is None


@pytest.mark.parametrize(
    ("ports", "reason"),
    [
        ([], ""),
        ([port()], ""),
        ([port(1, "down"), port(2)], ""),
        ([port(1, "down", phys_state="polling")], "port 1 is down (phys state: polling)"),
        ([port(1, "down", phys_state="")], "port 1 is down"),
        (
            [port(1, "down", phys_state="port_configuration_training")],
            "port 1 is down (phys state: port configuration training)",
        ),
        (
            [port(1, "init", link_layer="infiniband")],
            "port 1 is in state init: no subnet manager has configured it",
        ),
        (
            [port(1, "armed", link_layer="infiniband")],
            "port 1 is in state armed: no subnet manager has configured it",
        ),
        ([port(1, "init")], "port 1 is in state init (phys state: link up)"),
        ([port(1, "")], "the state of port 1 is unknown"),
        (
            [port(1, "down", phys_state="polling"), port(2, "down", phys_state="disabled")],
            "port 1 is down (phys state: polling), port 2 is down (phys state: disabled)",
        ),
        (
            [port(n, "down", phys_state="") for n in range(1, 131)],
            "port 1 is down, port 2 is down, 128 more are not active",
        ),
    ],
)
def test_a_function_without_an_active_port_is_unhealthy_with_the_reason(ports, reason):
    assert health_of(ports, "", ignore_ports=False).reason == (reason or None)
    assert health_of(ports, "", ignore_ports=False).causes == ({Cause.LINK} if reason else set())
    assert health_of(ports, "", ignore_ports=True).healthy
    assert health_of(ports, "umad missing", ignore_ports=True).reason == "umad missing"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (f"{PCI}/infiniband/mlx5_0", Place("0000:3b:00.0", Kind.PCI, PCI, "0000:3b:00.0")),
        (f"{PCI}/infiniband_verbs/uverbs0", Place("0000:3b:00.0", Kind.PCI, PCI, "0000:3b:00.0")),
        (f"{PCI}/mlx5_core.rdma.0/infiniband/mlx5_0", Place("0000:3b:00.0", Kind.PCI, PCI, "0000:3b:00.0")),
        (
            f"{PCI}/mlx5_core.sf.4/infiniband/mlx5_0",
            Place("mlx5_core.sf.4", Kind.SUBFUNCTION, f"{PCI}/mlx5_core.sf.4", "0000:3b:00.0"),
        ),
        (
            f"{PCI}/mlx5_core.sf.4/mlx5_core.rdma.5/infiniband/mlx5_0",
            Place("mlx5_core.sf.4", Kind.SUBFUNCTION, f"{PCI}/mlx5_core.sf.4", "0000:3b:00.0"),
        ),
        (
            "/sys/devices/virtual/infiniband/mlx5_0",
            Place("mlx5_0", Kind.SOFTWARE, "/sys/devices/virtual/infiniband/mlx5_0"),
        ),
        (
            "/sys/devices/virtual/infiniband_verbs/uverbs3",
            Place("mlx5_0", Kind.SOFTWARE, "/sys/devices/virtual/infiniband/mlx5_0"),
        ),
        (
            "/sys/devices/platform/soc@0/-odd name/infiniband/mlx5_0",
            Place("odd-name", Kind.OTHER, "/sys/devices/platform/soc@0/-odd name"),
        ),
    ],
)
def test_a_device_is_named_after_its_parent(path, place):
    assert place_of(path, "mlx5_0") == place


def test_a_place_with_an_illegal_name_gets_a_legal_one():
    assert place_at("/sys/devices/%%%").id == "device"
    assert len(place_at(f"/sys/devices/{'x' * 200}").id) == 63
