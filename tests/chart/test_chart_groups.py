"""Node groups: each node has the DaemonSet of the first group that matches its labels, and no other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rendering import DEPLOY, Chart, Object, Refused, Rendered, Types, built, refusal
from test_chart_apart import avoids
from test_chart_schema import SCHEMA
from test_chart_values import EVERYTHING, notes

Labels = Mapping[str, str]
Group = dict[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LABEL = "devhost.dev/group"
TAKES = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}
"""Each operator, and whether it takes values."""
LIMIT = 64
"""Most nodeSelectorTerms of a DaemonSet."""


def condition(key: str, operator: str = "Exists", *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


H100 = {"name": "h100", "match": [condition("gpu", "In", "h100")]}
EDGE = {"name": "edge", "match": [condition("edge")]}
FUSE = {"name": "a.b/fuse", "backend": "udev", "where": {"devNode": "/dev/fuse"}}
CONFIG = {"version": 1, "resources": [FUSE]}


def holds(one: Mapping[str, Any], labels: Labels) -> bool:
    """Whether a node has what one condition wants (Kubernetes, "Labels and Selectors")."""
    key, values = one["key"], one.get("values", ())
    return {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }[one["operator"]]


def daemonsets(rendered: Rendered) -> dict[str, Object]:
    """The DaemonSets of devhost, by the name of their group; that of all other nodes has none."""
    found = [
        one
        for one in rendered.objects
        if one["kind"] == "DaemonSet" and not one["metadata"]["name"].endswith("-release")
    ]
    named = {one["metadata"]["labels"].get(LABEL, ""): one for one in found}
    assert len(named) == len(found)
    return named


def pod(daemonset: Object) -> Object:
    """The spec of its pods."""
    return dict(daemonset["spec"]["template"]["spec"])


def terms(spec: Object) -> list[Object]:
    """The nodeSelectorTerms of pods."""
    found: list[Object] = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return found


def runs(spec: Object, labels: Labels) -> bool:
    """Whether pods may run on a node with these labels. A term without conditions allows no node."""
    selected = spec.get("nodeSelector", {}).items() <= labels.items()
    return selected and any(
        one.get("matchExpressions") and all(holds(each, labels) for each in one["matchExpressions"])
        for one in terms(spec)
    )


def on(rendered: Rendered, labels: Labels) -> list[str]:
    """The groups whose DaemonSets have a pod on a node."""
    return [name for name, one in daemonsets(rendered).items() if runs(pod(one), labels)]


def first(groups: Sequence[Group], labels: Labels) -> str:
    """The first group that matches a node."""
    for group in groups:
        if all(holds(one, labels) for one in group["match"]):
            return str(group["name"])
    return ""


def nodes(keys: str = "abc", values: str = "xyz") -> Iterator[dict[str, str]]:
    """Nodes with all combinations of some labels."""
    for chosen in itertools.product(["", *values], repeat=len(keys)):
        yield {key: value for key, value in zip(keys, chosen, strict=True) if value}


@st.composite
def conditions(draw: st.DrawFn) -> dict[str, Any]:
    operator = draw(st.sampled_from(sorted(TAKES)))
    values = draw(st.lists(st.sampled_from("xy"), min_size=1, max_size=3)) if TAKES[operator] else ()
    return condition(draw(st.sampled_from("abc")), operator, *values)


@st.composite
def node_groups(draw: st.DrawFn) -> list[Group]:
    matches = draw(st.lists(st.lists(conditions(), min_size=1, max_size=3), min_size=1, max_size=5))
    off = draw(st.integers(-5, len(matches) - 1))
    return [
        {"name": f"g{number}", "match": match} | ({"enabled": False} if number == off else {})
        for number, match in enumerate(matches)
    ]


def allowed(own: Sequence[Mapping[str, Any]], labels: Labels) -> bool:
    """Whether the release's own nodeAffinity allows a node."""
    return not own or any(
        term.get("matchExpressions") and all(holds(one, labels) for one in term["matchExpressions"])
        for term in own
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups=node_groups(),
    own=st.one_of(
        st.just([]),
        st.lists(
            st.builds(lambda some: {"matchExpressions": some}, st.lists(conditions(), max_size=2)),
            min_size=1,
            max_size=2,
        ),
    ),
)
def test_every_node_has_the_daemonset_of_its_first_match_and_no_other(
    chart: Chart, groups: list[Group], own: list[Object]
) -> None:
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": own}}} if own else {}
    off = {group["name"] for group in groups if group.get("enabled") is False}
    try:
        rendered = chart.render({"config": CONFIG, "nodeGroups": groups, "affinity": affinity})
    except Refused as refused:
        if "nodeSelectorTerms, and 64 are allowed" in str(refused):
            return  # it may name no group, if the affinity is what makes so many
        (name,) = [group["name"] for group in groups if f"node group {group['name']}: " in str(refused)]
        assert "match selects no node" in str(refused)
        assert not [one for one in nodes() if first(groups, one) == name]
        return
    specs = {name: pod(one) for name, one in daemonsets(rendered).items()}
    for labels in nodes():
        name = first(groups, labels)
        wanted = [] if name in off or not allowed(own, labels) else [name]
        assert [each for each, spec in specs.items() if runs(spec, labels)] == wanted, labels
    assert max(len(terms(spec)) for spec in specs.values()) <= LIMIT


def test_groups_that_share_a_condition_need_few_terms(chart: Chart) -> None:
    """The product of what ten groups exclude would have 1,024 terms."""
    vendor = condition("vendor", "In", "nvidia")
    groups = [{"name": f"g{n}", "match": [vendor, condition("model", "In", f"m{n}")]} for n in range(10)]
    rendered = chart.render({"nodeGroups": groups})
    assert len(terms(pod(daemonsets(rendered)[""]))) == 2
    assert {len(terms(pod(daemonsets(rendered)[group["name"]]))) for group in groups} == {1}


def test_more_terms_than_kubernetes_should_have_are_refused_with_the_group(chart: Chart) -> None:
    groups = [
        {"name": f"g{n}", "match": [condition(f"{key}{n}") for key in ("a", "b", "c")]} for n in range(4)
    ]
    rendered = chart.render({"nodeGroups": groups[:3]})
    assert len(terms(pod(daemonsets(rendered)[""]))) == 27
    said = refusal(chart, {"nodeGroups": groups})
    assert "node group g3: the nodes in no group so far need 81 nodeSelectorTerms, and 64 are allowed" in said
    assert len(said.splitlines()) == 1
    zones = [{"matchExpressions": [condition("zone", "In", str(n))]} for n in range(3)]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": zones}}}
    said = refusal(chart, {"nodeGroups": groups[:3], "affinity": affinity})
    assert "affinity and groups make 81 nodeSelectorTerms, and 64 are allowed" in said
    assert len(said.splitlines()) == 1


# what a group has


def without_place(daemonset: Object) -> Object:
    """A DaemonSet without what says on which nodes it runs."""
    copy: Object = json.loads(json.dumps(daemonset))
    del copy["spec"]["template"]["spec"]["affinity"]
    return copy


def test_all_other_nodes_have_what_they_have_without_groups(chart: Chart) -> None:
    """The selector of a DaemonSet cannot change, so an upgrade must keep it."""
    before, after = chart.render(EVERYTHING), chart.render(EVERYTHING | {"nodeGroups": [H100, EDGE]})
    assert chart.render(EVERYTHING | {"nodeGroups": []}).text == before.text
    rest = {(one["kind"], one["metadata"]["name"]): one for one in after.objects}
    for one in before.objects:
        found = rest[one["kind"], one["metadata"]["name"]]
        if one["kind"] == "DaemonSet":
            if "affinity" not in pod(one):
                one["spec"]["template"]["spec"]["affinity"] = {}
            assert without_place(found) == without_place(one)
        else:
            assert found == one


def test_a_text_of_a_group_replaces_the_configuration_of_the_release(chart: Chart) -> None:
    text = "# with comments\nversion: 1\nresources: []\n"
    rendered = chart.render({"nodeGroups": [H100 | {"config": text}]})
    (found,) = [
        one for one in rendered.objects if one["metadata"]["name"] == "devhost-h100" and "data" in one
    ]
    assert found["data"]["devhost.yaml"] == text


def test_a_group_may_have_every_value_that_concerns_pods() -> None:
    group = SCHEMA["properties"]["nodeGroups"]["items"]["properties"]
    release = {"global", "nodeGroups", "nameOverride", "fullnameOverride", "namespaceOverride"}
    release |= {"service", "podMonitor", "serviceMonitor", "prometheusRule", "dashboard"}
    release |= {"priorityQuota", "serviceAccountAnnotations", "nodeCondition"}
    assert set(group) - {"name", "match"} == set(SCHEMA["properties"]) - release


# what there is once, and for each group


def test_every_account_of_a_group_may_keep_the_condition_of_its_node(chart: Chart) -> None:
    claims = {"config": EVERYTHING["config"], "dra": {"enabled": True}}
    groups = [H100 | claims, EDGE | {"serviceAccountName": "edge"}]
    rendered = chart.render({"nodeCondition": {"enabled": True}, "nodeGroups": groups})
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered.objects]
    assert len(names) == len(set(names)), "Helm would refuse an object that is there twice"
    pods = [one["spec"]["template"]["spec"] for one in rendered.objects if one["kind"] == "DaemonSet"]
    used = {pod["serviceAccountName"] for pod in pods}
    assert {name for kind, name in names if kind == "ServiceAccount"} == used - {"edge"}
    (binding,) = (
        one
        for one in rendered.objects
        if one["kind"] == "ClusterRoleBinding" and one["metadata"]["name"].endswith(".node")
    )
    assert {one["name"] for one in binding["subjects"]} == used
    (policy,) = (
        one
        for one in rendered.objects
        if one["kind"] == "ValidatingAdmissionPolicy" and one["metadata"]["name"].endswith(".node")
    )
    condition = policy["spec"]["matchConditions"][0]["expression"]
    assert all(f":{name}" in condition for name in used)


VERSIONS = {"nodeGroups": [H100, EDGE | {"listen": {"port": 9500}}]}


def test_pods_of_different_daemonsets_have_different_labels(chart: Chart) -> None:
    rendered = chart.render(EVERYTHING | VERSIONS)
    found = [one["spec"] for one in rendered.objects if one["kind"] == "DaemonSet"]
    assert len(found) == 6, "three of devhost, and three that release"
    for one, other in itertools.permutations(found, 2):
        assert not one["selector"]["matchLabels"].items() <= other["template"]["metadata"]["labels"].items()
    for one in found:
        assert one["selector"]["matchLabels"].items() <= one["template"]["metadata"]["labels"].items()


def test_groups_avoid_each_other_and_other_releases(chart: Chart) -> None:
    """While a label changes, the old pod ends before the new one starts."""

    def alone(rendered: Rendered, name: str) -> Rendered:
        return Rendered(yaml.safe_dump(daemonsets(rendered)[name]))

    mine, other = chart.render(VERSIONS), chart.render(release="other")
    names = ["", "h100", "edge"]
    for one, another in itertools.permutations(names, 2):
        assert avoids(alone(mine, one), alone(mine, another))
    for one in names:
        assert not avoids(alone(mine, one), alone(mine, one))
        assert avoids(alone(mine, one), other)
        assert avoids(other, alone(mine, one))


def test_objects_of_the_cluster_and_for_prometheus_exist_once(chart: Chart, types: Types) -> None:
    groups = [H100, EDGE | {"priorityClassName": "mine"}]
    rendered = chart.render(EVERYTHING | {"nodeGroups": groups})
    assert types.complaints(rendered.text) == []
    once = [
        *("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "PrometheusRule", "ResourceQuota"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    ]
    assert [kind for kind in once if rendered.kinds.count(kind) != 1] == []
    assert rendered.kinds.count("NetworkPolicy") == rendered.kinds.count("Service") == 3
    assert rendered.kinds.count("ConfigMap") == 3 + 1, "and the dashboard"
    named = [(one["kind"], one["metadata"]["name"]) for one in rendered.objects]
    assert len(set(named)) == len(named)
    (scope,) = rendered.only("ResourceQuota")["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["values"] == ["system-node-critical", "mine"]


def test_network_policies_and_services_select_the_pods_of_one_daemonset(chart: Chart) -> None:
    rendered = chart.render(EVERYTHING | VERSIONS)
    pods = {name: one["spec"]["template"]["metadata"]["labels"] for name, one in daemonsets(rendered).items()}
    for one in rendered.objects:
        if one["kind"] not in ("NetworkPolicy", "Service"):
            continue
        name = one["metadata"]["labels"].get(LABEL, "")
        policy = one["kind"] == "NetworkPolicy"
        selector = one["spec"]["podSelector"]["matchLabels"] if policy else one["spec"]["selector"]
        assert [each for each, labels in pods.items() if selector.items() <= labels.items()] == [name]
        port = one["spec"]["ingress"][0]["ports"][0] if policy else one["spec"]["ports"][0]
        assert port["port"] == (9500 if name == "edge" else 9400)


@pytest.mark.parametrize(
    ("key", "kind"), [("podMonitor", "PodMonitor"), ("serviceMonitor", "ServiceMonitor")]
)
def test_one_monitor_reads_every_devhost_once(chart: Chart, key: str, kind: str) -> None:
    rendered = chart.render(VERSIONS | {key: {"enabled": True}})
    spec = rendered.only(kind)["spec"]
    selector = spec["selector"]
    targets = [
        one["spec"]["template"] if kind == "PodMonitor" else one
        for one in rendered.objects
        if one["kind"] == ("DaemonSet" if kind == "PodMonitor" else "Service")
    ]
    assert len(targets) == 3
    for one in targets:
        labels = one["metadata"]["labels"]
        assert selector["matchLabels"].items() <= labels.items()
        assert all(holds(each, labels) for each in selector.get("matchExpressions", ()))
    other = chart.render(release="other").only("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert not (
        selector["matchLabels"].items() <= other.items()
        and all(holds(each, other) for each in selector.get("matchExpressions", ()))
    )
    ((endpoint,),) = [spec[one] for one in ("endpoints", "podMetricsEndpoints") if one in spec]
    (label,) = [one["sourceLabels"] for one in endpoint["relabelings"] if one["targetLabel"] == "group"]
    assert label == ["__meta_kubernetes_pod_label_app_kubernetes_io_instance"]


def driver(name: str, **more: Any) -> dict[str, Any]:
    """Values with resources of a DRA driver."""
    return {"dra": {"enabled": True}, "config": CONFIG | {"dra": {"driver": name}}, **more}


def test_groups_with_dra_share_one_account_and_one_policy(chart: Chart, types: Types) -> None:
    rendered = chart.render({"config": CONFIG, "nodeGroups": [H100 | driver("a.example"), EDGE]})
    assert types.complaints(rendered.text) == []
    mounts = {name: pod(one)["automountServiceAccountToken"] for name, one in daemonsets(rendered).items()}
    assert mounts == {"": False, "h100": True, "edge": False}
    account = rendered.only("ServiceAccount")["metadata"]["name"]
    assert pod(daemonsets(rendered)["h100"])["serviceAccountName"] == account == "devhost"
    assert "serviceAccountName" not in pod(daemonsets(rendered)[""])
    assert rendered.only("ClusterRoleBinding")["subjects"] == [
        {"kind": "ServiceAccount", "name": account, "namespace": "devhost"}
    ]
    policy = rendered.only("ValidatingAdmissionPolicy")["spec"]
    assert policy["validations"][-1]["expression"] == 'variables.slice.spec.driver == "a.example"'


def test_drivers_and_accounts_of_all_groups_are_admitted(chart: Chart, types: Types) -> None:
    other = EDGE | driver("b.example", serviceAccountName="mine")
    rendered = chart.render(driver("a.example", nodeGroups=[H100, other]))
    assert types.complaints(rendered.text) == []
    policy = rendered.only("ValidatingAdmissionPolicy")["spec"]
    driver_of, account_of = policy["validations"][-1], policy["matchConditions"][0]
    assert driver_of["expression"] == 'variables.slice.spec.driver in ["a.example","b.example"]'
    assert "a.example or b.example" in driver_of["message"]
    accounts = [f"system:serviceaccount:devhost:{name}" for name in ("devhost", "mine")]
    assert (
        account_of["expression"]
        == f"request.userInfo.username in {json.dumps(accounts, separators=(',', ':'))}"
    )
    assert [one["name"] for one in rendered.only("ClusterRoleBinding")["subjects"]] == ["devhost", "mine"]


def test_pods_that_release_gpus_are_on_the_nodes_of_their_group(chart: Chart) -> None:
    gpu = {"version": 1, "resources": [{"name": "a.b/gpu", "backend": "gpu"}]}
    own = H100 | {"config": gpu, "gpuOperator": {"namespace": "gpu-operator"}}
    rendered = chart.render({"config": CONFIG, "nodeGroups": [own]})
    (release,) = [one for one in rendered.objects if one["metadata"]["name"] == "devhost-h100-release"]
    assert release["metadata"]["namespace"] == "gpu-operator"
    assert terms(pod(release)) == terms(pod(daemonsets(rendered)["h100"]))


def test_the_notes_name_the_daemonsets_of_groups(chart: Chart, helm: Path, tmp_path: Path) -> None:
    assert "devhost-h100, devhost-edge" in notes(chart, helm, tmp_path, VERSIONS, "minimal")


# what cannot be meant

LONG = "a" * 50


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([H100, H100 | {"match": [condition("x")]}], "node group h100: two groups have this name"),
        (
            [{"name": "dashboard", "match": [condition("x")]}],
            "node group dashboard: the chart uses this name",
        ),
        (
            [{"name": "a-release", "match": [condition("x")]}],
            "node group a-release: the chart uses this name",
        ),
        (
            [{"name": LONG, "match": [condition("x")]}],
            f"its DaemonSet would be called devhost-{LONG}, with 58",
        ),
        ([EDGE, EDGE | {"name": "more"}], "node group more: match selects no node"),
        (
            [{"name": "no", "match": [condition("x"), condition("x", "DoesNotExist")]}],
            "match selects no node",
        ),
        (
            [{"name": "a", "match": [condition("x", "Exists", "y")]}],
            "node group a: match[0]: Exists takes no values",
        ),
        ([{"name": "a", "match": [condition("x", "In")]}], "node group a: match[0]: In needs values"),
        (
            [{"name": "a", "match": [condition("x", "NotIn") | {"values": []}]}],
            "at '/nodeGroups/0/match/0/values'",
        ),
        ([{"name": "a", "match": []}], "at '/nodeGroups/0/match'"),
        ([{"name": "a"}], "at '/nodeGroups/0': missing property 'match'"),
        ([{"match": [condition("x")]}], "at '/nodeGroups/0': missing property 'name'"),
        ([{"name": "a", "match": [condition("x", "Gt", "1")]}], "'In', 'NotIn', 'Exists', 'DoesNotExist'"),
        ([{"name": "a", "match": [condition("a b")]}], "at '/nodeGroups/0/match/0/key'"),
        ([{"name": "a", "match": [condition("a", "In", "b c")]}], "at '/nodeGroups/0/match/0/values/0'"),
        ([{"name": "A", "match": [condition("x")]}], "at '/nodeGroups/0/name'"),
        ([{"name": "a.b", "match": [condition("x")]}], "at '/nodeGroups/0/name'"),
        ([EDGE | {"logLevel": "loud"}], "at '/nodeGroups/0/logLevel'"),
        ([EDGE | {"podMonitor": {"enabled": True}}], "additional properties 'podMonitor' not allowed"),
        ([EDGE | {"nodeGroups": []}], "additional properties 'nodeGroups' not allowed"),
        # the same as for the release, with the group's name
        (
            [EDGE | {"dra": {"enabled": True}}],
            "node group edge: dra.enabled is true, but config has no dra.driver",
        ),
        ([EDGE | {"config": "version: 1\n"}], "node group edge: config: the key resources is missing"),
        ([EDGE | {"config": {"labels": {"write": 1}}}], "at '/nodeGroups/0/config/labels/write'"),
        ([EDGE | {"capabilities": ["ALL"]}], "node group edge: capabilities: ALL is not allowed"),
        (
            [EDGE | {"extraHostPaths": [{"path": "/dev"}]}],
            "node group edge: /host/dev of the container is used",
        ),
        (
            [EDGE | {"gpuOperator": {"namespace": "x"}, "config": CONFIG}],
            "node group edge: gpuOperator.namespace",
        ),
        ([EDGE | {"podLabels": {LABEL: "x"}}], f"node group edge: podLabels: {LABEL} is set by the chart"),
    ],
    ids=str,
)
def test_a_group_that_cannot_be_meant_is_refused(chart: Chart, groups: list[Group], message: str) -> None:
    said = refusal(chart, {"nodeGroups": groups})
    assert message in said
    if "node group" in message:
        assert len(said.splitlines()) == 1


def test_a_configuration_that_an_existing_configmap_would_hide_is_refused(chart: Chart) -> None:
    said = refusal(chart, {"existingConfigMap": "mine", "nodeGroups": [EDGE | {"config": CONFIG}]})
    assert (
        "node group edge: its configuration has no effect, because existingConfigMap of the release is mine"
        in said
    )


def test_labels_of_pods_fit_into_kubernetes_limits(chart: Chart) -> None:
    release = "r" * 53
    assert "node group edge2345678: the label" in refusal(
        chart,
        {"nodeGroups": [EDGE | {"name": "edge2345678"}], "fullnameOverride": "devhost"},
        release=release,
    )
    rendered = chart.render({"nodeGroups": [EDGE], "fullnameOverride": "devhost"}, release=release)
    labels = daemonsets(rendered)["edge"]["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/instance"] == f"{release}_edge"


# Kustomize


def test_the_overlay_with_groups_gives_every_node_one_devhost(kustomize: Path, types: Types) -> None:
    rendered = built(kustomize, DEPLOY / "kustomize" / "overlays" / "groups")
    assert types.complaints(rendered.text) == []
    found = daemonsets(rendered)
    assert sorted(found) == ["gpu", "other"]
    label = "feature.node.kubernetes.io/pci-0302_10de.present"
    assert on(rendered, {label: "true"}) == ["gpu"]
    assert on(rendered, {}) == on(rendered, {label: "false"}) == ["other"]
    for name, one in found.items():
        (config,) = [each for each in pod(one)["volumes"] if each["name"] == "config"]
        assert config["configMap"] == {"name": f"devhost-{name}"}
        selector = one["spec"]["selector"]["matchLabels"]
        owners = [
            each
            for each, other in found.items()
            if selector.items() <= other["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert owners == [name]
        alone = Rendered(yaml.safe_dump(one))
        (other,) = found.keys() - {name}
        assert avoids(alone, Rendered(yaml.safe_dump(found[other])))
        assert not avoids(alone, alone)
    assert rendered.kinds.count("Namespace") == 1
    assert rendered.kinds.count("ConfigMap") == 2
