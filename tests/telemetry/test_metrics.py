from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path
from typing import get_args

import pytest
from scraped_series import move, samples, value

from devhost.backend import Usage
from devhost.discovery.manager import ProvisioningState
from devhost.planning.plan import RefusalKind
from devhost.telemetry.exposition import TABLE
from devhost.telemetry.metrics import (
    CallFailure,
    Failure,
    Guess,
    Metrics,
    ProblemKind,
)

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


def _value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return value(metrics, f"devhost_{name}", **labels)


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    made.begin("resource", "a/b")
    made.begin("prepared", "a/b")
    made.begin("backend", "udev")
    made.begin("labels", "udev")
    made.begin("observer", "audit")
    return made


def test_what_is_known_without_an_event_exists_at_zero_from_the_start(metrics: Metrics) -> None:
    names = {"a/b", "udev", "audit"}
    found = [sample for sample in samples(metrics) if names & set(sample.labels.values())]
    assert all(sample.value == 0 for sample in found)
    assert {sample.name for sample in found} == {
        "devhost_allocations_total",
        "devhost_registrations_total",
        "devhost_registration_failures_total",
        "devhost_lists_total",
        "devhost_label_files_total",
        "devhost_label_failures_total",
        "devhost_observer_dropped_total",
    }


def test_a_reason_a_kind_and_a_histogram_have_series_from_their_first_value(metrics: Metrics) -> None:
    """Most of them never occur, and each would be a series of every resource."""
    metrics.add("allocation_failures_total", "a/b", CallFailure.MISSING)
    metrics.observe("allocate_seconds", "a/b", seconds=0.001)
    metrics.add("backend_failures_total", "udev", Failure.TIMEOUT)
    metrics.add("observer_failures_total", "audit", Failure.ERROR)
    metrics.add("affinity_guesses_total", Guess.RIGHT)
    first = ("allocation_failures_total", "backend_failures_total", "observer_failures_total")
    assert [
        (sample.name, sample.value)
        for sample in samples(metrics)
        if sample.name.removeprefix("devhost_") in (*first, "affinity_guesses_total")
    ] == [(f"devhost_{name}", 1) for name in (*first, "affinity_guesses_total")]
    histograms = {sample.name for sample in samples(metrics) if sample.name.endswith("_count")}
    assert histograms == {"devhost_allocate_seconds_count"}


def test_every_series_has_the_value_that_it_was_given(metrics: Metrics) -> None:
    moved = move(metrics)
    kinds = {one.name: one for one in TABLE}
    for name, labels in moved.items():
        one = kinds[name]
        shown = dict(zip(one.labels, labels, strict=True))
        if one.kind == "histogram":
            assert _value(metrics, f"{name}_count", **shown) == 1
            assert _value(metrics, f"{name}_sum", **shown) == 3
        else:
            assert _value(metrics, name, **shown) == 1
    metrics.add("observer_dropped_total", "observer", by=7)
    assert _value(metrics, "observer_dropped_total", observer="observer") == 8


USED = {"add": "counter", "observe": "histogram"}
"""The methods that name a metric, and the kind for which each is."""


def test_the_code_names_every_metric_as_the_table_has_it() -> None:
    """A wrong name would raise when it is first counted, perhaps only after a rare failure."""
    table = {one.name: one for one in TABLE}
    named, used = set[str](), set[tuple[str, str, int]]()
    for file in sorted((DOC.parents[1] / "src" / "devhost").rglob("*.py")):
        text = file.read_text()
        named.update(table.keys() & set(re.findall(r'"(\w+)"', text)))
        if file.name == "metrics.py" or not re.search(rf"metrics\.(?:{'|'.join(USED)})\(", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            if not isinstance(node.func, ast.Attribute) or node.func.attr not in USED:
                continue
            if ast.unparse(node.func.value).endswith("metrics"):
                first, *labels = node.args
                if isinstance(first, ast.Constant):
                    used.add((node.func.attr, first.value, len(labels)))
    for method, metric, labels_given in used:
        one = table[metric]
        assert one.kind == USED[method], metric
        assert labels_given == len(one.labels), metric
    assert named == table.keys()
    assert len(used) > sum(one.kind != "gauge" for one in TABLE) / 2


async def test_the_series_of_a_removed_resource_end(metrics: Metrics) -> None:
    metrics.observe("allocate_seconds", "a/b", seconds=0.1)
    for _ in range(2):
        _remove(metrics)
    text = await metrics.render()
    assert b'"a/b"' not in text and b'"udev"' not in text


def _remove(metrics: Metrics) -> None:
    metrics.end("resource", "a/b")
    metrics.end("prepared", "a/b")
    metrics.end("backend", "udev")
    metrics.end("labels", "udev")


async def test_only_a_prepared_resource_has_series_for_prepare(metrics: Metrics) -> None:
    metrics.begin("resource", "c/d")
    metrics.observe("prepare_seconds", "c/d", seconds=1.0)
    metrics.add("prepare_failures_total", "c/d", CallFailure.REFUSED)
    assert _value(metrics, "prepare_seconds_count", resource="c/d") is None
    metrics.begin("prepared", "c/d")
    metrics.observe("prepare_seconds", "c/d", seconds=1.0)
    assert _value(metrics, "prepare_seconds_count", resource="c/d") == 1
    metrics.end("prepared", "c/d")
    assert _value(metrics, "prepare_seconds_count", resource="c/d") is None
    assert _value(metrics, "lists_total", resource="c/d") == 0


async def test_a_late_event_does_not_restore_a_removed_resource(metrics: Metrics) -> None:
    _remove(metrics)
    metrics.add("backend_failures_total", "udev", Failure.ERROR)
    metrics.add("label_files_total", "udev")
    metrics.observe("event_to_list_seconds", "a/b", seconds=0.1)
    metrics.add("allocation_failures_total", "a/b", CallFailure.ERROR)
    text = await metrics.render()
    assert b'"a/b"' not in text and b'"udev"' not in text


async def test_the_series_of_a_removed_observer_end(metrics: Metrics) -> None:
    for _ in range(2):
        metrics.end("observer", "audit")
    metrics.add("observer_failures_total", "audit", Failure.TIMEOUT)
    metrics.add("observer_dropped_total", "audit")
    assert b'"audit"' not in await metrics.render()


def test_adding_a_known_resource_again_keeps_its_counters(metrics: Metrics) -> None:
    metrics.add("allocations_total", "a/b")
    metrics.begin("resource", "a/b")
    assert _value(metrics, "allocations_total", resource="a/b") == 1


def test_two_hosts_in_one_process_count_separately() -> None:
    first, second = Metrics(), Metrics()
    first.add("preferences_unproven_total", by=5)
    assert _value(second, "preferences_unproven_total") == 0


async def test_process_metrics_and_version_are_served() -> None:
    text = await Metrics().render()
    assert b"process_resident_memory_bytes " in text
    assert b'devhost_build_info{version="' in text
    assert b"_created" not in text


def test_every_metric_is_documented_as_the_code_has_it() -> None:
    rows = []
    for one in TABLE:
        labels = "".join(f", `{label}`" for label in one.labels).replace(",", ";", 1)
        rows.append(f"- `devhost_{one.name}` ({one.kind}{labels}): {one.help}")
    text = re.sub(r"\n +", " ", DOC.read_text())
    assert re.findall(r"^- `devhost_\w+` \(.*", text, re.MULTILINE) == rows


def test_every_fixed_label_value_is_documented() -> None:
    text = DOC.read_text()
    assert [
        value
        for value in (
            *CallFailure,
            *Failure,
            *Guess,
            *ProvisioningState,
            *RefusalKind,
        )
        if f"- `{value}`: " not in text
    ] == []


def test_every_kind_of_problem_is_documented_on_the_page_of_status() -> None:
    text = DOC.with_name("status.md").read_text()
    assert [kind for kind in get_args(ProblemKind) if f"| `{kind}` | " not in text] == []


def test_the_use_of_devices_is_shown_as_far_as_it_is_known(metrics: Metrics) -> None:
    async def used() -> list[tuple[str, str, Usage]]:
        return [("a/b", "d0", Usage(0.5, 1, 2)), ("a/b", "d1", Usage(memory=4))]

    assert b"devhost_device_use" not in asyncio.run(metrics.render())
    metrics.name_usage(used)
    lines = [
        line for line in asyncio.run(metrics.render()).decode().splitlines() if "devhost_device_" in line
    ]
    assert [line for line in lines if not line.startswith("#")] == [
        'devhost_device_use_ratio{device="d0",resource="a/b"} 0.5',
        'devhost_device_memory_used_bytes{device="d0",resource="a/b"} 1.0',
        'devhost_device_memory_bytes{device="d0",resource="a/b"} 2.0',
        'devhost_device_memory_bytes{device="d1",resource="a/b"} 4.0',
    ]
