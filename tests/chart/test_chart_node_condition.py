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


def rights(rendered: Any) -> list[tuple[str, list[str]]]:
    rules = rendered.only("ClusterRole")["rules"]
    assert {tuple(one["apiGroups"]) for one in rules} == {("",)}
    return [(one["resources"][0], one["verbs"]) for one in rules]


@pytest.mark.parametrize("profile", ["", *PROFILES])
def test_without_it_nothing_of_it_is_rendered(chart: Chart, profile: str) -> None:
    off = chart.render(profile=profile)
    assert off.text == chart.render({"nodeCondition": {"enabled": False}}, profile=profile).text
    assert off.text == chart.render({"nodeCondition": None}, profile=profile).text
    assert not {*off.kinds} & OBJECTS
    assert "condition" not in " ".join(off.args)


def test_the_pod_gets_an_option_and_a_token(chart: Chart, types: Types) -> None:
    off, on = chart.render(), chart.render(enabled())
    assert types.complaints(on.text) == []
    assert [word for word in on.args if word not in off.args] == ["--node-condition"]
    assert {*on.kinds} - {*off.kinds} == OBJECTS
    assert on.pod["automountServiceAccountToken"] is True
    assert on.pod["serviceAccountName"] == "devhost"
    assert on.mounts == off.mounts
    assert on.container["securityContext"] == off.container["securityContext"]


def test_it_may_get_nodes_and_patch_their_status(chart: Chart) -> None:
    assert rights(chart.render(enabled())) == [("nodes", ["get"]), ("nodes/status", ["patch"])]


def test_it_may_patch_nodes_only_to_remove_startup_taints(chart: Chart) -> None:
    on = chart.render(enabled(STARTING, "b:NoExecute"))
    assert f"--startup-taints={STARTING},b:NoExecute" in on.args
    assert rights(on) == [("nodes", ["get", "patch"]), ("nodes/status", ["patch"])]


@pytest.mark.parametrize("taints", [(), (STARTING, "b:NoExecute")])
def test_the_policy_names_the_taints_that_may_be_removed(chart: Chart, taints: tuple[str, ...]) -> None:
    """What an API server makes of it: tests/e2e/test_e2e_node_condition.py."""
    policy = chart.render(enabled(*taints)).only("ValidatingAdmissionPolicy")["spec"]
    assert policy["failurePolicy"] == "Fail"
    assert policy["matchConstraints"]["resourceRules"][0]["resources"] == ["nodes", "nodes/status"]
    assert {one["reason"] for one in policy["validations"]} == {"Forbidden"}
    last = policy["validations"][-1]["expression"]
    named = [f"(one.key == '{STARTING}')", "(one.key == 'b' && one.effect == 'NoExecute')"]
    assert [one in last for one in named] == [bool(taints)] * 2


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


def test_an_existing_service_account_is_bound_and_none_created(chart: Chart) -> None:
    on = chart.render(enabled(serviceAccountName="theirs"))
    assert "ServiceAccount" not in on.kinds
    assert on.only("ClusterRoleBinding")["subjects"][0]["name"] == "theirs"
    (condition,) = on.only("ValidatingAdmissionPolicy")["spec"]["matchConditions"]
    assert '"system:serviceaccount:devhost:theirs"' in condition["expression"]


def test_a_network_policy_lets_devhost_reach_the_api_server(chart: Chart) -> None:
    policy = {"enabled": True, "apiServerPorts": [443]}
    spec = chart.render(enabled(networkPolicy=policy)).only("NetworkPolicy")["spec"]
    assert spec["egress"] == [{"ports": [{"protocol": "TCP", "port": 443}]}]


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
