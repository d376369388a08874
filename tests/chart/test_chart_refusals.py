"""What the API server would refuse, or drop without a word, Helm refuses first and says where it is."""

from __future__ import annotations

from typing import Any

import pytest
from rendering import Chart, Types, refusal

ANY_NODE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}
ZONE = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"a": "b"}}}
REQUIRED, PREFERRED = (f"{one}DuringSchedulingIgnoredDuringExecution" for one in ("required", "preferred"))

RIGHT: list[dict[str, Any]] = [
    {
        "extraEnv": [
            {"name": "A", "value": ""},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ]
    },
    {"extraEnv": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}}]},
    {"extraEnv": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k.txt"}}}]},
    {
        "extraEnv": [
            {"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}}
        ]
    },
    {
        "affinity": {
            "nodeAffinity": {
                REQUIRED: ANY_NODE,
                PREFERRED: [{"weight": 1, "preference": ANY_NODE["nodeSelectorTerms"][0]}],
            }
        }
    },
    {
        "affinity": {
            "podAffinity": {REQUIRED: [ZONE]},
            "podAntiAffinity": {PREFERRED: [{"weight": 100, "podAffinityTerm": ZONE}]},
        }
    },
    {"podLabels": {"example.com/a": "b_c.d-e", "empty": ""}, "podAnnotations": {"example.com/a": "b c"}},
    {"nodeSelector": {"kubernetes.io/os": "linux"}, "serviceAccountName": "a.b"},
    {
        "resources": {
            "requests": {"cpu": 0.5, "memory": "32Mi"},
            "limits": {"cpu": "500m", "memory": 33554432},
        }
    },
    {"resources": {"requests": {"memory": None}, "limits": {"memory": "1e3"}}},
    {"resources": {"requests": None, "limits": {"cpu": 0}}},
    {"capabilities": ["NET_ADMIN", "SYS_ADMIN"]},
    {"tolerations": []},
    {"tolerations": [{"key": "a.b/c", "value": "d", "effect": "NoExecute", "tolerationSeconds": 0}]},
    {"tolerations": [{"key": "a", "operator": "Gt", "value": "-5"}, {"operator": "Exists"}]},
    {"image": {"repository": "Registry:5000/a/b__c.d--e"}},
]

WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"extraEnv": [{"name": "A", "valueFrom": {"secretRef": "x"}}]},
        "at '/extraEnv/0/valueFrom': additional properties 'secretRef'",
    ),
    ({"extraEnv": [{"name": "A", "valueFrom": {}}]}, "at '/extraEnv/0/valueFrom'"),
    (
        {"extraEnv": [{"name": "A", "value": "a", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]},
        "extraEnv: A has value and valueFrom",
    ),
    ({"extraEnv": [{"name": "A"}, {"name": "B"}, {"name": "A"}]}, "extraEnv: A is given twice"),
    ({"affinity": {"nodeAffinity": {"x": 1}}}, "at '/affinity/nodeAffinity': additional properties 'x'"),
    ({"affinity": {"nodeAffinity": {REQUIRED: [ANY_NODE]}}}, "got array, want object"),
    ({"affinity": {"podAffinity": {REQUIRED: [{"labelSelector": {}}]}}}, "missing property 'topologyKey'"),
    (
        {"affinity": {"podAntiAffinity": {PREFERRED: [ZONE]}}},
        "missing properties 'weight', 'podAffinityTerm'",
    ),
    ({"podLabels": {"a": "b c"}}, "at '/podLabels/a': 'b c' does not match pattern"),
    ({"podLabels": {"a b": ""}}, "at '/podLabels': additional properties 'a b' not allowed"),
    ({"nodeSelector": {"a": "-"}}, "at '/nodeSelector/a': '-' does not match pattern"),
    ({"podAnnotations": {"a/b/c": ""}}, "at '/podAnnotations': additional properties 'a/b/c' not allowed"),
    ({"podMonitor": {"labels": {"a": "b c"}}}, "at '/podMonitor/labels/a'"),
    ({"podMonitor": {"interval": "1s1m"}}, "at '/podMonitor/interval'"),
    ({"serviceAccountName": "a..b"}, "at '/serviceAccountName'"),
    ({"priorityClassName": "a.-b"}, "at '/priorityClassName'"),
    ({"imagePullSecrets": [{"name": "A"}]}, "at '/imagePullSecrets/0/name'"),
    (
        {"resources": {"limits": {"memory": "32Mi"}}},
        "resources: requests.memory (64Mi) is more than limits.memory (32Mi)",
    ),
    (
        {"resources": {"limits": {"cpu": 0.005}}},
        "resources: requests.cpu (10m) is more than limits.cpu (0.005)",
    ),
    (
        {"resources": {"requests": {"memory": "1G"}, "limits": {"memory": "0.9Gi"}}},
        "requests.memory (1G) is more than",
    ),
    ({"resources": {"requests": {"cpu": -1}}}, "at '/resources/requests/cpu'"),
    (
        {"resources": {"limits": {"memroy": 1}}},
        "at '/resources/limits': additional properties 'memroy' not allowed",
    ),
    ({"capabilities": ["ALL"]}, "securityProfile: privileged"),
    ({"capabilities": ["NET_ADMINS"]}, "capabilities: Linux has no capability NET_ADMINS"),
    (
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        "tolerations[0]: Exists takes no value",
    ),
    ({"tolerations": [{"key": "a"}, {"value": "b"}]}, "tolerations[1]: without a key"),
    ({"tolerations": [{"operator": "Gt", "value": "1"}]}, "tolerations[0]: without a key"),
    (
        {"tolerations": [{"key": "a", "operator": "Lt", "value": "many"}]},
        "tolerations[0]: Lt compares integers",
    ),
    (
        {"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}]},
        "tolerations[0]: tolerationSeconds is only for",
    ),
    ({"tolerations": [{"key": "a b", "operator": "Exists"}]}, "at '/tolerations/0/key'"),
    ({"image": {"repository": "Reg/Dev"}}, "image.repository Reg/Dev is not a valid image name"),
    (
        {"image": {"repository": "registry.local/a//b"}},
        "image.repository registry.local/a//b is not a valid image name",
    ),
]


@pytest.mark.parametrize("values", RIGHT, ids=str)
def test_what_kubernetes_takes_is_taken(chart: Chart, types: Types, values: dict[str, Any]) -> None:
    assert types.complaints(chart.render(values).text) == []


@pytest.mark.parametrize(("values", "message"), WRONG, ids=str)
def test_what_kubernetes_refuses_is_refused_with_its_place(
    chart: Chart, values: dict[str, Any], message: str
) -> None:
    said = refusal(chart, values)
    assert message in said
    assert "wrong type for value" not in said


@pytest.mark.parametrize("key", ["service", "serviceMonitor"])
@pytest.mark.parametrize(("release", "name"), [("1", ""), ("9.9", ""), ("devhost", "0abc")])
def test_a_service_is_never_called_what_begins_with_a_digit(
    chart: Chart, key: str, release: str, name: str
) -> None:
    said = refusal(chart, {key: {"enabled": True}, "fullnameOverride": name}, release=release)
    assert "a Service's name begins with a letter" in said
    assert "set fullnameOverride" in said
    assert len(said.splitlines()) == 1
    assert chart.render({"fullnameOverride": name}, release=release).kinds == ["ConfigMap", "DaemonSet"]
