"""Dynamic Resource Allocation: nothing of it unless it is enabled, and then the least that devhost needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import (
    DEPLOY,
    PROFILES,
    ROOT,
    Chart,
    Object,
    Refused,
    Rendered,
    Types,
    comparable,
    overlay,
    refusal,
)

TUTORIAL = (ROOT / "docs" / "dra.md").read_text(encoding="utf-8")
DRIVER = "devhost.example.com"
SERIAL = {"name": "example.com/serial", "backend": "udev", "where": {"subsystem": "tty"}, "serve": "dra"}
OBJECTS = [
    "ClusterRole",
    "ClusterRoleBinding",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
]


def enabled(**more: Any) -> dict[str, Any]:
    """Values of a release with one resource that is served by DRA."""
    config = {"version": 1, "dra": {"driver": DRIVER}, "resources": [SERIAL]}
    return {"dra": {"enabled": True}, "config": config, **more}


@pytest.mark.parametrize("profile", ["", *PROFILES])
def test_without_dra_there_is_no_token_no_role_and_no_access(chart: Chart, profile: str) -> None:
    rendered = chart.render(profile=profile)
    assert rendered.text == chart.render({"dra": {"enabled": False}}, profile=profile).text
    assert not {*rendered.kinds} & {*OBJECTS}
    assert rendered.pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in rendered.pod
    assert not [path for path in rendered.mounts if path.startswith("/var/lib/kubelet/plugins")]
    assert not [word for word in rendered.args if "plugins" in word]


@pytest.mark.parametrize("profile", ["", *PROFILES])
def test_dra_adds_to_the_pod_only_a_token_and_three_directories(chart: Chart, profile: str) -> None:
    def without_dra(rendered: Rendered) -> Object:
        pod = dict(rendered.pod)
        container = dict(rendered.container)
        added = ("cdi", "dra", "plugins-registry")
        container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] not in added]
        pod["volumes"] = [one for one in pod["volumes"] if one["name"] not in added]
        pod["containers"] = [container]
        del pod["automountServiceAccountToken"]
        pod.pop("serviceAccountName", None)
        return pod

    off = chart.render(profile=profile)
    on = chart.render({"dra": {"enabled": True}, "config": {"dra": {"driver": DRIVER}}}, profile=profile)
    assert without_dra(on) == without_dra(off)
    assert sorted({*on.kinds} - {*off.kinds}) == OBJECTS


def test_the_policy_admits_only_slices_of_the_pods_node_and_driver(chart: Chart) -> None:
    """What an API server makes of it: tests/e2e/test_e2e_deploy_manifests.py."""
    policy = chart.render(enabled()).only("ValidatingAdmissionPolicy")["spec"]
    expressions = " ".join(one["expression"] for one in policy["validations"])
    assert "variables.slice.spec.nodeName == variables.node" in expressions
    assert f'variables.slice.spec.driver == "{DRIVER}"' in expressions


def test_two_releases_of_one_name_have_different_cluster_objects(chart: Chart) -> None:
    def named(*arguments: str) -> set[str]:
        objects = chart.render(enabled(), *arguments).objects
        return {one["metadata"]["name"] for one in objects if "namespace" not in one["metadata"]}

    first, second = named(), named("--namespace=other")
    assert first == {"devhost.devhost"}
    assert second == {"devhost.other"}


def test_the_driver_of_a_configuration_that_the_chart_cannot_read_is_a_value(chart: Chart) -> None:
    values = {"existingConfigMap": "theirs", "dra": {"enabled": True, "driver": DRIVER}}
    rendered = chart.render(values)
    assert f"/var/lib/kubelet/plugins/{DRIVER}" in rendered.mounts
    assert "/var/run/cdi" in rendered.mounts


CONFIG: dict[str, Any] = {"version": 1, "resources": []}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dra": {"enabled": True}, "config": CONFIG}, "dra.enabled is true, but config has no dra.driver"),
    (
        {"dra": {"enabled": True, "driver": DRIVER}, "config": CONFIG},
        f"dra.driver is {DRIVER}, but config has no dra.driver",
    ),
    (
        {"dra": {"enabled": True, "driver": "a.b"}, "config": {**CONFIG, "dra": {"driver": "c.d"}}},
        "dra.driver is a.b, but config.dra.driver is c.d: omit the former",
    ),
    ({"config": {**CONFIG, "dra": {"driver": DRIVER}}}, "config has dra, but dra.enabled is false"),
    (
        {"dra": {"enabled": True}, "existingConfigMap": "theirs"},
        "dra.driver is missing: set it to dra.driver of the configuration in theirs",
    ),
    (enabled(host={"cdi": False}), "dra.enabled needs the CDI directory, but host.cdi is false"),
    (
        enabled(networkPolicy={"enabled": True, "apiServerPorts": []}),
        "networkPolicy.apiServerPorts is empty, so devhost cannot reach the API server",
    ),
    (
        {
            "dra": {"enabled": True},
            "config": "version: 1\nresources: []\ndra: {driver: Devhost.example.com}\n",
        },
        'config.dra.driver "Devhost.example.com" is not a DNS subdomain',
    ),
    (
        {"dra": {"enabled": True}, "config": f"version: 1\nresources: []\ndra: {{driver: {'a' * 64}}}\n"},
        "has 64 characters, and Kubernetes allows 63",
    ),
    (
        {"dra": {"enabled": True}, "config": "version: 1\nresources: []\ndra: yes\n"},
        "config.dra must be a map",
    ),
    (
        {"dra": {"enabled": True}, "config": "version: 1\nresources: []\ndra: {driver: 1}\n"},
        "config.dra.driver must be text, not a number",
    ),
    (
        {
            "dra": {"enabled": True},
            "config": "version: 1\ndra: {driver: a.b}\n"
            "resources: [{name: a.b/c, backend: udev, dra: {driver: A.b}}]\n",
        },
        'config.dra.driver "A.b" is not a DNS subdomain',
    ),
    (
        {
            "dra": {"enabled": True},
            "config": "version: 1\ndra: {driver: a.b}\nresources: [{name: a.b/c, backend: udev, dra: 1}]\n",
        },
        "config.resources[0].dra must be a map",
    ),
    (
        enabled(kubelet={"root": f"/{'k' * 80}"}),
        "and Linux allows 107: choose a shorter dra.driver",
    ),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=lambda one: one if isinstance(one, str) else "")
def test_values_that_disagree_are_refused_in_one_line(
    chart: Chart, values: dict[str, Any], message: str
) -> None:
    said = refusal(chart, values)
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("version", ["1.33.9", "1.25.0"])
def test_a_cluster_without_the_stable_api_is_refused(chart: Chart, version: str) -> None:
    with pytest.raises(Refused) as caught:
        chart.render(enabled(), f"--kube-version={version}")
    assert f"dra.enabled needs Kubernetes 1.34 or newer, and this cluster has v{version}" in str(caught.value)


@pytest.mark.parametrize("version", ["1.34.0", "1.34.1-eks-1", "1.37.0"])
def test_a_cluster_with_the_stable_api_is_accepted(chart: Chart, version: str) -> None:
    assert chart.render(enabled(), f"--kube-version={version}").pod["automountServiceAccountToken"] is True


@pytest.mark.parametrize("kind", [*OBJECTS, "DaemonSet"])
@pytest.mark.parametrize(
    ("base", "profile"), [("base", ""), *((f"overlays/{profile}", profile) for profile in PROFILES)]
)
def test_the_component_of_kustomize_is_what_the_chart_renders(
    chart: Chart, kustomize: Path, tmp_path: Path, base: str, profile: str, kind: str
) -> None:
    theirs = overlay(kustomize, tmp_path, base, "dra")
    values = {"dra": {"enabled": True}, "config": {"dra": {"driver": DRIVER}}}
    assert comparable(theirs.only(kind)) == comparable(chart.render(values, profile=profile).only(kind))


def shown(name: str) -> str:
    """A file that the tutorial lets its reader write."""
    (found,) = re.findall(rf"<!-- file: {name} -->\n```yaml(?: fragment)?\n(.*?)```", TUTORIAL, re.DOTALL)
    return str(found)


def test_the_values_of_the_tutorial_are_accepted(chart: Chart, tmp_path: Path) -> None:
    config = tmp_path / "devhost.yaml"
    for serve in ("plugin", "dra"):
        config.write_text(shown("devhost.yaml").replace("serve: plugin", f"serve: {serve}"))
        rendered = chart.render({}, "--set=dra.enabled=true", f"--set-file=config={config}")
        assert f"/var/lib/kubelet/plugins/{DRIVER}" in rendered.mounts


def test_kubernetes_knows_every_field_of_the_tutorials_claim(types: Types) -> None:
    text = shown("pod.yaml")
    assert types.complaints(text) == []
    assert types.complaints(text.replace("deviceClassName", "deviceClass")) != [], "the types are looked at"


def test_the_pod_of_the_tutorial_names_its_claim_and_the_class_of_the_resource() -> None:
    template, pod = yaml.safe_load_all(shown("pod.yaml"))
    (claim,) = pod["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert pod["spec"]["containers"][0]["resources"] == {"claims": [{"name": claim["name"]}]}
    (entry,) = yaml.safe_load(shown("devhost.yaml"))["resources"]
    domain, _, name = entry["name"].partition("/")
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == f"{name}.{domain}"


def test_the_tutorial_quotes_the_refusal_of_the_chart(chart: Chart) -> None:
    (quoted,) = re.findall(r"\| Helm: `([^`]+)`", TUTORIAL)
    assert quoted in refusal(chart, {"config": {**CONFIG, "dra": {"driver": DRIVER}}})


def test_the_table_of_rights_is_that_of_the_role(chart: Chart) -> None:
    page = (DEPLOY / "README.md").read_text()
    rows = dict(re.findall(r"(?m)^\| `(resourceslices|resourceclaims|nodes)` \| ([a-z, ]+) \|", page))
    rules = chart.render(enabled()).only("ClusterRole")["rules"]
    assert rows == {one["resources"][0]: ", ".join(one["verbs"]) for one in rules}
