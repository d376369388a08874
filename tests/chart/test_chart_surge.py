"""Upgrades without a gap: with ``maxSurge`` two pods of a node overlap and take turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rendering import Chart, Refused, Types, comparable, overlay, refusal
from test_chart_values import EVERYTHING

NETWORK = {"hostNetwork": True}
APART = {"hostNetwork": False}


BASES = {
    "base": ("", "max-surge"),
    "overlays/full": ("full", "max-surge"),
    "overlays/gpu": ("gpu", "max-surge/own-network"),
    "overlays/minimal": ("minimal", "max-surge/own-network"),
}
"""Profile of the chart, and component of Kustomize, for each base of the component."""


def surge(**values: Any) -> dict[str, Any]:
    return {"maxSurge": 1} | values


def test_two_pods_with_separate_networks_keep_their_port_and_probes(chart: Chart) -> None:
    values = {**APART, "service": {"enabled": True}}
    surging, before = (chart.render(one) for one in (surge(**values), values))
    for key in ("ports", "livenessProbe", "readinessProbe"):
        assert surging.container[key] == before.container[key]
    assert surging.only("Service") == before.only("Service")


@pytest.mark.parametrize("version", ["1.36.9", "1.30.0"])
def test_a_cluster_with_older_kubelets_is_refused_in_one_line(chart: Chart, version: str) -> None:
    with pytest.raises(Refused) as refused:
        chart.render(surge(), f"--kube-version={version}")
    assert f"maxSurge needs kubelets 1.37 or newer, and this cluster has v{version}: set it to 0" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"updateStrategy": "OnDelete"}, "maxSurge has no effect with updateStrategy OnDelete"),
        (
            {"gpuOperator": EVERYTHING["gpuOperator"]},
            "but gpuOperator.namespace shares one: omit one of them",
        ),
        ({**NETWORK, "podMonitor": {"enabled": True}}, "use serviceMonitor, or set hostNetwork to false"),
    ],
)
def test_what_two_pods_cannot_have_is_refused(chart: Chart, values: dict[str, Any], message: str) -> None:
    assert message in refusal(chart, surge(**values))


def test_what_two_pods_can_have_is_not_refused(chart: Chart) -> None:
    assert chart.render(surge(**APART, podMonitor={"enabled": True})).args
    assert chart.render(surge(**NETWORK, serviceMonitor={"enabled": True})).args


def test_a_driver_with_too_long_a_path_for_the_sockets_of_two_pods_is_refused(chart: Chart) -> None:
    driver = "a" * 63
    config = {**EVERYTHING["config"], "dra": {"driver": driver}}
    values = {**APART, "config": config, "dra": {"enabled": True}, "kubelet": {"root": "/var/lib/kube/let"}}
    assert chart.render(values).args
    assert "Linux allows 107" in refusal(chart, surge(**values))


@pytest.mark.parametrize("kind", ["DaemonSet", "Service"])
@pytest.mark.parametrize("base", BASES)
def test_the_component_of_kustomize_is_what_the_chart_renders(
    chart: Chart, kustomize: Path, tmp_path: Path, base: str, kind: str
) -> None:
    profile, component = BASES[base]
    theirs, ours = overlay(kustomize, tmp_path, base, component), chart.render(surge(), profile=profile)
    assert (kind in theirs.kinds) == (kind in ours.kinds)
    if kind in ours.kinds:
        assert comparable(theirs.only(kind)) == comparable(ours.only(kind))


@pytest.mark.parametrize(
    ("base", "components", "arguments"),
    [
        ("base", ("dra", "node-condition/beside-dra", "max-surge"), {"--node-condition"}),
        ("overlays/groups", ("max-surge/own-network",), set()),
    ],
)
def test_the_component_of_kustomize_goes_with_others_and_with_groups(
    kustomize: Path,
    types: Types,
    tmp_path: Path,
    base: str,
    components: tuple[str, ...],
    arguments: set[str],
) -> None:
    rendered = overlay(kustomize, tmp_path, base, *components)
    assert types.complaints(rendered.text) == []
    for one in (one["spec"] for one in rendered.objects if one["kind"] == "DaemonSet"):
        assert one["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        assert arguments | {"--take-turns"} <= {*one["template"]["spec"]["containers"][0]["args"]}
