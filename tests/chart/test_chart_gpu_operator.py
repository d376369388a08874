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


def volumes(daemonset: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one for one in daemonset["spec"]["template"]["spec"]["volumes"]}


def test_a_pod_that_the_operators_managers_remove_first_releases_the_driver(chart: Chart) -> None:
    devhost, release = sets(chart.render(VALUES))
    assert release["metadata"]["namespace"] == "gpu-operator"
    template = release["spec"]["template"]
    assert template["metadata"]["labels"]["app"] == "nvidia-device-plugin-daemonset"
    spec = template["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.deploy.device-plugin": "true", "pool": "gpu"}
    assert spec["tolerations"] == VALUES["tolerations"]
    (container,) = spec["containers"]
    assert container["args"] == ["release", "gpu", "--when-stopped"]
    assert container["image"] == devhost["spec"]["template"]["spec"]["containers"][0]["image"]
    assert volumes(devhost)["run"] == volumes(release)["run"]
    assert volumes(release)["run"]["hostPath"]["path"] == "/run/devhost-shared"


def test_its_pods_are_not_taken_for_those_of_devhost_or_of_the_operator(chart: Chart) -> None:
    devhost, release = sets(chart.render(VALUES))
    own = devhost["spec"]["selector"]["matchLabels"]
    pods = release["spec"]["template"]["metadata"]["labels"]
    assert not own.items() <= pods.items()
    assert pods["app.kubernetes.io/name"] != own["app.kubernetes.io/name"]  # which keeps releases apart
    assert "app" not in release["spec"]["selector"]["matchLabels"]
    assert release["spec"]["selector"]["matchLabels"].items() <= pods.items()


def test_the_container_sees_the_operators_files_and_each_new_driver(chart: Chart) -> None:
    devhost, _ = sets(chart.render(VALUES))
    paths = {one["hostPath"]["path"] for one in volumes(devhost).values() if "hostPath" in one}
    assert "/run/nvidia" in paths
    assert "/run/nvidia/driver" not in paths
    (container,) = devhost["spec"]["template"]["spec"]["containers"]
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == "/host/run/nvidia")
    assert mount["mountPropagation"] == "HostToContainer"
    assert mount["readOnly"] is True


def test_nothing_of_it_is_made_unasked(chart: Chart) -> None:
    rendered = chart.render({"config": CONFIG})
    assert len(_daemonsets(rendered)) == 1
    assert "emptyDir" in volumes(rendered.only("DaemonSet"))["run"]


@pytest.mark.parametrize("namespace", ["GPU", "-gpu", "a.b"])
def test_a_namespace_that_cannot_exist_is_refused(chart: Chart, namespace: str) -> None:
    assert "gpuOperator" in refusal(chart, {"config": CONFIG, "gpuOperator": {"namespace": namespace}})


def test_it_needs_a_gpu_in_the_configuration(chart: Chart) -> None:
    config = {"version": 1, "resources": [{"name": "a.example/b", "backend": "udev", "where": {}}]}
    text = refusal(chart, {"config": config, "gpuOperator": {"namespace": "gpu-operator"}})
    assert "gpuOperator.namespace is set, but no resource of config has backend gpu" in text
