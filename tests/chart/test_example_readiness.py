"""The files that keep pods away from a node until its devices are there."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest
import yaml
from rendering import DEPLOY, Chart

from devhost.dra.node_condition import CONDITION
from devhost.runtime.http import HttpServer, Listen, probe

EXAMPLES = DEPLOY / "examples" / "readiness"
SCRIPT = EXAMPLES / "check-devhost.sh"
REASON = "no list stream yet: example.com/card (not registered)"


async def ran(directory: Path, address: str) -> tuple[int | None, str]:
    """The exit code and the output of the script, where ``directory`` has all that PATH has besides bash."""
    environment = {"PATH": str(directory), "DEVHOST_ADDRESS": address}
    done = await asyncio.create_subprocess_exec(
        "/bin/bash", SCRIPT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await asyncio.wait_for(done.communicate(), 60)
    assert error == b""
    return done.returncode, out.decode().strip()


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [((True, ""), (0, "ready")), ((False, REASON), (1, f"not ready: {REASON}"))],
)
async def test_in_a_pod_the_script_reads_the_probe(
    tmp_path: Path, answer: tuple[bool, str], wanted: tuple[int, str]
) -> None:
    server = HttpServer({"/readyz": probe(lambda: answer)})
    at = await server.start(Listen("127.0.0.1", 0))
    try:
        assert await ran(tmp_path, str(at)) == wanted
    finally:
        await server.stop()


async def test_without_a_devhost_the_script_reports_unknown(tmp_path: Path) -> None:
    server = HttpServer({})
    at = await server.start(Listen("127.0.0.1", 0))
    unknown = (2, f"unknown: devhost does not answer at {at}")
    assert await ran(tmp_path, str(at)) == unknown, "it is another server"
    await server.stop()
    assert await ran(tmp_path, str(at)) == unknown


async def test_on_the_node_the_script_runs_devhost(tmp_path: Path) -> None:
    command = tmp_path / "devhost"
    command.write_text('#!/bin/bash\necho "not ready: $1"\nexit 1\n')
    command.chmod(0o755)
    assert await ran(tmp_path, "127.0.0.1:1") == (1, "not ready: ready")


def test_the_monitor_runs_the_script_for_its_condition() -> None:
    monitor = json.loads((EXAMPLES / "devhost-monitor.json").read_text())
    assert os.access(SCRIPT, os.X_OK)
    (condition,), (rule,) = monitor["conditions"], monitor["rules"]
    assert monitor["plugin"] == "custom"
    assert rule["condition"] == condition["type"] != CONDITION, "two programs would write one condition"
    assert (rule["type"], Path(rule["path"]).name) == ("permanent", SCRIPT.name)


def test_the_rule_waits_for_the_condition() -> None:
    """What its API requires: api/v1alpha1/nodereadinessrule_types.go of the controller."""
    rule = yaml.safe_load((EXAMPLES / "rule.yaml").read_text())
    assert (rule["apiVersion"], rule["kind"]) == ("readiness.node.x-k8s.io/v1alpha1", "NodeReadinessRule")
    assert set(rule["spec"]) == {"conditions", "taint", "enforcementMode", "nodeSelector"}
    assert rule["spec"]["conditions"] == [{"type": CONDITION, "requiredStatus": "True"}]
    assert re.fullmatch(r"readiness\.k8s\.io/[A-Za-z0-9][\w.-]*", rule["spec"]["taint"]["key"])
    assert rule["spec"]["taint"]["effect"] in ("NoSchedule", "PreferNoSchedule", "NoExecute")
    assert rule["spec"]["enforcementMode"] in ("bootstrap-only", "continuous")


def test_the_chart_accepts_the_values(chart: Chart) -> None:
    values = yaml.safe_load((EXAMPLES / "values.yaml").read_text())
    (taint,) = values["nodeCondition"]["startupTaints"]
    assert f"--startup-taints={taint}" in chart.render(values).args
    assert taint.startswith("startup-taint.cluster-autoscaler.kubernetes.io/")


def test_the_page_names_every_file() -> None:
    page = (EXAMPLES / "README.md").read_text()
    files = {one.name for one in EXAMPLES.iterdir()} - {"README.md"}
    assert {one for one in files if f"]({one})" in page} == files
