from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scraped_series import move, samples, value

from devhost.backend import Usage
from devhost.discovery.manager import ProvisioningState
from devhost.planning.plan import RefusalKind
from devhost.telemetry.exposition import TABLE, TURN
from devhost.telemetry.metrics import (
    MOST_REASONS,
    MOST_VERDICTS,
    OTHER_AUTHORS,
    OTHER_REASONS,
    CallFailure,
    Failure,
    Guess,
    Metrics,
    ProblemKind,
    Scraped,
    device_samples,
)

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


def _value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return value(metrics, f"devhost_{name}", **labels)


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    made.begin("resource", "a/b")
    made.begin("prepared", "a/b")
    made.show("devices", "a/b", device_samples("udev", 0, {}))
    made.begin("backend", "udev")
    made.show("provisioning", "udev", {("waiting",): 0, ("ok",): 0})
    made.begin("labels", "udev")
    made.begin("observer", "audit")
    return made


def test_what_is_known_without_an_event_exists_at_zero_from_the_start(metrics: Metrics) -> None:
    names = {"a/b", "udev", "audit"}
    found = [sample for sample in samples(metrics) if names & set(sample.labels.values())]
    assert all(sample.value == 0 for sample in found)
    assert {sample.name for sample in found} == {
        "devhost_devices",
        "devhost_allocations_total",
        "devhost_registrations_total",
        "devhost_registration_failures_total",
        "devhost_streams",
        "devhost_lists_total",
        "devhost_backend_degraded",
        "devhost_provisioning",
        "devhost_labels",
        "devhost_label_files_total",
        "devhost_label_failures_total",
        "devhost_observer_paused",
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


RESOURCES = 200
HOST = 100
"""Series that do not depend on the number of resources."""


@pytest.mark.parametrize(("state", "most"), [("new", 8), ("used", 24), ("every failure", 44)])
def test_a_resource_has_few_series(state: str, most: int) -> None:
    """So 200 resources have at most 5,000 series when all are in use."""
    metrics = Metrics()
    metrics.begin("backend", "udev")
    entries = [(f"resources[{n}]", f"example.com/{n}", "udev", False, 8) for n in range(RESOURCES)]
    metrics.name_scraped(lambda: Scraped(entries=entries))
    for number in range(RESOURCES):
        name = f"example.com/{number}"
        metrics.begin("resource", name)
        metrics.show("devices", name, device_samples("udev", 8, {}))
        if state != "new":
            metrics.observe("event_to_list_seconds", name, seconds=0.004)
            metrics.observe("allocate_seconds", name, seconds=0.002)
        if state == "every failure":
            metrics.begin("prepared", name)
            metrics.observe("prepare_seconds", name, seconds=0.1)
            for reason in CallFailure:
                metrics.add("allocation_failures_total", name, reason)
                metrics.add("prepare_failures_total", name, reason)
    count = sum(1 for _ in samples(metrics))
    assert RESOURCES * most < count <= RESOURCES * most + HOST
    assert state == "every failure" or count <= 5000


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
            assert _value(metrics, name, **shown) == (1 if one.kind == "counter" else 2)
    metrics.add("observer_dropped_total", "observer", by=7)
    assert _value(metrics, "observer_dropped_total", observer="observer") == 8


USED = {"add": "counter", "set": "gauge", "show": "gauge", "observe": "histogram"}
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
                    given = len(labels[:1] if node.func.attr == "show" else labels)
                    used.add((node.func.attr, first.value, given))
    for method, metric, labels_given in used:
        one = table[metric]
        assert one.kind == USED[method], metric
        assert labels_given == (1 if method == "show" else len(one.labels)), metric
    assert named == table.keys()
    assert len(used) > len(table) / 2


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
    metrics.show("provisioning", "udev", {("ok",): 1})
    metrics.set("labels", "udev", to=1)
    metrics.observe("event_to_list_seconds", "a/b", seconds=0.1)
    metrics.add("allocation_failures_total", "a/b", CallFailure.ERROR)
    metrics.show("devices", "a/b", device_samples("udev", 1, {"x": 1}))
    text = await metrics.render()
    assert b'"a/b"' not in text and b'"udev"' not in text


async def test_the_series_of_a_removed_observer_end(metrics: Metrics) -> None:
    for _ in range(2):
        metrics.end("observer", "audit")
    metrics.add("observer_failures_total", "audit", Failure.TIMEOUT)
    metrics.set("observer_paused", "audit", to=True)
    assert b'"audit"' not in await metrics.render()


def test_adding_a_known_resource_again_keeps_its_counters(metrics: Metrics) -> None:
    metrics.add("allocations_total", "a/b")
    metrics.begin("resource", "a/b")
    assert _value(metrics, "allocations_total", resource="a/b") == 1


def test_a_resource_that_changes_its_backend_leaves_no_series_of_the_old_one(
    metrics: Metrics,
) -> None:
    _devices(metrics, 2, {"x": 1})
    metrics.show("devices", "a/b", device_samples("gpu", 0, {}))
    assert _reasons(metrics) == {("gpu", "Healthy", ""): 0, ("gpu", "Unhealthy", ""): 0}


def _devices(metrics: Metrics, healthy: int, unhealthy: Mapping[str, int]) -> None:
    metrics.show("devices", "a/b", device_samples("udev", healthy, unhealthy))


def _reasons(metrics: Metrics) -> dict[tuple[str, str, str], float]:
    return {
        (sample.labels["backend"], sample.labels["health"], sample.labels["reason"]): sample.value
        for sample in samples(metrics)
        if sample.name == "devhost_devices" and sample.labels["resource"] == "a/b"
    }


def test_a_reason_of_unhealthy_devices_is_a_series_only_while_it_applies(metrics: Metrics) -> None:
    well = {("udev", "Healthy", ""): 3.0, ("udev", "Unhealthy", ""): 0.0}
    _devices(metrics, 3, {"port 1 is down": 2})
    assert _reasons(metrics) == {**well, ("udev", "Unhealthy", "port 1 is down"): 2}
    _devices(metrics, 3, {"port 2 is down": 1})
    assert _reasons(metrics) == {**well, ("udev", "Unhealthy", "port 2 is down"): 1}
    _devices(metrics, 3, {})
    assert _reasons(metrics) == well


def test_the_most_common_reasons_have_series_and_the_rest_is_counted(metrics: Metrics) -> None:
    _devices(metrics, 0, {f"reason {n:03}": 1 for n in range(500)} | {"the common one": 9})
    found = _reasons(metrics)
    assert len(found) == 2 + MOST_REASONS + 1
    assert found["udev", "Unhealthy", "the common one"] == 9
    assert found["udev", "Unhealthy", OTHER_REASONS] == 500 - (MOST_REASONS - 1)
    assert sum(found.values()) == 509


def test_reasons_are_the_same_with_and_without_pod_metrics() -> None:
    """A reason never names a pod (tests/host/test_host_pod_names.py)."""
    reason = "a pod has it as a, from before it was shared in this way"
    for asked in (False, True):
        metrics = Metrics()
        metrics.begin("resource", "a/b")
        held = () if asked else None
        wrong = [("device", "a/b d0", reason)]
        metrics.name_scraped(partial(Scraped, {"device": 1}, wrong, [("a/b", reason)], held=held))
        _devices(metrics, 0, {reason: 1})
        text = asyncio.run(metrics.render()).decode()
        assert text.count(f'reason="{reason}"') == 3


def test_every_kind_of_problem_exists_at_zero_and_follows_the_problems(
    metrics: Metrics,
) -> None:
    kinds = get_args(ProblemKind)
    assert [_value(metrics, "problems", kind=kind) for kind in kinds] == [0] * len(kinds)
    wrong = [
        ("backend", "gpu", 'it said "no"\n'),
        ("refused", "gpu x", "twice"),
        ("refused", "gpu x", "twice"),
    ]
    left = [("a/b", "the device is gone"), ("a/b", "the device is gone")]
    metrics.name_scraped(lambda: Scraped({"backend": 1, "refused": 2}, wrong, left))
    assert _value(metrics, "problems", kind="refused") == 2
    assert _value(metrics, "problems", kind="config") == 0
    assert _value(metrics, "devices_left", resource="a/b", reason="the device is gone") == 2
    text = asyncio.run(metrics.render()).decode()
    samples = [
        (sample.labels["kind"], sample.labels["subject"], sample.labels["reason"])
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "devhost_problem_info"
    ]
    assert samples == [("backend", "gpu", r'it said "no"\n'), wrong[1]]  # written as everywhere else
    wrong.clear()
    left.clear()
    text = asyncio.run(metrics.render()).decode()
    assert "devhost_problem_info{" not in text and "devhost_devices_left{" not in text


def test_each_entry_of_the_file_has_a_series_that_ends_with_it(metrics: Metrics) -> None:
    """This includes an entry without a device, for which there is an alert."""
    entries = [("resources[0]", "a/b", "udev", False, 0), ("resources[1]", "a/{c}", "gpu", True, 7)]
    metrics.name_scraped(lambda: Scraped(entries=entries))
    first, second = {"entry": "resources[0]", "optional": "false"}, {"resource": "a/{c}", "optional": "true"}
    assert _value(metrics, "entry_devices", resource="a/b", backend="udev", **first) == 0
    assert _value(metrics, "entry_devices", entry="resources[1]", backend="gpu", **second) == 7
    entries.pop()
    text = asyncio.run(metrics.render()).decode()
    assert text.count("devhost_entry_devices{") == 1


def test_the_file_in_force_has_a_series_that_ends_with_it(metrics: Metrics) -> None:
    files = ["ab", "cd", ""]
    metrics.name_scraped(lambda: Scraped(config=files[0]))
    for expected in ("ab", "cd"):
        assert _value(metrics, "config_info", sha256=expected) == 1
        text = asyncio.run(metrics.render()).decode()
        assert text.count("devhost_config_info{") == 1
        files.pop(0)
    assert "devhost_config_info{" not in asyncio.run(metrics.render()).decode()


def test_two_hosts_in_one_process_count_separately() -> None:
    first, second = Metrics(), Metrics()
    first.set("config_generation", to=5)
    assert _value(second, "config_generation") == 0


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


def test_every_declared_metric_is_scraped_once_and_no_other(metrics: Metrics) -> None:
    metrics.name_scraped(lambda: Scraped(shared=[("a/b", "d0", "memory", 8, 1)], held=()))
    names = [metric.name for metric in metrics.collect(used=()) if metric.name.startswith("devhost_")]
    assert names == [f"devhost_{one.name}" for one in TABLE]


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


async def test_a_scrape_lets_other_work_run_and_is_valid_for_prometheus(
    metrics: Metrics,
) -> None:
    for number in range(RESOURCES):
        metrics.begin("resource", f"a/{number}")
        metrics.show("devices", f"a/{number}", device_samples("udev", 0, {}))
    metrics.observe("allocate_seconds", "a/b", seconds=0.001)
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other_work())
    text = await metrics.render()
    task.cancel()
    assert turns >= RESOURCES * 7 // TURN
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert families["devhost_streams"].samples[0].labels == {"resource": "a/b"}
    assert families["devhost_allocate_seconds"].type == "histogram"


def test_holders_are_shown_at_each_scrape_and_end_with_the_container(
    metrics: Metrics,
) -> None:
    held: list[tuple[str, str, tuple[str, str, str] | None]] = [
        ("a/b", "d0", ("default", "train", "main")),
        ("a/b", "d1", None),
    ]
    assert "devhost_device_held" not in {metric.name for metric in metrics.collect()}
    metrics.name_scraped(lambda: Scraped(held=held))
    labels = {"namespace": "default", "pod": "train", "container": "main"}
    assert _value(metrics, "device_held", resource="a/b", device="d0", **labels) == 1
    unknown = dict.fromkeys(labels, "")
    assert _value(metrics, "device_held", resource="a/b", device="d1", **unknown) == 1
    held.clear()
    assert _value(metrics, "device_held", resource="a/b", device="d0", **labels) is None
    assert b"# TYPE devhost_device_held gauge" in asyncio.run(metrics.render())


def test_what_claims_use_of_a_device_has_series_only_where_they_share_by_amount(metrics: Metrics) -> None:
    shared = [("a/b", "d0", "memory", 2**33, 2**30), ("a/b", "d0", "cores", 100, 0)]
    metrics.name_scraped(lambda: Scraped(shared=shared))
    labels = {"resource": "a/b", "device": "d0"}
    assert _value(metrics, "device_capacity", capacity="memory", **labels) == 2**33
    assert _value(metrics, "device_capacity_used", capacity="memory", **labels) == 2**30
    assert _value(metrics, "device_capacity_used", capacity="cores", **labels) == 0
    shared.clear()
    assert b"devhost_device_capacity" not in asyncio.run(metrics.render())


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


def test_verdicts_are_counted_by_a_bounded_number_of_authors_and_reasons(metrics: Metrics) -> None:
    given = [
        ("cordon", "alice", "fan replaced", 7.0),
        ("cordon", "alice", "fan replaced", 5.0),
        ("unhealthy", "dcgm", "XID\n79", 9.0),
        ("unhealthy", "dcgm", "XID\n79", 8.0),
    ]
    metrics.name_scraped(lambda: Scraped(verdicts=given))
    alice = {"kind": "cordon", "by": "alice", "reason": "fan replaced"}
    assert _value(metrics, "verdicts", **alice) == 2
    assert _value(metrics, "verdicts_oldest_timestamp_seconds", **alice) == 5.0
    (xid,) = (one for one in samples(metrics) if one.labels.get("by") == "dcgm" and one.value == 8.0)
    assert "\n" not in xid.labels["reason"]
    given += [("cordon", "carol", f"reason {n}", 1.0) for n in range(1000)]
    found = [sample for sample in samples(metrics) if sample.name == "devhost_verdicts"]
    assert len(found) == MOST_VERDICTS + 1 and sum(sample.value for sample in found) == 1004
    others = {"kind": "cordon", "by": OTHER_AUTHORS, "reason": OTHER_REASONS}
    assert _value(metrics, "verdicts", **others) == 1000 - (MOST_VERDICTS - 2)
