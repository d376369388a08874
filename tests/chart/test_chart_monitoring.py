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


def test_nothing_is_made_unasked(chart: Chart) -> None:
    asked = ("service", "podMonitor", "serviceMonitor", "prometheusRule", "dashboard")
    values = {key: {"enabled": False} for key in asked}
    assert chart.render(values).kinds == chart.render().kinds == ["ConfigMap", "DaemonSet"]


def test_every_node_has_its_own_address(chart: Chart) -> None:
    values = {"service": {"enabled": True, "annotations": {"prometheus.io/scrape": "true"}}}
    rendered = chart.render(values)
    service = rendered.only("Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["annotations"] == {"prometheus.io/scrape": "true"}
    pods = rendered.only("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= pods.items()
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] == rendered.container["ports"][0]["name"]


@MONITORS
def test_prometheus_operator_finds_the_metrics(chart: Chart, key: str, kind: str, endpoints: str) -> None:
    values = {key: {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}}}
    rendered = chart.render(values)
    monitor = rendered.only(kind)
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"][endpoints]
    assert (endpoint["port"], endpoint["interval"]) == ("metrics", "15s")
    target = (
        rendered.only("Service")
        if kind == "ServiceMonitor"
        else rendered.only("DaemonSet")["spec"]["template"]
    )
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= target["metadata"]["labels"].items()


@MONITORS
def test_a_monitor_takes_relabelings_and_a_timeout(chart: Chart, key: str, kind: str, endpoints: str) -> None:
    own = {"targetLabel": "cluster", "replacement": "edge"}
    drop = {"sourceLabels": ["__name__"], "regex": "devhost_scan.*", "action": "drop"}
    values = {"scrapeTimeout": "5s", "relabelings": [own], "metricRelabelings": [drop]}
    monitor = chart.render({key: {"enabled": True, **values}}).only(kind)
    (endpoint,) = monitor["spec"][endpoints]
    assert endpoint["scrapeTimeout"] == "5s"
    assert endpoint["relabelings"][-1] == own
    assert [one["targetLabel"] for one in endpoint["relabelings"]] == ["node", "job", "group", "cluster"]
    assert endpoint["metricRelabelings"] == [drop]


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


@MONITORS
def test_the_pods_that_devhost_names_are_not_taken_for_its_own(
    chart: Chart, key: str, kind: str, endpoints: str
) -> None:
    (endpoint,) = chart.render({key: {"enabled": True}}).only(kind)["spec"][endpoints]
    assert endpoint["honorLabels"] is True


def test_no_devhost_is_scraped_twice(chart: Chart) -> None:
    said = refusal(chart, {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}})
    assert "podMonitor.enabled and serviceMonitor.enabled make Prometheus read each devhost twice" in said
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
