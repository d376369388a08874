"""`devhost import --from-cluster`: what kubectl prints, and the ConfigMaps that the plugin uses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from devhost_import.command import command
from importing import said

KUBECTL = """#!/bin/sh
# prints the file for a kind of objects, as kubectl does for a cluster that knows it
case "$*" in *-A*) ;; *"-n gpu-operator"*) ;; *) exit 9 ;; esac
if [ -f "$ANSWERS/$2" ]; then cat "$ANSWERS/$2"
elif [ "$2" = forbidden.example.org ]; then exit 1
else echo 'error: the server doesn'"'"'t have a resource type "'"$2"'"' >&2; exit 1; fi
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL)
    program.chmod(0o755)
    return tmp_path


def imported(cluster: Path, peer: str, *arguments: str) -> Result:
    path = f"{cluster / 'bin'}:{os.environ['PATH']}"
    environment = {"PATH": path, "ANSWERS": str(cluster)}
    return CliRunner().invoke(command, [peer, *arguments, "--from-cluster"], env=environment)


def answer(cluster: Path, kind: str, *items: object) -> None:
    (cluster / kind).write_text(json.dumps({"kind": "List", "items": items}))


POLICY = {
    "kind": "ClusterPolicy",
    "metadata": {"name": "cluster-policy"},
    "spec": {"mig": {"strategy": "mixed"}, "devicePlugin": {"config": {"name": "slices", "default": "any"}}},
}
SLICES = {
    "kind": "ConfigMap",
    "metadata": {"name": "slices", "namespace": "gpu-operator"},
    "data": {"any": "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}"},
}


def test_the_object_of_an_operator_is_read_with_the_config_map_that_it_names(cluster: Path) -> None:
    answer(cluster, "clusterpolicies.nvidia.com", POLICY)
    answer(cluster, "daemonsets.apps")
    answer(cluster, "configmaps", SLICES)
    done = imported(cluster, "nvidia-device-plugin")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "    share: {replicas: 3}" in done.stdout and "nvidia.com/mig-{profile}" in done.stdout


def test_a_daemon_set_is_found_by_its_image(cluster: Path) -> None:
    containers = [{"image": "intel/intel-gpu-plugin:0.34.1", "args": ["-shared-dev-num=7"]}]
    other = [{"image": "nginx", "args": ["-x"]}]
    answer(
        cluster,
        "daemonsets.apps",
        *(
            {
                "kind": "DaemonSet",
                "metadata": {"name": name},
                "spec": {"template": {"spec": {"containers": one}}},
            }
            for name, one in (("web", other), ("gpu", containers))
        ),
    )
    done = imported(cluster, "intel-device-plugins")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "share: {replicas: 7}" in done.stdout and "web" not in said(done.stdout)


def test_a_mirrored_image_is_found_by_the_names_beside_it(cluster: Path) -> None:
    containers = [{"name": "nvidia-device-plugin-ctr", "image": "mirror.local/x/k8s-device-plugin:v0.17"}]
    spec = {"template": {"spec": {"containers": containers}}}
    plugin = {"kind": "DaemonSet", "metadata": {"name": "gpus"}, "spec": spec}
    answer(cluster, "daemonsets.apps", plugin)
    done = imported(cluster, "nvidia-device-plugin")
    assert done.exit_code == 0 and "nvidia.com/gpu" in done.stdout


@pytest.mark.parametrize(
    "container",
    [
        {"envFrom": [{"configMapRef": {"name": "nv"}}]},
        {"env": [{"name": "MIG_STRATEGY", "valueFrom": {"configMapKeyRef": {"name": "nv", "key": "mig"}}}]},
    ],
)
def test_a_config_map_of_variables_is_read_as_well(cluster: Path, container: dict[str, object]) -> None:
    spec = {"template": {"spec": {"containers": [{"image": "nvidia/k8s-device-plugin"} | container]}}}
    answer(cluster, "daemonsets.apps", {"kind": "DaemonSet", "metadata": {"name": "gpus"}, "spec": spec})
    data = {"MIG_STRATEGY": "mixed", "mig": "mixed"}
    answer(cluster, "configmaps", {"kind": "ConfigMap", "metadata": {"name": "nv"}, "data": data})
    assert "nvidia.com/mig-{profile}" in imported(cluster, "nvidia-device-plugin").stdout


@pytest.mark.parametrize(
    "volume", [{"configMap": {"name": "nv"}}, {"projected": {"sources": [{"configMap": {"name": "nv"}}]}}]
)
def test_a_config_map_of_a_volume_is_read_as_well(cluster: Path, volume: dict[str, object]) -> None:
    mount = {"volumeMounts": [{"name": "c", "mountPath": "/c"}], "args": ["--config-file=/c/x"]}
    spec = {
        "containers": [{"image": "nvidia/k8s-device-plugin"} | mount],
        "volumes": [volume | {"name": "c"}],
    }
    plugin = {"kind": "DaemonSet", "metadata": {"name": "gpus"}, "spec": {"template": {"spec": spec}}}
    answer(cluster, "daemonsets.apps", plugin)
    data = {"x": "flags: {migStrategy: mixed}"}
    answer(cluster, "configmaps", {"kind": "ConfigMap", "metadata": {"name": "nv"}, "data": data})
    assert "nvidia.com/mig-{profile}" in imported(cluster, "nvidia-device-plugin").stdout


@pytest.mark.parametrize(
    ("peer", "arguments", "message"),
    [
        ("kubevirt", [], "the cluster has none of: kubevirts.kubevirt.io"),
        ("kubevirt", ["file.yaml"], "give either FILE or --from-cluster"),
    ],
)
def test_a_cluster_without_the_plugin_is_one_line(
    cluster: Path, peer: str, arguments: list[str], message: str
) -> None:
    answer(cluster, "daemonsets.apps")
    done = imported(cluster, peer, *arguments)
    assert message in str(done.exception) and "\n" not in str(done.exception)
    assert done.stdout == ""


def test_the_reason_of_kubectl_is_reported_in_one_line(cluster: Path) -> None:
    answer(cluster, "kubevirts.kubevirt.io", POLICY)
    (cluster / "bin" / "kubectl").write_text(
        "#!/bin/sh\necho 'log line' >&2\necho 'Forbidden: daemonsets' >&2\nexit 1\n"
    )
    done = imported(cluster, "kubevirt")
    assert "kubectl get kubevirts.kubevirt.io -A -o json failed: Forbidden: daemonsets" in str(done.exception)


def test_a_missing_kubectl_is_reported(cluster: Path) -> None:
    (cluster / "bin" / "kubectl").unlink()
    environment = {"PATH": str(cluster / "bin")}
    done = CliRunner().invoke(command, ["kubevirt", "--from-cluster"], env=environment)
    assert "kubectl is not installed" in str(done.exception)


def test_either_a_file_or_the_cluster_is_given() -> None:
    done = CliRunner().invoke(command, ["kubevirt"])
    assert "give either FILE or --from-cluster" in str(done.exception)


def test_a_cluster_that_answers_with_more_than_64_mib_is_refused(cluster: Path) -> None:
    with (cluster / "clusterpolicies.nvidia.com").open("wb") as file:
        file.truncate((64 << 20) + 1)
    done = imported(cluster, "nvidia-device-plugin")
    assert "kubectl get clusterpolicies.nvidia.com -A -o json printed more than 64 MiB" in str(done.exception)
    assert "give a file" in str(done.exception)


def test_a_relative_kubeconfig_is_found(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = cluster / "bin" / "kubectl"
    program.write_text(f'#!/bin/sh\n[ -f "$KUBECONFIG" ] || exit 9\n{KUBECTL}')
    (cluster / "config").touch()
    answer(cluster, "clusterpolicies.nvidia.com", POLICY)
    answer(cluster, "daemonsets.apps")
    answer(cluster, "configmaps", SLICES)
    monkeypatch.chdir(cluster)
    monkeypatch.setenv("KUBECONFIG", "config")
    assert imported(cluster, "nvidia-device-plugin").exit_code == 0
