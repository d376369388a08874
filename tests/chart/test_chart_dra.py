"""Dynamic Resource Allocation: nothing of it unless it is enabled, and then the least that devhost needs."""

from __future__ import annotations

import json
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
NODE_NAME = "authentication.kubernetes.io/node-name"
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


def writable(rendered: Rendered) -> set[str]:
    return {path for path, mount in rendered.mounts.items() if not mount.get("readOnly")}


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


def test_devhost_may_read_claims_and_its_node_and_write_slices(chart: Chart, types: Types) -> None:
    rendered = chart.render(enabled())
    assert types.complaints(rendered.text) == []
    rights = {
        (group, resource): set(rule["verbs"])
        for rule in rendered.only("ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert rights == {
        ("resource.k8s.io", "resourceslices"): {"get", "list", "watch", "create", "update", "delete"},
        ("resource.k8s.io", "resourceclaims"): {"get", "list"},
        ("", "nodes"): {"get"},
    }
    assert rendered.only("ClusterRoleBinding")["subjects"] == [
        {"kind": "ServiceAccount", "name": "devhost", "namespace": "devhost"}
    ]
    assert rendered.only("ServiceAccount")["automountServiceAccountToken"] is False, "other pods get no token"
    assert rendered.pod["automountServiceAccountToken"] is True
    assert rendered.pod["serviceAccountName"] == "devhost"


def test_the_container_gets_the_same_privileges_as_without(chart: Chart) -> None:
    assert chart.render(enabled()).container["securityContext"] == chart.render().container["securityContext"]


def test_the_policy_admits_only_slices_of_the_pods_node_and_driver(chart: Chart) -> None:
    """What an API server makes of it: tests/e2e/test_e2e_deploy_manifests.py."""
    rendered = chart.render(enabled())
    policy = rendered.only("ValidatingAdmissionPolicy")
    binding = rendered.only("ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert policy["spec"]["matchConstraints"]["resourceRules"] == [
        {
            "apiGroups": ["resource.k8s.io"],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "resources": ["resourceslices"],
        }
    ]
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == 'request.userInfo.username == "system:serviceaccount:devhost:devhost"'
    node = next(one["expression"] for one in policy["spec"]["variables"] if one["name"] == "node")
    assert NODE_NAME in node
    reasons = {one["reason"] for one in policy["spec"]["validations"]}
    assert reasons == {"Forbidden"}, "Invalid would mean that the slice itself is wrong"
    expressions = " ".join(one["expression"] for one in policy["spec"]["validations"])
    assert "variables.slice.spec.nodeName == variables.node" in expressions
    assert f'variables.slice.spec.driver == "{DRIVER}"' in expressions


def test_an_existing_service_account_is_bound_and_none_created(chart: Chart) -> None:
    rendered = chart.render(enabled(serviceAccountName="theirs"))
    assert "ServiceAccount" not in rendered.kinds
    assert rendered.pod["serviceAccountName"] == "theirs"
    assert rendered.only("ClusterRoleBinding")["subjects"][0]["name"] == "theirs"
    (condition,) = rendered.only("ValidatingAdmissionPolicy")["spec"]["matchConditions"]
    assert '"system:serviceaccount:devhost:theirs"' in condition["expression"]


def test_two_releases_of_one_name_have_different_cluster_objects(chart: Chart) -> None:
    def named(*arguments: str) -> set[str]:
        objects = chart.render(enabled(), *arguments).objects
        return {one["metadata"]["name"] for one in objects if "namespace" not in one["metadata"]}

    first, second = named(), named("--namespace=other")
    assert first == {"devhost.devhost"}
    assert second == {"devhost.other"}


@pytest.mark.parametrize("root", ["/var/lib/kubelet", "/var/lib/kubelet/"])
def test_the_kubelets_directories_have_its_paths_in_the_container(chart: Chart, root: str) -> None:
    rendered = chart.render(enabled(kubelet={"root": root}))
    registry = rendered.mounts["/var/lib/kubelet/plugins_registry"]
    sockets = rendered.mounts[f"/var/lib/kubelet/plugins/{DRIVER}"]
    assert registry["hostPath"] == {"path": "/var/lib/kubelet/plugins_registry", "type": "Directory"}
    assert sockets["hostPath"] == {
        "path": f"/var/lib/kubelet/plugins/{DRIVER}",
        "type": "DirectoryOrCreate",
    }
    assert {registry["mountPath"], sockets["mountPath"], "/var/run/cdi"} <= writable(rendered)
    assert not [word for word in rendered.args if "plugins" in word]
    names = {one["name"]: one for one in rendered.container["env"]}
    assert names["NODE_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_another_kubelets_directories_are_named_in_the_arguments(chart: Chart) -> None:
    root = "/var/lib/k0s/kubelet"
    rendered = chart.render(enabled(kubelet={"root": root}))
    assert {f"{root}/plugins_registry", f"{root}/plugins/{DRIVER}"} <= writable(rendered)
    assert {f"--plugins-registry={root}/plugins_registry", f"--plugins-dir={root}/plugins"} <= {
        *rendered.args
    }


def test_the_driver_of_a_configuration_that_the_chart_cannot_read_is_a_value(chart: Chart) -> None:
    values = {"existingConfigMap": "theirs", "dra": {"enabled": True, "driver": DRIVER}}
    rendered = chart.render(values)
    assert f"/var/lib/kubelet/plugins/{DRIVER}" in rendered.mounts
    assert "/var/run/cdi" in rendered.mounts


def several(**dra: Any) -> dict[str, Any]:
    """Values with a resource of each of two drivers."""
    gpu = {"name": "example.com/gpu", "backend": "gpu", "serve": "dra", "dra": {"driver": "gpu.example.org"}}
    config = {"version": 1, "dra": {"driver": DRIVER}, "resources": [SERIAL, gpu]}
    return {"dra": {"enabled": True, **dra}, "config": config}


def test_each_driver_of_an_entry_has_its_directory_and_its_slices(chart: Chart, types: Types) -> None:
    rendered = chart.render(several(drivers=["former.example.com"]))
    assert types.complaints(rendered.text) == []
    drivers = [DRIVER, "gpu.example.org", "former.example.com"]
    plugins = "/var/lib/kubelet/plugins/"
    assert {path for path in writable(rendered) if path.startswith(plugins)} == {
        f"{plugins}{driver}" for driver in drivers
    }
    rule = rendered.only("ValidatingAdmissionPolicy")["spec"]["validations"][-1]
    assert (
        rule["expression"] == f"variables.slice.spec.driver in {json.dumps(drivers, separators=(',', ':'))}"
    )


def test_a_network_policy_lets_devhost_reach_the_api_server(chart: Chart) -> None:
    policy = {"enabled": True, "apiServerPorts": [443, 16443]}
    spec = chart.render(enabled(networkPolicy=policy)).only("NetworkPolicy")["spec"]
    assert spec["egress"] == [
        {"ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 16443}]}
    ]
    off = chart.render({"networkPolicy": policy}).only("NetworkPolicy")["spec"]
    assert "egress" not in off
    assert "Egress" in off["policyTypes"]


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
