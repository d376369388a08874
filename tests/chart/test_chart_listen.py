"""An address on which nobody could reach devhost, or that it could not take, is refused."""

from __future__ import annotations

from typing import Any

import pytest
from rendering import Chart, refusal


def listening(address: str, **more: Any) -> dict[str, Any]:
    return {"listen": {"address": address}, **more}


@pytest.mark.parametrize(
    "address", ["999.1.1.1", "1.2.3.04", "1::2::3", "1:2:3", "::12345", "1:2:3:4:5:6:7:8:9", ":"]
)
def test_what_is_no_address_is_refused(chart: Chart, address: str) -> None:
    said = refusal(chart, listening(address, hostNetwork=True))
    assert said.endswith(f"listen.address {address} is no address")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("address", ["::", "0.0.0.0", "0:0:0:0:0:0:0:0", ""])
def test_a_pod_with_a_network_of_its_own_listens_on_all_of_it(chart: Chart, address: str) -> None:
    assert chart.render(listening(address), profile="minimal").pod["hostNetwork"] is False


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("10.1.2.3", "is not known before the pod has it"),
        ("2001:db8::1", "is not known before the pod has it"),
        ("$(NODE_IP)", "is the node's"),
        ("127.0.0.1", "is the pod's own loopback"),
        ("::1", "is the pod's own loopback"),
        ("0:0:0:0:0:0:0:1", "is the pod's own loopback"),
    ],
)
def test_an_address_that_such_a_pod_does_not_have_is_refused(chart: Chart, address: str, reason: str) -> None:
    said = refusal(chart, listening(address), profile="minimal")
    assert f"listen.address {address} {reason}" in said
    assert "leave it empty, or set hostNetwork to true" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("key", ["podMonitor", "serviceMonitor", "service"])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"])
def test_nobody_is_sent_to_a_nodes_loopback(chart: Chart, key: str, address: str) -> None:
    said = refusal(chart, listening(address, hostNetwork=True, **{key: {"enabled": True}}))
    assert f"lets nobody in from outside, and {key}.enabled" in said
    assert len(said.splitlines()) == 1


def test_whoever_asks_on_the_node_itself_needs_no_service(chart: Chart) -> None:
    nothing = dict.fromkeys(("podMonitor", "serviceMonitor", "service"))
    assert "--listen=127.0.0.1:9400" in chart.render(listening("127.0.0.1", hostNetwork=True, **nothing)).args


def test_a_nodes_own_address_is_one_to_send_prometheus_to(chart: Chart) -> None:
    rendered = chart.render(listening("$(NODE_IP)", hostNetwork=True, podMonitor={"enabled": True}))
    assert "PodMonitor" in rendered.kinds
