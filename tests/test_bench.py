"""The parts of the benches that only compute, and that docs/performance.md speaks of every measure."""
# ruff: noqa: E402 - the benches are run from the repository: they belong to no package to import from

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from devhost_testing.kubelet import OtherPlugin

from devhost.backend import Backend
from devhost.config.loader import load
from devhost.discovery.catalog import flaws
from devhost.discovery.validation import flaw_of

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from bench import __main__ as program
from bench.chart import Series, draw
from bench.measure import Measure, Result, Statistic, number, percentile
from bench.measures import MEASURES
from bench.process import cpu_seconds, resident, resource, synthetic
from bench.recorder import recording
from bench.table import cpu_model, machine, render

LATENCY = Measure("latency", "how long it takes", "ms", {Statistic.P50: 6, Statistic.P99: 20})
SIZE = Measure("size", "how big it is", "MB", {Statistic.MAX: 48}, (Statistic.MAX,))


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([3.0, 1.0, 2.0, 4.0], 50, 2.0),
        ([float(n) for n in range(1, 101)], 99, 99.0),
        ([float(n) for n in range(1, 102)], 99, 100.0),
        ([float(n) for n in range(1, 101)], 100, 100.0),
        ([1.0, 2.0], 0.1, 1.0),
    ],
)
def test_a_percentile_is_a_sample_by_nearest_rank(
    samples: list[float], percent: float, expected: float
) -> None:
    assert percentile(samples, percent) == expected


@pytest.mark.parametrize(("samples", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_a_percentile_of_nothing_is_refused(samples: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(samples, percent)


def test_a_limit_is_met_when_it_is_reached_and_missed_above_it() -> None:
    assert Result(SIZE, (48.0,)).verdict == "met"
    assert Result(SIZE, (48.1,)).verdict == "MISSED"
    assert Result(LATENCY, (1.0, 1.0, 20.0)).verdict == "met"
    assert Result(LATENCY, (1.0, 1.0, 20.1)).verdict == "MISSED"


def test_a_wrong_outcome_is_a_missed_target_however_good_the_figures() -> None:
    result = Result(SIZE, (1.0,), wrong="it lost a device")
    assert result.missed
    assert result.verdict == "MISSED: it lost a device"


def test_what_was_skipped_or_has_no_limit_is_never_missed() -> None:
    assert Result(SIZE, skipped="needs root").verdict == "skipped: needs root"
    assert not Result(SIZE, skipped="needs root").missed
    assert Result(Measure("plain", "a figure", "ms"), (5.0,)).verdict == "-"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.0123, "0.0123"), (3.456, "3.46"), (47.06, "47.1"), (1234.5, "1234")]
)
def test_figures_have_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_the_table_has_one_aligned_line_for_each_result() -> None:
    lines = render([Result(LATENCY, (2.0, 4.0)), Result(SIZE, (50.0,), note="at rest")]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split()[1:8:2] == ["measure", "target", "result", "verdict"]
    assert "p50 ≤ 6 ms, p99 ≤ 20 ms" in lines[2]
    assert "p50 2.00, p99 4.00, max 4.00 ms; n=2" in lines[2]
    assert "50.0 MB; at rest" in lines[3]
    assert lines[3].endswith("| MISSED  |")


def test_an_empty_table_is_only_its_head() -> None:
    assert len(render([]).splitlines()) == 2


def test_the_kernels_files_are_read_as_documented() -> None:
    assert resident("Name:\tdevhost\nVmRSS:\t   46875 kB\n") == 48.0
    stat = "42 (a ) b (c)) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 9 0 100 1 1"
    assert cpu_seconds(stat, 100) == 2.0
    assert cpu_model("processor\t: 0\nmodel name\t: Fast  CPU @ 3GHz\n") == "Fast CPU @ 3GHz"
    assert cpu_model("processor\t: 0\nBogoMIPS\t: 50.00\n") == ""


def test_the_machine_is_described_in_one_line() -> None:
    line = machine(0.25)
    assert "\n" not in line
    for word in ("cores", "Linux", "Python", "grpcio", "UTC, load before: 0.25"):
        assert word in line


def test_the_synthetic_configuration_is_sound_and_deals_out_its_devices(tmp_path: Path) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text(synthetic(tmp_path, resources=3, devices=2, replicas=4))
    loaded = load(file)
    assert [entry.name for entry in loaded.settings.resources] == [resource(n) for n in range(3)]
    kind = loaded.catalog.get("synthetic")
    assert kind is not None
    assert issubclass(kind, Backend)
    assert not list(flaws(kind))
    devices = list(kind(loaded.settings.backends["synthetic"], None).discover())
    assert len(devices) == 6
    assert [flaw_of(device, kind.attributes, kind.claim_kinds) for device in devices] == [""] * 6


async def test_why_a_stream_fails_is_printed_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plugins = [OtherPlugin(tmp_path, f"example.com/{name}", ["d0"], f"{name}.sock") for name in "ab"]
    printed = ""
    async with recording(tmp_path) as recorder, asyncio.timeout(60):
        for plugin in plugins:
            await plugin.serve()
            await plugin.register()
        await recorder.all_listed(2, 1)
        for plugin in plugins:
            await plugin.stop()
        while "the stream ended: " not in printed:
            await asyncio.sleep(0.05)
            printed += capfd.readouterr().err
    printed += capfd.readouterr().err
    assert printed.count("the stream ended: ") == 1


def test_measures_have_unique_names() -> None:
    assert len({measure.name for measure in MEASURES}) == len(MEASURES)
    assert len({measure.title for measure in MEASURES}) == len(MEASURES)


def test_the_performance_page_names_every_measure_and_its_target() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for measure in MEASURES:
        what, _, backend = measure.title.partition(", beside a backend ")  # a column and a row of a table
        assert what in page
        assert backend in page
        assert measure.target in page


def _bench(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure() -> AsyncIterator[Result]:
        yield result

    monkeypatch.setattr(program, "BENCHES", {"one": measure})


def test_a_missed_target_is_an_error_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _bench(Result(MEASURES[0], (99.0,)), monkeypatch)
    assert program.main([]) == 0
    assert program.main(["--strict"]) == 1
    assert "MISSED" in capsys.readouterr().out


def test_a_bench_that_breaks_is_named_and_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure() -> AsyncIterator[Result]:
        yield Result(MEASURES[0], (0.1,))
        raise RuntimeError("devhost ended with 3")

    monkeypatch.setattr(program, "BENCHES", {"one": measure})
    assert program.main([]) == 1
    output = capsys.readouterr()
    assert "met" in output.out
    assert "failed: one: RuntimeError: devhost ended with 3" in output.err


def test_a_chart_shows_every_size_within_its_area() -> None:
    few = Series("devices", "ms", [(10, 2.5), (1000, 9.0), (30_000, 120.0)])
    root = ElementTree.fromstring(draw([few, Series("resources", "MB", [(1, 45.0), (200, 46.0)])]))
    assert (root.get("role"), root.get("aria-label")) == ("img", "ms by devices; MB by resources")
    dots = root.findall(".//{*}circle")
    assert [one.findtext("{*}title") for one in dots] == [
        "10: 2.5",
        "1000: 9",
        "30000: 120",
        "1: 45",
        "200: 46",
    ]
    places = [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in dots]
    assert places[0] < places[1] < places[2] < places[3]
    assert places[0][1] > places[1][1] > places[2][1]
    assert all(0 < x < float(root.attrib["width"]) for x, _ in places)
    assert all(0 < y < float(root.attrib["height"]) for _, y in places)
