"""Metrics and readiness, the check of the directory, and processes."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest
import scraped_series
from conformance_node import OTHER, OTHER_LINE, TOY, TOY_LINE, WAIT
from devhost_testing.kubelet import Point, fail

import devhost
from devhost.backend.errors import EnvironmentFailure
from devhost.kubelet.kubelet_socket import check_directory
from devhost.telemetry.metrics import Metrics


@pytest.mark.conformance(58)
async def test_metrics_and_readiness_follow_registrations_streams_lists_and_allocations(
    rig, kubelet, hurried
):
    metrics = Metrics()

    def value(name: str, resource: str = TOY, **labels: str) -> float | None:
        return scraped_series.value(metrics, f"devhost_{name}", resource=resource, **labels)

    kubelet.faults.inject(Point.REGISTER, fail("not yet"), TOY, times=None)
    async with rig.running(TOY_LINE, OTHER_LINE, metrics=metrics) as host:
        await rig.until(lambda: value("registration_failures_total"), WAIT)
        await rig.until(lambda: value("streams", OTHER) == 1, WAIT)
        ready, why = host.ready()
        assert not ready
        assert TOY in why
        assert OTHER not in why
        kubelet.faults.clear()
        await rig.until(lambda: host.ready() == (True, ""), WAIT)
        healthy = {"backend": "toy", "health": "Healthy", "reason": ""}
        await rig.until(lambda: value("devices", **healthy) == 2, WAIT)
        await rig.until(lambda: value("registrations_total") == 1, WAIT)  # after the first list, perhaps
        assert value("streams") == 1
        await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 2, WAIT)
        await kubelet.admit("pod", "main", TOY, 1)
        assert (value("allocations_total"), value("allocate_seconds_count")) == (1, 1)
        await kubelet.stop()
        await rig.until(lambda: not host.ready()[0], WAIT)
        await rig.until(lambda: value("streams") == 0, WAIT)


@pytest.mark.field_failure("F23")
def test_a_directory_without_write_permission_is_refused_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(EnvironmentFailure, match="run devhost as root"):
        check_directory(tmp_path)


@pytest.mark.field_failure("F25")
def test_processes_are_started_in_one_module_only():
    """gRPC's threads and locks do not survive a fork; subprocess executes a program right after the fork."""
    found = []
    for file in Path(devhost.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if not _MENTIONED.search(text):
            continue  # parsing takes long
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Attribute):
                names = [node.attr] if node.attr in ("fork", "forkpty", "posix_spawn", "system") else []
            else:
                continue
            found += [(file.name, name) for name in names if name in _PROCESSES]
    assert found == [("process.py", "subprocess")]


_MENTIONED = re.compile(r"\b(subprocess|multiprocessing|pty|fork|forkpty|posix_spawn)\b|\.system\b")
_PROCESSES = {"subprocess", "multiprocessing", "pty", "fork", "forkpty", "posix_spawn", "system"}
