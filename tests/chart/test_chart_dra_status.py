"""The status of devices in claims: no right to it unless the configuration wants it, and then the least."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rendering import Chart, Object, Rendered, comparable, overlay, refusal

DRIVER = "devhost.example.com"
NAME = "devhost.devhost.claims"


def values(status: Any = True, **dra: Any) -> dict[str, Any]:
    config = {"version": 1, "dra": {"driver": DRIVER, "status": status}, "resources": []}
    return {"dra": {"enabled": True, **dra}, "config": config}


def of_claims(rendered: Rendered) -> dict[str, Object]:
    """The objects that are about the status of claims, by kind."""
    return {one["kind"]: one for one in rendered.objects if one["metadata"]["name"] == NAME}


def test_with_an_existing_config_map_the_value_decides(chart: Chart) -> None:
    theirs = {"existingConfigMap": "mine"}
    off = {"dra": {"enabled": True, "driver": DRIVER}, **theirs}
    on = {"dra": {"enabled": True, "driver": DRIVER, "status": True}, **theirs}
    assert of_claims(chart.render(off)) == {}
    assert len(of_claims(chart.render(on))) == 4


def test_a_status_that_is_no_switch_is_refused(chart: Chart) -> None:
    assert "status" in refusal(chart, values(status="yes"))
    text = {
        "dra": {"enabled": True},
        "config": f"version: 1\nresources: []\ndra: {{driver: {DRIVER}, status: [1]}}",
    }
    assert "config.dra.status" in refusal(chart, text)


@pytest.mark.parametrize(
    "kind",
    ["ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"],
)
def test_the_component_of_kustomize_is_what_the_chart_renders(
    chart: Chart, kustomize: Path, tmp_path: Path, kind: str
) -> None:
    theirs = overlay(kustomize, tmp_path, "base", "dra", "dra-status")
    assert comparable(of_claims(theirs)[kind]) == comparable(of_claims(chart.render(values()))[kind])
