"""The rules and the dashboard of the chart, and the metrics of devhost."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

FILES = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "devhost" / "files"


@pytest.fixture(scope="session")
def rules_file() -> Path:
    return FILES / "alerts.yaml"


@pytest.fixture(scope="session")
def rules(rules_file: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load(rules_file.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="session")
def dashboard() -> dict[str, Any]:
    return json.loads((FILES / "grafana-dashboard.json").read_text())


@pytest.fixture(scope="session")
def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Every panel, including those in collapsed rows."""
    return [inner for panel in dashboard["panels"] for inner in (panel, *panel.get("panels", ()))]


@pytest.fixture(scope="session")
def queries(panels: list[dict[str, Any]], dashboard: dict[str, Any]) -> dict[str, str]:
    """The queries of the dashboard, by place; variables of Grafana are replaced by values."""
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in panels
        for target in panel.get("targets", ())
    }
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric = re.fullmatch(r"label_values\((.+), *\w+\)", variable["query"]["query"])
            assert metric, f"variable {variable['name']} is no list of labels"
            found[f"variable {variable['name']}"] = metric[1]
    return {where: _filled(expression) for where, expression in found.items()}


def _filled(expression: str) -> str:
    return expression.replace("$__rate_interval", "5m").replace("$node", ".*").replace("$resource", ".*")
