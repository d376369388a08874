"""The text that Prometheus scrapes, read by the parser of its client library."""

from __future__ import annotations

import asyncio
import math
import os
import resource
from functools import partial

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from devhost.telemetry.exposition import CONTENT_TYPE, TURN, Metric, gathered, process, text
from devhost.telemetry.metrics import Distribution, Family, Number

BUCKETS = (0.1, 1.0, 5.0)


async def read(*metrics: Metric) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    """The result of a scrape of these metrics, by the metric's name."""
    found = text_string_to_metric_families((await text(metrics)).decode())
    return {family.name: [(one.name, one.labels, one.value) for one in family.samples] for family in found}


@pytest.mark.parametrize("value", ['back\\slash "quoted"\nnext line', "\\n", '"', "ümläut ✓", ""])
async def test_a_label_with_any_characters_is_read_back_unchanged(value: str) -> None:
    family = Family("gauge", "x", "Of one.", ("reason",), Number)
    family.labels(value).value = 1
    assert await read(family.metric()) == {"x": [("x", {"reason": value}, 1.0)]}


async def test_a_meaning_of_several_lines_is_one_line() -> None:
    family = Family("gauge", "x", 'First "line"\\\nsecond', (), Number)
    family.labels()
    (found,) = text_string_to_metric_families((await text([family.metric()])).decode())
    assert found.documentation == 'First "line"\\\nsecond'


async def test_the_text_is_what_the_client_library_writes() -> None:
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    theirs = (
        prometheus_client.Gauge("a", "A gauge.", ("z", "b"), registry=registry),
        prometheus_client.Counter("c", "A counter.", ("b",), registry=registry),
        prometheus_client.Histogram("h", "A histogram.", ("z", "b"), registry=registry, buckets=BUCKETS),
    )
    ours = (
        Family("gauge", "a", "A gauge.", ("z", "b"), Number),
        Family("counter", "c_total", "A counter.", ("b",), Number),
        Family("histogram", "h", "A histogram.", ("z", "b"), partial(Distribution, BUCKETS)),
    )
    theirs[0].labels("1", 'say "x"').set(-2.5)
    theirs[1].labels("one").inc(1.25)
    ours[0].labels("1", 'say "x"').value = -2.5
    ours[1].labels("one").value = 1.25
    for histogram in (theirs[2], ours[2]):  # type: ignore[misc]
        for value in (0.05, 0.1, 0.3, 5.0, 7.0):
            histogram.labels("1", "2").observe(value)
    assert await text([one.metric() for one in ours]) == prometheus_client.generate_latest(registry)


@given(st.lists(st.floats(0, 10), max_size=50))
def test_a_bucket_includes_its_upper_end(values: list[float]) -> None:
    series = Distribution(BUCKETS, "h", {})
    for value in values:
        series.observe(value)
    *buckets, count, total = (float(line.rpartition(" ")[2]) for line in series.text().splitlines())
    assert buckets == [sum(value <= end for value in values) for end in (*BUCKETS, math.inf)]
    assert (count, total) == (len(values), pytest.approx(sum(values)))


async def test_an_ended_series_is_not_shown_and_restarts_at_zero() -> None:
    family = Family("counter", "c_total", "Of one.", ("resource",), Number)
    for name in "abc":
        family.labels(name).value = 1
    for name in ("a", "never there", "c"):
        family.end(name)
    assert await read(family.metric()) == {"c": [("c_total", {"resource": "b"}, 1.0)]}
    assert family.labels("a").value == 0


async def test_series_may_end_and_begin_during_a_scrape() -> None:
    family = Family("gauge", "g", "Of one.", ("number",), Number)
    for number in range(3 * TURN):
        family.labels(str(number))
    scrape = asyncio.create_task(text([family.metric()]))
    await asyncio.sleep(0)
    family.end("0")
    family.labels("more")
    family.labels("even more")
    assert f'g{{number="{3 * TURN - 1}"}} 0.0\n' in (await scrape).decode()


async def test_a_metric_made_for_one_scrape_may_be_a_generator() -> None:
    made = gathered("x", "Of one.", ("kind",), (((kind,), 1) for kind in "ab"))
    assert await read(made) == {"x": [("x", {"kind": kind}, 1.0) for kind in "ab"]}


async def test_the_process_metrics_are_those_of_the_client_library() -> None:
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    theirs = {family.name: family for family in registry.collect()}
    ours = {
        family.name: family for family in text_string_to_metric_families((await text(process())).decode())
    }
    assert {name: (one.type, one.documentation) for name, one in ours.items()} == {
        name: (one.type, one.documentation) for name, one in theirs.items()
    }
    values = {name: one.samples[0].value for name, one in ours.items()}
    assert values["process_start_time_seconds"] == theirs["process_start_time_seconds"].samples[0].value
    assert values["process_max_fds"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert values["process_virtual_memory_bytes"] > values["process_resident_memory_bytes"] > 1e6
    assert 0 < values["process_open_fds"] <= values["process_max_fds"]
    assert 0 < values["process_cpu_seconds"] <= sum(os.times()[:2]) + 1


def test_the_content_type_names_the_classic_format() -> None:
    assert prometheus_client.CONTENT_TYPE_LATEST.partition(";")[0] == CONTENT_TYPE.partition(";")[0]
    assert "version=0.0.4" in CONTENT_TYPE
