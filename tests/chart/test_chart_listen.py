"""An address at which devhost could not be reached, or could not listen, is refused."""

from __future__ import annotations

from typing import Any

import pytest
from rendering import Chart, refusal


def listening(address: str, **more: Any) -> dict[str, Any]:
    return {"listen": {"address": address}, **more}


@pytest.mark.parametrize(
    "address", ["999.1.1.1", "1.2.3.04", "1::2::3", "1:2:3", "::12345", "1:2:3:4:5:6:7:8:9", ":"]
)
def test_text_that_is_not_an_address_is_refused(chart: Chart, address: str) -> None:
    message = refusal(chart, listening(address, hostNetwork=True))
    assert message.endswith(f"listen.address {address} is not an address")
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("address", ["::", "0.0.0.0", "0:0:0:0:0:0:0:0", ""])
def test_a_pod_with_a_separate_network_listens_on_all_addresses(chart: Chart, address: str) -> None:
    assert chart.render(listening(address), profile="minimal").pod["hostNetwork"] is False


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("10.1.2.3", "cannot be known in advance"),
        ("2001:db8::1", "cannot be known in advance"),
        ("$(NODE_IP)", "is the node's address"),
        ("127.0.0.1", "is the pod's loopback"),
        ("::1", "is the pod's loopback"),
        ("0:0:0:0:0:0:0:1", "is the pod's loopback"),
    ],
)
def test_an_address_that_such_a_pod_does_not_have_is_refused(chart: Chart, address: str, reason: str) -> None:
    message = refusal(chart, listening(address), profile="minimal")
    assert f"listen.address {address} {reason}" in message
    assert "leave it empty, or set hostNetwork to true" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("key", ["podMonitor", "serviceMonitor", "service"])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"])
def test_prometheus_is_not_sent_to_a_nodes_loopback(chart: Chart, key: str, address: str) -> None:
    message = refusal(chart, listening(address, hostNetwork=True, **{key: {"enabled": True}}))
    assert f"cannot be reached from outside, but {key}.enabled" in message
    assert len(message.splitlines()) == 1


def test_readers_on_the_node_itself_need_no_service(chart: Chart) -> None:
    nothing = dict.fromkeys(("podMonitor", "serviceMonitor", "service"))
    assert "--listen=127.0.0.1:9400" in chart.render(listening("127.0.0.1", hostNetwork=True, **nothing)).args
