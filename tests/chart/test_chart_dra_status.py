"""The status of devices in claims: no right to it unless the configuration wants it, and then the least."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rendering import Chart, Object, Rendered, Types, comparable, overlay, refusal

DRIVER = "devhost.example.com"
NAME = "devhost.devhost.claims"


def values(status: Any = True, **dra: Any) -> dict[str, Any]:
    config = {"version": 1, "dra": {"driver": DRIVER, "status": status}, "resources": []}
    return {"dra": {"enabled": True, **dra}, "config": config}


def of_claims(rendered: Rendered) -> dict[str, Object]:
    """The objects that are about the status of claims, by kind."""
    return {one["kind"]: one for one in rendered.objects if one["metadata"]["name"] == NAME}


def test_without_the_key_nothing_of_it_is_rendered(chart: Chart) -> None:
    without = {"dra": {"enabled": True}, "config": {"dra": {"driver": DRIVER}}}
    for off in (values(status=False), without, {}):
        assert of_claims(chart.render(off)) == {}
    assert of_claims(chart.render(values()))


def test_it_may_patch_only_the_status_of_its_drivers_devices(chart: Chart, types: Types) -> None:
    rendered = chart.render(values(drivers=["other.example.com"]))
    assert types.complaints(rendered.text) == []
    found = of_claims(rendered)
    status, driver = found["ClusterRole"]["rules"]
    assert (status["resources"], status["verbs"]) == (["resourceclaims/status"], ["patch"])
    assert (driver["resources"], driver["verbs"]) == (["resourceclaims/driver"], ["associated-node:patch"])
    assert driver["resourceNames"] == [DRIVER, "other.example.com"]
    assert found["ClusterRoleBinding"]["subjects"][0]["name"] == "devhost"


def test_the_policy_admits_only_devices_of_its_drivers_in_claims_of_its_node(chart: Chart) -> None:
    """What an API server makes of it: tests/e2e/test_e2e_dra_status.py."""
    found = of_claims(chart.render(values()))
    policy = found["ValidatingAdmissionPolicy"]["spec"]
    assert found["ValidatingAdmissionPolicyBinding"]["spec"] == {
        "policyName": NAME,
        "validationActions": ["Deny"],
    }
    assert policy["failurePolicy"] == "Fail"
    assert policy["matchConstraints"]["resourceRules"][0]["resources"] == ["resourceclaims/status"]
    assert {one["reason"] for one in policy["validations"]} == {"Forbidden"}
    assert f'!(one.driver == "{DRIVER}")' in policy["validations"][-1]["expression"]


def test_with_an_existing_config_map_the_value_decides(chart: Chart) -> None:
    theirs = {"existingConfigMap": "mine"}
    off = {"dra": {"enabled": True, "driver": DRIVER}, **theirs}
    on = {"dra": {"enabled": True, "driver": DRIVER, "status": True}, **theirs}
    assert of_claims(chart.render(off)) == {}
    assert len(of_claims(chart.render(on))) == 4


def test_a_configuration_with_metadata_is_accepted(chart: Chart) -> None:
    with_metadata = values()
    with_metadata["config"]["dra"]["metadata"] = True
    assert of_claims(chart.render(with_metadata))


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
