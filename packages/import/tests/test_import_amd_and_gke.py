"""`devhost import amd-device-plugin` and `gke-device-plugin`: flags and gpu_config.json as entries."""

from __future__ import annotations

import json
from pathlib import Path

import peer_machines as machines
import pytest
from importing import converted, installed, offered, refusal, run, said, wheres

AMD, GKE = "amd-device-plugin", "gke-device-plugin"

if not {"gpu", "sriov"} <= installed().installed.keys():
    pytest.skip("the result is for the gpu and sriov backends", allow_module_level=True)


def daemonset(image: str, *words: str, name: str = "plugin", env: str = "") -> str:
    container = {
        "image": image,
        "args": list(words),
        "env": [{"name": "XID_CONFIG", "value": env}] if env else [],
    }
    spec = {"template": {"spec": {"containers": [{"image": "sidecar"}, container]}}}
    return json.dumps({"kind": "DaemonSet", "metadata": {"name": name}, "spec": spec})


def amd(*words: str, name: str = "plugin") -> str:
    return daemonset("rocm/k8s-device-plugin", *words, name=name)


def gke(*words: str, env: str = "") -> str:
    return daemonset("gcr.io/nvidia-gpu-device-plugin", *words, env=env)


def test_partitions_share_a_name_by_default_and_have_separate_names_with_mixed(tmp_path: Path) -> None:
    machines.partitioned(tmp_path)
    single = offered(run(AMD, amd("-pulse=2")).stdout, tmp_path)
    assert {name: len(devices) for name, devices in single.items()} == {"amd.com/gpu": 64}
    mixed = offered(run(AMD, amd("-resource_naming_strategy=mixed")).stdout, tmp_path)
    assert {name: len(devices) for name, devices in mixed.items()} == {"amd.com/cpx_nps4": 64}


def test_gpus_without_partitions_keep_their_name_with_mixed(tmp_path: Path) -> None:
    machines.instinct(tmp_path)
    found = offered(run(AMD, amd("--resource_naming_strategy", "mixed")).stdout, tmp_path)
    assert {name: len(devices) for name, devices in found.items()} == {"amd.com/gpu": 4}


@pytest.mark.parametrize(
    ("words", "name", "kind"),
    [
        (["-driver_type=vf-passthrough"], "gpu", "vf"),
        (["-driver_type=pf-passthrough", "-resource_naming_strategy=mixed"], "gpu_pf", "pf"),
    ],
)
def test_passthrough_is_for_virtual_machines(words: list[str], name: str, kind: str) -> None:
    entry = converted(AMD, amd(*words))[f"amd.com/{name}"]
    assert (entry.backend, wheres(entry)) == (
        "sriov",
        [f"vendor: 1002, kind: {kind}, pciClass: 03* or 12*, driver: vfio-pci"],
    )
    assert "kubevirt: true" in run(AMD, amd(*words)).stdout


def test_the_arguments_of_a_deviceconfig_are_flags() -> None:
    plugin = {"devicePluginArguments": {"resource_naming_strategy": "mixed"}, "enableNodeLabeller": False}
    text = json.dumps({"kind": "DeviceConfig", "spec": {"devicePlugin": plugin}})
    assert list(converted(AMD, text)) == ["amd.com/{profile}", "amd.com/gpu"]
    assert "labels: {write: true}" not in run(AMD, text).stdout
    with_driver = json.dumps({"kind": "DeviceConfig", "spec": {"driver": {"driverType": "vf-passthrough"}}})
    assert list(converted(AMD, with_driver)) == ["amd.com/gpu_vf"]


def test_a_shell_command_line_of_the_operator_is_read() -> None:
    line = "./k8s-device-plugin -logtostderr=true -v=5 -pulse=30 -resource_naming_strategy=mixed"
    assert "amd.com/{profile}" in converted(AMD, amd("-c", line))


def test_the_node_labeller_is_replaced_by_labels_only_if_there_is_one() -> None:
    text = f"{amd()}\n---\n{amd('-vram', name='amdgpu-labeller-daemonset')}"
    result = run(AMD, text).stdout
    assert "labels: those of the node labeller: remove it, or both write them." in said(result)
    assert "\nlabels: {write: true}\n" in result and "-vram" not in result
    assert "labels: {write: true}" in run(AMD, "labeller: {enabled: true}\ndp: {}").stdout
    for without in (amd(), "labeller: {enabled: false}\ndp: {}"):
        assert "label" not in run(AMD, without).stdout


def test_different_flags_for_several_groups_of_nodes_are_refused_with_the_names_of_the_objects() -> None:
    one, other = amd("-resource_naming_strategy=mixed", name="a"), amd(name="b")
    message = "different configurations of the AMD GPU device plugin: DaemonSet a, DaemonSet b"
    assert message in refusal(AMD, f"{one}\n---\n{other}")
    assert list(converted(AMD, f"{other}\n---\n{amd('-v=5', '-driver_type=container', name='c')}")) == [
        "amd.com/gpu"
    ]


def test_the_daemonset_that_an_operator_made_is_not_read_beside_its_object() -> None:
    config = {
        "kind": "DeviceConfig",
        "metadata": {"name": "gpus"},
        "spec": {"driver": {"driverType": "vf-passthrough"}},
    }
    made = json.loads(amd("-resource_naming_strategy=mixed"))
    made["metadata"]["ownerReferences"] = [{"kind": "DeviceConfig", "name": "gpus"}]
    assert list(converted(AMD, f"{json.dumps(config)}\n---\n{json.dumps(made)}")) == ["amd.com/gpu_vf"]


@pytest.mark.parametrize(
    ("image", "name", "words", "is_amd"),
    [
        ("nvcr.io/nvidia/k8s-device-plugin:v0.17.0", "plugin", [], False),
        ("mirror/k8s-device-plugin:v0.17.0-amd64", "nvidia-device-plugin-daemonset", [], False),
        ("amd.example.org/k8s-device-plugin:v0.17.0", "nvidia-device-plugin-daemonset", [], False),
        ("mirror/k8s-device-plugin:v1", "amdgpu-device-plugin-daemonset", [], True),
        ("mirror/k8s-device-plugin:v1", "plugin", ["-pulse=30"], True),
        ("mirror/k8s-device-plugin:v1", "plugin", [], False),
    ],
)
def test_the_plugin_of_nvidia_with_the_same_image_name_is_not_taken_for_amds(
    image: str, name: str, words: list[str], is_amd: bool
) -> None:
    done = run(AMD, daemonset(image, *words, name=name))
    assert (done.exit_code == 0) is is_amd


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (daemonset("nginx"), "no container runs the AMD GPU device plugin (k8s-device-plugin)"),
        (amd("-driver_type=vm"), "args[0]: must be one of container, vf-passthrough, pf-passthrough"),
        (amd("-resource_naming_strategy=all"), 'must be one of single, mixed, not "all"'),
        ("kind: Service", 'a "Service" contains no configuration (give the plugin\'s DaemonSet'),
    ],
)
def test_flags_that_the_amd_plugin_refuses_are_refused_in_one_line(text: str, message: str) -> None:
    assert message in refusal(AMD, text)


def config(**keys: object) -> str:
    return json.dumps(keys)


SHARED = {"GPUSharingStrategy": "time-sharing", "MaxSharedClientsPerGPU": 4}


def test_every_key_of_gpu_config_is_kept() -> None:
    text = config(GPUPartitionSize="1g.5gb", GPUSharingConfig=SHARED, HealthCriticalXid=[79, 74])
    entry = converted(GKE, text)["nvidia.com/gpu"]
    assert wheres(entry) == ["vendor: nvidia, kind: mig, profile: 1g.5gb"]
    assert (entry.share.replicas, entry.share.max_per_container, entry.permissions) == (4, 1, "mrw")
    assert "    heedXids: [48, 74, 79]" in run(GKE, text).stdout
    old = converted(GKE, config(MaxTimeSharedClientsPerGPU=3))["nvidia.com/gpu"]
    assert (old.share.replicas, old.share.max_per_container) == (3, 1)


def test_mps_uses_the_gke_pipe_directory_without_a_limit_of_shares() -> None:
    text = config(GPUSharingConfig={"gpuSharingStrategy": "mps", "maxSharedClientsPerGPU": 2})
    entry = converted(GKE, text)["nvidia.com/gpu"]
    assert (entry.share.replicas, entry.share.max_per_container) == (2, None)
    assert "    mps: {pipeDirectory: /tmp/nvidia-mps}" in run(GKE, text).stdout


def test_whole_gpus_are_offered_without_a_partition_size(tmp_path: Path) -> None:
    machines.nvidia(tmp_path)
    found = offered(run(GKE, config(GPUSharingConfig=SHARED)).stdout, tmp_path)
    assert {name: sorted(devices.values()) for name, devices in found.items()} == {"nvidia.com/gpu": [4, 4]}


def test_flags_and_variables_of_the_daemonset_are_combined_with_the_configuration() -> None:
    config_map = json.dumps(
        {"kind": "ConfigMap", "data": {"gpu_config.json": config(GPUSharingConfig=SHARED)}}
    )
    flags = gke("--enable-health-monitoring", "--host-path=/opt/nvidia", "-logtostderr", env="74, 79")
    text = f"{config_map}\n---\n{flags}"
    assert converted(GKE, text)["nvidia.com/gpu"].share.replicas == 4
    result = run(GKE, text).stdout
    assert "    heedXids: [48, 74, 79]" in result and "    driverDirectory: /opt/nvidia" in result


def test_health_checks_are_enabled_only_by_the_flag() -> None:
    assert "    healthChecks: none" in run(GKE, gke("-logtostderr")).stdout
    assert "    healthChecks: [xid]" in run(GKE, gke("--enable-health-monitoring=true")).stdout
    assert "    healthChecks: none" in run(GKE, gke("--enable-health-monitoring=false")).stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "<stdin>:1:1: must be a mapping"),
        (config(GPUSharingConfig={"GPUSharingStrategy": "mps"}), "set both GPUSharingStrategy and Max"),
        (config(GPUSharingConfig={"MaxSharedClientsPerGPU": 2}), "set both GPUSharingStrategy and Max"),
        (config(GPUSharingConfig={**SHARED, "GPUSharingStrategy": "x"}), "must be one of time-sharing, mps"),
        (config(GPUPartitionSize=1), "GPUPartitionSize: must be text"),
        (gke(env="many"), 'XID_CONFIG: "many" is not a number'),
        (daemonset("nginx"), "none of its containers runs the GKE GPU device plugin"),
    ],
)
def test_a_configuration_that_the_gke_plugin_refuses_is_refused_in_one_line(text: str, message: str) -> None:
    assert message in refusal(GKE, text)


def test_a_file_of_the_node_that_is_not_in_the_input_is_named() -> None:
    missing = "gpu_config.json is not in the input, so no partition size and no sharing is converted."
    assert missing in said(run(GKE, gke()).stdout)
    both = run(GKE, f"{gke()}\n---\n{config(GPUSharingConfig=SHARED)}").stdout
    assert "replicas: 4" in both and missing not in said(both)
