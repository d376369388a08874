"""How an edit reaches the nodes: read by running pods, or with new pods."""

from __future__ import annotations

from typing import Any

import pytest
from rendering import Chart, Object, Rendered, Types, refusal

FUSE = {"name": "a.b/fuse", "backend": "udev", "where": {"devNode": "/dev/fuse"}}
KVM = {"name": "a.b/kvm", "backend": "udev", "where": {"devNode": "/dev/kvm"}}
ROLLING = {"rollout": "rolling"}


def config(*resources: Object) -> dict[str, Any]:
    return {"config": {"version": 1, "resources": list(resources)}}


def name(rendered: Rendered) -> str:
    """The name of the ConfigMap, which its pods mount."""
    found = str(rendered.only("ConfigMap")["metadata"]["name"])
    assert rendered.mounts["/etc/devhost"]["configMap"] == {"name": found}
    return found


def test_live_is_the_default_and_replaces_no_pod(chart: Chart) -> None:
    assert chart.render({"rollout": "live"}).text == chart.render().text
    one, other = chart.render(config(FUSE)), chart.render(config(KVM))
    assert name(one) == name(other) == "devhost"
    assert not [word for word in one.args if "patience" in word]


@pytest.mark.parametrize("rollout", ["rolling", {"mode": "rolling"}], ids=str)
def test_rolling_replaces_pods_when_their_configuration_changes(
    chart: Chart, types: Types, rollout: object
) -> None:
    values = {"rollout": rollout}
    one, other = chart.render(values | config(FUSE)), chart.render(values | config(KVM))
    assert types.complaints(one.text) == []
    assert name(one) != name(other)
    assert name(chart.render(values | config(FUSE))) == name(one)
    assert name(chart.render(values | config(FUSE) | {"configFiles": {"a.py": "1"}})) != name(one)
    assert "--patience=10m" in one.args


def test_the_configmap_of_pods_that_are_not_replaced_yet_stays(chart: Chart) -> None:
    found = chart.render(ROLLING).only("ConfigMap")
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert found["immutable"] is True


def test_the_patience_can_be_chosen_for_a_group(chart: Chart) -> None:
    group = {"name": "edge", "match": [{"key": "edge", "operator": "Exists"}]}
    rendered = chart.render({"nodeGroups": [group | {"rollout": {"mode": "rolling", "patience": "1h"}}]})
    rest, edge = (one["spec"]["template"]["spec"] for one in rendered.objects if one["kind"] == "DaemonSet")
    assert "--patience=1h" in edge["containers"][0]["args"]
    assert not [word for word in rest["containers"][0]["args"] if "patience" in word]


def test_a_configmap_of_the_user_keeps_its_name(chart: Chart) -> None:
    rendered = chart.render(ROLLING | {"existingConfigMap": "mine"})
    assert rendered.mounts["/etc/devhost"]["configMap"] == {"name": "mine"}
    assert "--patience=10m" in rendered.args


def test_names_of_configmaps_have_at_most_63_characters(chart: Chart) -> None:
    assert len(name(chart.render(ROLLING | {"fullnameOverride": "a" * 63}))) == 63


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ("slow", "at '/rollout'"),
        ({"mode": "slow"}, "at '/rollout/mode'"),
        ({"patience": "10"}, "at '/rollout/patience'"),
        ({"patience": 600}, "at '/rollout/patience'"),
        ({"speed": 1}, "additional properties 'speed' not allowed"),
    ],
)
def test_a_rollout_that_does_not_exist_is_refused(chart: Chart, rollout: object, message: str) -> None:
    assert message in refusal(chart, {"rollout": rollout})
