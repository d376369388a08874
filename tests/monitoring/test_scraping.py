"""The series of devhost in a real Prometheus that is configured as in the guide."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from scraper import Ask, needs_prometheus, scraping, until

from devhost.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "deploy" / "monitoring" / "README.md"

TARGET = {
    "node": "n1",
    "namespace": "devhost",
    "pod": "devhost-abcde",
    "container": "devhost",
    "endpoint": "metrics",
    "service": "devhost",
}
"""Labels that the chart's monitors, and the operator by itself, put on devhost."""

DOUBLY = {"CPU A", "Memory A", "Open files and starts A", "Open files and starts B"}
"""What the dashboard asks of the process, whose metrics others have too."""


def guide() -> list[dict[str, object]]:
    """The jobs of the guide."""
    (text,) = re.findall(r"```yaml fragment\n# prometheus.yml\n(.*?)```", README.read_text(), re.DOTALL)
    return list(yaml.safe_load(text)["scrape_configs"])


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    """The metrics of a devhost with two held devices, one of them with an unknown holder."""
    metrics = Metrics()
    metrics.begin("resource", "example.com/r")
    held = [
        (("example.com/r", "one", "team", "train", "main"), 1),
        (("example.com/r", "two", "", "", ""), 1),
    ]
    metrics.name_gauges(lambda: [("device_held", held)])
    return metrics


@pytest.fixture(scope="module")
def address(metrics: Metrics) -> Iterator[str]:
    """The address of these metrics."""

    class Told(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = asyncio.run(metrics.render())
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Told) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def ask(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Queries a Prometheus in which two jobs as in the guide scrape one devhost."""
    honored = {"honor_labels": all(job.get("honor_labels") is True for job in guide())}
    found = [{"targets": [address], "labels": TARGET}]
    jobs = [{"job_name": name, "static_configs": found} | honored for name in ("devhost", "devhost-again")]
    with scraping(tmp_path_factory.mktemp("prometheus"), jobs) as ask:
        until(
            lambda: len(ask("count_over_time(devhost_build_info[5m]) > 3")) == 2, "four scrapes by each job"
        )
        yield ask


def test_only_holder_labels_collide_with_target_labels(metrics: Metrics) -> None:
    """Therefore keeping the labels of devhost affects no other metric."""
    clashing = {
        line.partition("{")[0]
        for line in asyncio.run(metrics.render()).decode().splitlines()
        for label in re.findall(r'[{,](\w+)="', line)
        if label in TARGET.keys() | {"job", "instance"}
    }
    assert clashing == {"devhost_device_held"}


@needs_prometheus
def test_the_pod_label_is_that_of_the_holder_not_of_devhost(ask: Ask) -> None:
    held = ask('devhost_device_held{job="devhost",device="one"}')
    assert [
        {key: one["metric"][key] for key in ("namespace", "pod", "container", "node")} for one in held
    ] == [{"namespace": "team", "pod": "train", "container": "main", "node": "n1"}]


@needs_prometheus
def test_an_unknown_holder_does_not_become_devhost(ask: Ask) -> None:
    (held,) = ask('devhost_device_held{job="devhost",device="two"}')
    assert not {"namespace", "pod", "container"} & held["metric"].keys()


@needs_prometheus
def test_every_other_metric_has_the_labels_of_the_devhost_pod(ask: Ask) -> None:
    (build,) = ask('devhost_build_info{job="devhost"}')
    assert build["metric"].items() >= TARGET.items()


@needs_prometheus
def test_the_dashboard_shows_a_process_scraped_by_two_jobs_once(ask: Ask, queries: dict[str, str]) -> None:
    asked = {where: query for where, query in queries.items() if "process_" in query}
    assert asked.keys() == DOUBLY
    for where, query in asked.items():
        (found,) = ask(query)
        assert found["metric"].keys() == {"node", "instance"}, where
    [memory] = ask(asked["Memory A"])
    highest = max(float(one["value"][1]) for one in ask("max_over_time(process_resident_memory_bytes[5m])"))
    assert float(memory["value"][1]) <= highest, "twice what the process has"
