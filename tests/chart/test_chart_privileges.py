"""The container gets the privileges that its configuration needs, and no more (table: deploy/README.md)."""

from __future__ import annotations

from typing import Any

import pytest
from rendering import Chart, Object, Rendered, refusal

FUSE = {"name": "example.com/fuse", "backend": "udev", "where": {"devNode": "/dev/fuse"}}
GPU = {"name": "nvidia.com/gpu", "backend": "gpu", "where": {"vendor": "nvidia"}, "optional": True}
SRIOV = {"name": "example.com/vf", "backend": "sriov", "where": {"kind": "vf"}}
RDMA = {"name": "rdma/hca", "backend": "rdma"}
PROGRAMMED = {"name": "example.com/fpga", "backend": "fpga", "program": {"bitstream": "/srv/x.gbs"}}
NVIDIA = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
MONITOR = {**NVIDIA, "NVIDIA_MIG_MONITOR_DEVICES": "all"}


def configured(*resources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"config": {"version": 1, "resources": list(resources), **more}}


def security(rendered: Rendered) -> tuple[bool, list[str]]:
    """Whether the container is privileged, and its capabilities."""
    context: Object = rendered.container["securityContext"]
    return context["privileged"], context.get("capabilities", {}).get("add", [])


def variables(rendered: Rendered) -> dict[str, str]:
    return {one["name"]: one["value"] for one in rendered.container["env"] if "value" in one}


@pytest.mark.parametrize(
    ("values", "privileged", "capabilities", "environment"),
    [
        (configured(FUSE), False, [], {}),
        (configured(FUSE, SRIOV, RDMA), False, [], {}),
        (configured({**SRIOV, "where": {"eswitchMode": "legacy"}}), False, ["NET_ADMIN"], {}),
        (configured({**SRIOV, "name": "example.com/{eswitchMode}"}), False, ["NET_ADMIN"], {}),
        (configured({**FUSE, "kubevirt": True}), False, ["CHOWN"], {}),
        (configured(GPU), False, [], NVIDIA),
        (configured(GPU, backends={"gpu": {"deviceListStrategy": "cdi"}}), True, [], {}),
        (configured({**GPU, "timeSlice": "long"}), False, ["SYS_ADMIN"], MONITOR),
        (configured(FUSE, PROGRAMMED), True, [], {}),
        ({}, False, [], NVIDIA),
    ],
    ids=[
        *("udev", "network", "eswitch", "eswitch in a name", "kubevirt"),
        *("gpu", "ctk", "time slice", "program", "default"),
    ],
)  # fmt: skip
def test_privileges_follow_from_the_configuration(
    chart: Chart,
    values: dict[str, Any],
    privileged: bool,
    capabilities: list[str],
    environment: dict[str, str],
) -> None:
    rendered = chart.render(values)
    assert security(rendered) == (privileged, capabilities)
    assert variables(rendered) == environment


def test_gpus_get_what_nvidias_own_plugin_gets_from_nvidias_runtime(chart: Chart) -> None:
    """NVIDIA's chart runs unprivileged with these variables, and adds SYS_ADMIN where MIG is used."""
    rendered = chart.render({**configured(GPU), "runtimeClassName": "nvidia"})
    assert rendered.pod["runtimeClassName"] == "nvidia"
    assert rendered.container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "runtimeClassName" not in chart.render(configured(GPU)).pod
    theirs = {"existingConfigMap": "theirs", "securityProfile": "gpu"}
    assert variables(chart.render(theirs)) == NVIDIA, "the chart does not read that configuration"
    mig = chart.render({**configured(GPU), "capabilities": ["SYS_ADMIN"]})
    assert security(mig) == (False, ["SYS_ADMIN"])
    assert variables(mig) == {**NVIDIA, "NVIDIA_MIG_MONITOR_DEVICES": "all"}


def test_what_is_derived_can_be_overridden(chart: Chart) -> None:
    narrow = chart.render({**configured(GPU, PROGRAMMED), "securityProfile": "unprivileged"})
    assert (security(narrow), variables(narrow)) == ((False, []), {})
    assert security(chart.render({**configured(FUSE), "securityProfile": "privileged"})) == (True, [])
    one = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}
    given = chart.render({**configured(GPU), "extraEnv": [one]})
    assert variables(given) == {**NVIDIA, "NVIDIA_VISIBLE_DEVICES": "0"}


def test_no_pod_names_are_shown_unless_they_are_asked_for(chart: Chart) -> None:
    assert not {"--show-pods", "--pod-metrics"} & {*chart.render().args}
    assert "--show-pods" in chart.render({"listen": {"podNames": True}}).args


def test_a_network_policy_lets_only_those_in_who_are_named(chart: Chart) -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert "NetworkPolicy" not in chart.render().kinds
    given = {"networkPolicy": {"enabled": True, "from": [prometheus]}, "listen": {"port": 9401}}
    rendered = chart.render(given)
    policy = rendered.only("NetworkPolicy")
    selector = rendered.only("DaemonSet")["spec"]["selector"]
    assert policy["spec"] == {
        "podSelector": selector,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [prometheus], "ports": [{"protocol": "TCP", "port": 9401}]}],
    }
    assert chart.render({"networkPolicy": {"enabled": True}}).only("NetworkPolicy")["spec"]["ingress"] == []


@pytest.mark.parametrize("key", ["podMonitor", "serviceMonitor", "service"])
def test_a_network_policy_that_keeps_prometheus_out_is_refused(chart: Chart, key: str) -> None:
    said = refusal(chart, {"networkPolicy": {"enabled": True}, key: {"enabled": True}})
    assert f"networkPolicy.from is empty, so no pod reaches the port, but {key}.enabled needs" in said
    assert len(said.splitlines()) == 1
