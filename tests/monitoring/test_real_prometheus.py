"""A real Prometheus scrapes a real devhost, and runs all queries of rules and dashboard."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.command import DEVHOST
from kit.drop_in import drop_in
from scraper import Ask, needs_prometheus, scraping, until

pytestmark = [needs_prometheus, pytest.mark.timeout(300)]

TOY = drop_in("""
class Toy(Plain):
    name = "toy"
    attributes = {"model": Attribute(str, "model", "x100")}

    def discover(self):
        for name in ("one", "two"):
            yield Device(id=name, attributes={"model": "x"}, claims=frozenset({"node:/dev/" + name}))
        yield Device(id="ill", attributes={"model": "x"}, health=unhealthy("it is broken"))
""")

SHOWN = {
    "Nodes A",
    "Resources A",
    "Healthy A",
    "Unhealthy A",
    "Not served A",  # there is no kubelet
    "Problems A",
    "Problems now A",
    "Problems by kind A",
    "Unhealthy, by reason A",
    "List streams A",
    "Degraded A",
    "Time of discovery A",
    "Configuration A",
    "Configuration B",
    "Configuration C",
    "Versions A",
    "Memory A",
    "Open files and starts A",
    "variable node",
    "variable resource",
}
"""What has data while a devhost runs without a kubelet and with a device that is broken."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the metrics of a devhost with three devices."""
    home = tmp_path_factory.mktemp("devhost")
    (home / "backends").mkdir()
    (home / "backends" / "toy.py").write_text(TOY)
    config = home / "devhost.yaml"
    config.write_text(
        "version: 1\nbackendPaths: [backends]\nresources: [{name: example.com/toy, backend: toy}]\n"
    )
    command = [*DEVHOST, "run", "--config", str(config), "--root", str(home)]
    command += ["--kubelet-dir", str(home / "kubelet"), "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "DEVHOST_RUNTIME_DIR": str(home / "run")}
    with (home / "log").open("w") as log, subprocess.Popen(command, stderr=log, env=environment) as process:
        try:
            said = until(
                lambda: re.search(r"listening.* address=(\S+)", (home / "log").read_text()), "listening"
            )
            yield said[1].removeprefix("http://")
        finally:
            process.kill()


@pytest.fixture(scope="module")
def ask(address: str, rules_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Queries a Prometheus that has scraped devhost several times. It evaluates the rules as well."""
    job = {
        "job_name": "devhost",
        "static_configs": [{"targets": [address], "labels": {"node": "n1"}}],
    }
    with scraping(tmp_path_factory.mktemp("prometheus"), [job], [rules_file]) as ask:
        until(lambda: ask('count_over_time(devhost_problem_info{kind="kubelet"}[5m]) > 3'), "four scrapes")
        yield ask


def test_prometheus_accepts_every_expression_of_the_rules(ask, rules):
    for rule in rules:
        ask(rule["expr"])


def test_every_query_of_the_dashboard_returns_data(ask, queries):
    assert queries.keys() >= SHOWN
    assert {where for where in SHOWN if not ask(queries[where])} == set()
    for where in queries.keys() - SHOWN:
        ask(queries[where])


def test_problems_have_the_same_text_in_prometheus(ask):
    [ill] = ask('devhost_problem_info{kind="device"}')
    assert ill["metric"]["subject"] == "example.com/toy ill"
    assert ill["metric"]["reason"] == "it is broken"
    [counted] = ask('devhost_devices{reason="it is broken"}')
    assert counted["value"][1] == "1"


def test_the_alert_is_pending_for_its_time(ask):
    def pending() -> set[str]:
        return {alert["metric"]["alertname"] for alert in ask('ALERTS{alertstate="pending"}')}

    expected = {
        "DevhostDevicesUnhealthy",
        "DevhostKubeletAbsent",
        "DevhostResourceNotServed",
        "DevhostProblems",
    }
    until(lambda: pending() >= expected, "alerts that wait")
