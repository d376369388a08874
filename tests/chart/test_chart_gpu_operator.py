"""The chart beside NVIDIA's GPU operator."""

from __future__ import annotations

from typing import Any

import pytest
from rendering import Chart, Rendered, refusal

CONFIG = {
    "version": 1,
    "resources": [{"name": "nvidia.com/gpu", "backend": "gpu", "where": {"vendor": "nvidia"}}],
    "backends": {"gpu": {"driverRoot": "/run/nvidia/driver"}},
}
VALUES = {
    "config": CONFIG,
    "securityProfile": "privileged",
    "gpuOperator": {"namespace": "gpu-operator"},
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}


def _daemonsets(rendered: Rendered) -> list[dict[str, Any]]:
    return [one for one in rendered.objects if one["kind"] == "DaemonSet"]


def sets(rendered: Rendered) -> tuple[dict[str, Any], dict[str, Any]]:
    """The DaemonSet of devhost, and the one that releases."""
    found = {one["metadata"]["name"]: one for one in _daemonsets(rendered)}
    (release,) = (name for name in found if name.endswith("-release"))
    (devhost,) = found.keys() - {release}
    return found[devhost], found[release]


def test_its_pods_are_not_taken_for_those_of_devhost_or_of_the_operator(chart: Chart) -> None:
    devhost, release = sets(chart.render(VALUES))
    own = devhost["spec"]["selector"]["matchLabels"]
    pods = release["spec"]["template"]["metadata"]["labels"]
    assert not own.items() <= pods.items()
    assert pods["app.kubernetes.io/name"] != own["app.kubernetes.io/name"]  # which keeps releases apart
    assert "app" not in release["spec"]["selector"]["matchLabels"]
    assert release["spec"]["selector"]["matchLabels"].items() <= pods.items()


@pytest.mark.parametrize("namespace", ["GPU", "-gpu", "a.b"])
def test_a_namespace_that_cannot_exist_is_refused(chart: Chart, namespace: str) -> None:
    assert "gpuOperator" in refusal(chart, {"config": CONFIG, "gpuOperator": {"namespace": namespace}})


def test_it_needs_a_gpu_in_the_configuration(chart: Chart) -> None:
    config = {"version": 1, "resources": [{"name": "a.example/b", "backend": "udev", "where": {}}]}
    text = refusal(chart, {"config": config, "gpuOperator": {"namespace": "gpu-operator"}})
    assert "gpuOperator.namespace is set, but no resource of config has backend gpu" in text
