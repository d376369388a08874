"""The result of a scrape, read by the parser of prometheus-client; shared by tests in several directories."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from devhost.telemetry.exposition import TABLE, Declaration
from devhost.telemetry.metrics import Metrics


def samples(metrics: Metrics) -> Iterator[Sample]:
    """Every current sample."""
    text = "".join(line for metric in metrics.collect() for line in metric.lines)
    for family in text_string_to_metric_families(text):
        yield from family.samples


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """The value of the sample with this name and exactly these labels; ``None`` if there is none."""
    found = [one.value for one in samples(metrics) if one.name == name and one.labels == labels]
    assert len(found) <= 1, f"{name} {labels} is there {len(found)} times"
    return found[0] if found else None


def move(metrics: Metrics) -> dict[str, tuple[str, ...]]:
    """Gives each counted metric a value, with its labels' names as their values; the labels by metric."""
    moved = {}
    for one in TABLE:
        if one.owner:
            metrics.begin(one.owner, one.owner)
        if one.kind != "gauge":
            moved[one.name] = labels = (one.owner, *one.more.split()) if one.owner else one.labels
            _move(metrics, one, labels)
    return moved


def _move(metrics: Metrics, one: Declaration, labels: tuple[str, ...]) -> None:
    if one.kind == "counter":
        metrics.add(one.name, *labels)
    else:
        metrics.observe(one.name, *labels, seconds=3.0)
