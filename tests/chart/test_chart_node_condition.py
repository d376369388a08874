"""The condition of the node: nothing of it unless it is enabled, and then the least that devhost needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rendering import PROFILES, Chart, Refused, Types, comparable, overlay, refusal

STARTING = "example.com/starting"
OBJECTS = {
    "ClusterRole",
    "ClusterRoleBinding",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
DRA = {
    "dra": {"enabled": True},
    "config": {"version": 1, "dra": {"driver": "d.example.com"}, "resources": []},
}


def enabled(*taints: str, **more: Any) -> dict[str, Any]:
    return {"nodeCondition": {"enabled": True, "startupTaints": list(taints)}, **more}


@pytest.mark.parametrize("profile", ["", *PROFILES])
def test_without_it_nothing_of_it_is_rendered(chart: Chart, profile: str) -> None:
    off = chart.render(profile=profile)
    assert off.text == chart.render({"nodeCondition": {"enabled": False}}, profile=profile).text
    assert off.text == chart.render({"nodeCondition": None}, profile=profile).text
    assert not {*off.kinds} & OBJECTS
    assert "condition" not in " ".join(off.args)


def test_both_switches_together_have_one_account_and_two_roles(chart: Chart, types: Types) -> None:
    both = chart.render(enabled(STARTING, **DRA))
    assert types.complaints(both.text) == []
    assert both.kinds.count("ServiceAccount") == 1
    roles = [one["metadata"]["name"] for one in both.objects if one["kind"] == "ClusterRole"]
    assert sorted(roles) == ["devhost.devhost", "devhost.devhost.node"]


@pytest.mark.parametrize("kind", [*sorted(OBJECTS), "DaemonSet"])
@pytest.mark.parametrize(
    ("base", "profile"), [("base", ""), *((f"overlays/{profile}", profile) for profile in PROFILES)]
)
def test_the_component_of_kustomize_is_what_the_chart_renders(
    chart: Chart, kustomize: Path, tmp_path: Path, base: str, profile: str, kind: str
) -> None:
    theirs = overlay(kustomize, tmp_path, base, "node-condition")
    assert comparable(theirs.only(kind)) == comparable(chart.render(enabled(), profile=profile).only(kind))


def test_the_component_of_kustomize_goes_with_that_of_dra(
    chart: Chart, kustomize: Path, tmp_path: Path
) -> None:
    theirs = overlay(kustomize, tmp_path, "base", "dra", "node-condition/beside-dra")
    dra = {"dra": {"enabled": True}, "config": {"dra": {"driver": "devhost.example.com"}}}
    ours = chart.render(enabled(**dra))
    assert sorted(theirs.kinds) == sorted([*ours.kinds, "Namespace"])
    assert comparable(theirs.only("DaemonSet")) == comparable(ours.only("DaemonSet"))
    assert theirs.only("ServiceAccount")["metadata"]["name"] == theirs.pod["serviceAccountName"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nodeCondition": {"startupTaints": [STARTING]}}, "because nodeCondition.enabled is false"),
        (
            enabled(networkPolicy={"enabled": True, "apiServerPorts": []}),
            "but nodeCondition.enabled needs that: add its ports",
        ),
        (enabled("a b"), "nodeCondition"),
        (enabled("a:Never"), "nodeCondition"),
        (enabled("a'||true||'"), "nodeCondition"),
    ],
)
def test_values_that_make_no_sense_are_refused(chart: Chart, values: dict[str, Any], message: str) -> None:
    assert message in refusal(chart, values)


def test_a_cluster_whose_tokens_name_no_node_is_refused(chart: Chart) -> None:
    with pytest.raises(Refused, match=r"nodeCondition.enabled needs Kubernetes 1.30 or newer"):
        chart.render(enabled(), "--kube-version=1.29.9")
    assert chart.render(enabled(), "--kube-version=1.30.0").args
