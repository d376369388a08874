"""The rules and the dashboard use only existing metrics, and every alert is explained."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scraped_series import move

from devhost.telemetry.exposition import TABLE
from devhost.telemetry.metrics import Metrics

README = Path(__file__).resolve().parents[2] / "deploy" / "monitoring" / "README.md"

SCRAPED = {"job", "instance", "node", "group"}
"""Labels that Prometheus itself puts on what it scrapes."""

SELECTOR = re.compile(r"(?<![\w$\"{:])((?:devhost|process)_\w+|up)\b(?:\{([^{}]*)\})?")
MATCHER = re.compile(r"(\w+) *(?:=~|!~|!=|=)")
GROUPED = re.compile(r"\b(?:by|on|group_left) *\(([^)]*)\)")
TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """The labels of every possible series of devhost, by name."""
    metrics = Metrics()
    move(metrics)
    metrics.name_gauges(
        lambda: [
            (one.name, [(one.labels, 1)])
            for one in TABLE
            if one.kind == "gauge" and not one.name.startswith(("build_info", "device_capacity"))
        ]
    )
    found: dict[str, set[str]] = {"up": set()}
    for family in text_string_to_metric_families(asyncio.run(metrics.render()).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def wrong_names(expression: str, series: dict[str, set[str]]) -> list[str]:
    """The unknown metrics and labels in an expression."""
    wrong, labels = [], set()
    for metric, matchers in SELECTOR.findall(expression):
        if metric not in series:
            wrong.append(metric)
            continue
        known = series[metric] | SCRAPED
        labels |= known
        wrong += [
            f"{metric}{{{name}}}" for name in MATCHER.findall(TEXT.sub('""', matchers)) if name not in known
        ]
    for group in GROUPED.findall(TEXT.sub('""', expression)):
        wrong += [f"by ({name})" for name in re.findall(r"\w+", group) if name not in labels]
    return wrong


def test_unknown_names_are_found(series):
    assert wrong_names("sum by (resource) (devhost_streams) > 0", series) == []
    assert wrong_names('devhost_streams{backend="x"}', series) == ["devhost_streams{backend}"]
    assert wrong_names("sum by (backend) (devhost_streams)", series) == ["by (backend)"]
    assert wrong_names("rate(devhost_stream[5m])", series) == ["devhost_stream"]


def test_the_rules_use_only_existing_metrics(rules, series):
    assert {rule["alert"]: wrong for rule in rules if (wrong := wrong_names(rule["expr"], series))} == {}


def test_the_texts_of_alerts_use_only_existing_labels_and_metrics(rules, series):
    """Labels in the text are those of the expression, and the queries in it are valid."""
    wrong = []
    for rule in rules:
        text = " ".join(rule["annotations"].values())
        known = {label for metric, _ in SELECTOR.findall(rule["expr"]) for label in series[metric]} | SCRAPED
        wrong += [
            f"{rule['alert']}: {name}" for name in re.findall(r"\$labels\.(\w+)", text) if name not in known
        ]
        for query in re.findall(r'(?:printf|query) "((?:[^"\\]|\\.)*)"', text):
            if "devhost_" in query:
                asked = query.replace('\\"', '"').replace("%q", '"x"')
                wrong += [f"{rule['alert']}: {name}" for name in wrong_names(asked, series)]
    assert wrong == []


def test_the_dashboard_uses_only_existing_metrics(queries, series):
    assert {where: wrong for where, asked in queries.items() if (wrong := wrong_names(asked, series))} == {}


def test_the_dashboard_shows_every_metric_of_devhost(queries, series):
    shown = {metric for asked in queries.values() for metric, _ in SELECTOR.findall(asked)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series if name.startswith("devhost_")}
    assert families - {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} == set()


INCREASE = re.compile(r"increase\(((\w+?)(?:\{[^{}]*\})?)\[([^]]+)\]\)")


def test_the_first_value_of_a_new_series_counts(rules, queries):
    """increase() does not count it, and a reason has no series before its first failure."""
    late = {f"devhost_{one.name}{'_bucket' if one.buckets else ''}" for one in TABLE if not one.starts}
    asked = {rule["alert"]: rule["expr"] for rule in rules} | queries
    found = [
        (where, f"{series} unless {name} offset {period} unless on (job, instance) (" in query)
        for where, query in asked.items()
        for series, name, period in INCREASE.findall(query)
        if name in late
    ]
    assert len(found) > 8
    assert [where for where, counted in found if not counted] == []


def test_a_threshold_of_an_alert_is_the_end_of_a_bucket_with_another_one_above(rules):
    """Otherwise the quantile is a guess, or never exceeds the highest end."""
    ends = {f"devhost_{one.name}_bucket": one.buckets for one in TABLE}
    limits = [
        (name, float(limit))
        for rule in rules
        for name, limit in re.findall(r"histogram_quantile\(.*?(devhost_\w+_bucket).*> (\S+)$", rule["expr"])
    ]
    assert limits
    for name, limit in limits:
        assert limit in ends[name][:-1], name


def test_every_alert_has_a_severity_a_summary_and_a_place(rules):
    for rule in rules:
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule["alert"]
        annotations = rule["annotations"]
        assert annotations.keys() == {"summary", "description", "runbook"}, rule["alert"]
        if "sum by" not in rule["expr"] and "_info)" in rule["expr"]:
            continue  # of many nodes
        assert "$labels.node" in annotations["summary"], rule["alert"]


def test_exactly_the_existing_alerts_are_explained(rules):
    explained = re.findall(r"^### (Devhost\w+)$", README.read_text(), re.MULTILINE)
    assert explained == [rule["alert"] for rule in rules]
    links = [rule["annotations"]["runbook"] for rule in rules]
    assert links == [f"deploy/monitoring/README.md#{name.lower()}" for name in explained]
