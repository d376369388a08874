"""What the chart makes for Prometheus and Grafana, on request only."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from rendering import CHART, Chart, refusal

MONITORS = pytest.mark.parametrize(
    ("key", "kind", "endpoints"),
    [
        ("podMonitor", "PodMonitor", "podMetricsEndpoints"),
        ("serviceMonitor", "ServiceMonitor", "endpoints"),
    ],
)

RULES, DASHBOARD = CHART / "files" / "alerts.yaml", CHART / "files" / "grafana-dashboard.json"


@MONITORS
@pytest.mark.parametrize("values", [{}, {"nameOverride": "hw"}, {"fullnameOverride": "hw"}], ids=str)
def test_the_job_is_called_devhost_under_any_name_of_the_chart(
    chart: Chart, values: dict[str, str], key: str, kind: str, endpoints: str
) -> None:
    """The alerts look for it. The operator's own relabelings come first, and the last one counts."""
    monitor = chart.render({key: {"enabled": True}, **values}, release="edge").only(kind)
    (endpoint,) = monitor["spec"][endpoints]
    set_last = {one["targetLabel"]: one for one in endpoint["relabelings"]}
    assert set_last["job"] == {"targetLabel": "job", "replacement": "devhost"}
    assert set_last["node"]["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]
    jobs = re.findall(r'job=~"([^"]*)"', RULES.read_text())
    assert jobs
    assert all(re.fullmatch(job, "devhost") for job in jobs)


def test_no_devhost_is_scraped_twice(chart: Chart) -> None:
    said = refusal(chart, {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}})
    assert "podMonitor.enabled and serviceMonitor.enabled make Prometheus read each devhost twice" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("key", ["podMonitor", "serviceMonitor", "service"])
def test_a_network_policy_that_keeps_prometheus_out_is_refused(chart: Chart, key: str) -> None:
    said = refusal(chart, {"networkPolicy": {"enabled": True}, key: {"enabled": True}})
    assert f"networkPolicy.from is empty, so no pod reaches the port, but {key}.enabled needs" in said
    assert len(said.splitlines()) == 1


def test_the_alerts_are_those_of_the_file(chart: Chart) -> None:
    values = {"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}
    rule = chart.render(values).only("PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["spec"]["groups"]
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_dashboard_is_that_of_the_file(chart: Chart) -> None:
    values = {"dashboard": {"enabled": True, "annotations": {"grafana_folder": "Hardware"}}}
    (found,) = [
        one
        for one in chart.render(values).objects
        if one["kind"] == "ConfigMap" and one["metadata"]["name"] == "devhost-dashboard"
    ]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "Hardware"}
    (text,) = found["data"].values()
    assert json.loads(text) == json.loads(DASHBOARD.read_text())
