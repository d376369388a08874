"""Every import reads the same containers of configuration, and loses no key of any."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import devhost_import
import peer_machines as machines
import pytest
from devhost_import.source import UNKNOWN, Source
from importing import converted, installed, offered, refusal, run, said

from devhost.cli.check import importers_of

if not {"udev", "gpu", "sriov", "rdma"} <= installed().installed.keys():
    pytest.skip("the results are for several backends", allow_module_level=True)

NVIDIA, SMARTER, INTEL = "nvidia-device-plugin", "smarter-device-manager", "intel-device-plugins"
RULE = "config: [{devicematch: ^fuse$, nummaxdevices: 3}]"


def application(**helm: object) -> str:
    source = {"chart": "smarter-device-manager", "repoURL": "https://example.org", "helm": helm}
    return json.dumps({"kind": "Application", "metadata": {"name": "x"}, "spec": {"source": source}})


@pytest.mark.parametrize(
    "text",
    [
        RULE,
        f"USER-SUPPLIED VALUES:\n{RULE}\n",
        f"smarter-device-manager:\n  {RULE}\nother: {{}}\n",
        f"{{kind: HelmRelease, metadata: {{name: x}}, spec: {{values: {{{RULE}}}}}}}",
        f"{{kind: HelmChart, metadata: {{name: x}}, spec: {{valuesContent: '{RULE}'}}}}",
        application(values=RULE),
        application(
            valuesObject={"config": [{"devicematch": "^fuse$", "nummaxdevices": 3}]}, values="config: []"
        ),
        json.dumps({"kind": "List", "items": [json.loads(application(values=RULE))]}),
    ],
    ids=["helm-get", "header", "subchart", "flux", "k3s", "argo", "argo-object", "list"],
)
def test_values_of_a_chart_are_read_wherever_they_are(text: str) -> None:
    assert converted(SMARTER, text)["smarter-devices/fuse"].share.replicas == 3


def test_parameters_of_an_application_win_over_its_values() -> None:
    text = json.loads(
        application(values="migStrategy: none", parameters=[{"name": "migStrategy", "value": "mixed"}])
    )
    text["spec"]["source"]["chart"] = "nvidia-device-plugin"
    assert "nvidia.com/mig-{profile}" in converted(NVIDIA, json.dumps(text))


@pytest.mark.parametrize("key", ["valuesFrom", "valuesSecrets"])
def test_values_in_other_places_are_refused_with_the_command_that_prints_all(key: str) -> None:
    kind = "HelmRelease" if key == "valuesFrom" else "HelmChart"
    text = json.dumps(
        {"kind": kind, "metadata": {"name": "nvdp"}, "spec": {"chart": {}, key: [{"name": "x"}]}}
    )
    assert "helm get values nvdp" in refusal(NVIDIA, text)


def of_variables(*args: str, **container: object) -> dict[str, object]:
    given = {"name": "main", "image": "nvidia/k8s-device-plugin", "args": [*args]} | container
    return {"kind": "DaemonSet", "spec": {"template": {"spec": {"containers": [given]}}}}


MIXED = {"kind": "ConfigMap", "metadata": {"name": "nv"}, "data": {"MIG_STRATEGY": "mixed"}}
REFERENCE = {"configMapKeyRef": {"name": "nv", "key": "MIG_STRATEGY"}}


@pytest.mark.parametrize(
    ("args", "container"),
    [
        ((), {"envFrom": [{"configMapRef": {"name": "nv"}}]}),
        ((), {"env": [{"name": "MIG_STRATEGY", "valueFrom": REFERENCE}]}),
        (("--mig-strategy=$(MIG)",), {"env": [{"name": "MIG", "valueFrom": REFERENCE}]}),
        (
            ("--mig-strategy", "$(P_MIG_STRATEGY)"),
            {"envFrom": [{"prefix": "P_", "configMapRef": {"name": "nv"}}]},
        ),
        (
            (),
            {"env": [{"name": "MIG", "value": "mixed"}, {"name": "MIG_STRATEGY", "value": "$(MIG)"}]},
        ),
        (
            ("exec nvidia-device-plugin --mig-strategy ${MIG}; sleep 1",),
            {"command": ["/bin/sh", "-ec"], "env": [{"name": "MIG", "value": "mixed"}]},
        ),
    ],
    ids=["envFrom", "valueFrom", "argument", "prefix", "variable", "script"],
)
def test_variables_have_the_values_that_kubernetes_gives_them(
    args: tuple[str, ...], container: dict[str, object]
) -> None:
    text = listed(of_variables(*args, **container), MIXED)
    assert "nvidia.com/mig-{profile}" in converted(NVIDIA, text)
    assert UNKNOWN not in said(run(NVIDIA, text).stdout)


def test_variables_from_an_object_that_is_not_in_the_input_are_named_with_what_to_do() -> None:
    one = of_variables(env=[{"name": "MIG_STRATEGY", "valueFrom": REFERENCE}])
    remark = "MIG_STRATEGY: the value is in the ConfigMap nv: add that to the input."
    assert remark in said(run(NVIDIA, json.dumps(one)).stdout)
    one = of_variables(envFrom=[{"secretRef": {"name": "nv"}}])
    assert "envFrom: the value is in the Secret nv: write it in env" in said(
        run(NVIDIA, json.dumps(one)).stdout
    )


def test_a_configmap_of_variables_is_not_taken_for_the_configuration() -> None:
    env = [{"name": "XID_CONFIG", "valueFrom": REFERENCE}]
    args = ["nvidia-gpu-device-plugin", "-enable-health-monitoring"]
    text = listed(of_variables(command=args, env=env), MIXED | {"data": {"MIG_STRATEGY": "61,62"}})
    assert "heedXids: [48, 61, 62]" in run("gke-device-plugin", text).stdout


def test_a_key_that_no_import_knows_is_named_with_what_to_do() -> None:
    text = json.dumps(of_variables(env=[{"name": "NEW", "value": "x"}]))
    assert f"NEW x: {UNKNOWN}" in said(run(NVIDIA, text).stdout)
    text = json.dumps({"kind": "ConfigMap", "data": {"default": "version: v1"}, "binaryData": {"x": "eA=="}})
    assert f"binaryData: {UNKNOWN}" in said(run(NVIDIA, text).stdout)


def test_equal_pods_of_several_nodes_are_one_plugin() -> None:
    spec = {
        "containers": [
            {"image": "nvidia/k8s-device-plugin", "env": [{"name": "MIG_STRATEGY", "value": "mixed"}]}
        ]
    }
    pods = [{"kind": "Pod", "metadata": {"name": name}, "spec": spec} for name in ("a", "b")]
    assert "nvidia.com/mig-{profile}" in converted(NVIDIA, json.dumps({"kind": "List", "items": pods}))
    other = {"containers": [{"image": "nvidia/k8s-device-plugin"}]}
    pods.append({"kind": "Pod", "metadata": {"name": "c"}, "spec": other})
    assert "different configurations of the NVIDIA device plugin: Pod a, Pod c" in refusal(
        NVIDIA, json.dumps({"kind": "List", "items": pods})
    )


@pytest.mark.parametrize("image", ["x/{}:v3-{}", "x/{}-{}:v3", "x/{}-{}"])
def test_workloads_that_differ_in_the_processor_of_their_image_are_one_plugin(image: str) -> None:
    """Manifests of several plugins have a DaemonSet for each architecture."""
    peer = "sriov-network-device-plugin"
    every = [workload(name, image.format(peer, name), "--log-level=10") for name in ("arm64", "ppc64le")]
    for one in every:
        one["spec"]["selector"] = {"matchLabels": {"app": "sriovdp"}}  # type: ignore[index]
    file = config_map(
        "sriovdp", **{"config.json": '{"resourceList": [{"resourceName": "a", "selectors": {}}]}'}
    )
    result = said(run(peer, listed(*every, file)).stdout)
    assert "name: intel.com/a" in result
    assert UNKNOWN not in result
    other = workload("other", f"x/{peer}:v3", "--resource-prefix=example.org")
    assert f"different configurations of {peer}: DaemonSet arm64, DaemonSet other" in refusal(
        peer, listed(*every, other, file)
    )


@pytest.mark.parametrize("more", ["", "nfd: {master: {}}\n", "gfd: {enabled: true}\nnfd: {}\n"])
def test_values_of_the_plugins_chart_are_not_taken_for_those_of_the_operator(more: str) -> None:
    result = run(NVIDIA, f"deviceListStrategy: volume-mounts\ncompatWithCPUManager: true\n{more}").stdout
    assert "deviceListStrategy: [volume-mounts, device-specs]" in result and "driverRoot" not in result


def test_other_objects_are_named_once() -> None:
    text = "kind: Secret\nmetadata: {name: token}\n---\nkind: GpuDevicePlugin\nspec: {}\n"
    assert "Not part of the plugin's configuration: Secret token." in said(run(INTEL, text).stdout)


POLICY = {"kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ["deviceListStrategy: cdi", "driverRoot: /run/nvidia/driver", "labels: {write: true}"]),
        ({"cdi": {"enabled": False}}, ["deviceListStrategy: [envvar, device-specs]"]),
        ({"driver": {"enabled": False}, "cdi": {"enabled": False}}, ["[envvar, device-specs]"]),
        ({"hostPaths": {"driverInstallDir": "/opt/nv"}}, ["driverRoot: /opt/nv"]),
        (
            {"toolkit": {"installDir": "/opt/tk"}},
            [
                "nvidiaCTKPath: /opt/tk/toolkit/nvidia-ctk",
                "nvidiaCDIHookPath: /opt/tk/toolkit/nvidia-cdi-hook",
            ],
        ),
        (
            {"devicePlugin": {"env": [{"name": "DEVICE_LIST_STRATEGY", "value": "volume-mounts"}]}},
            ["deviceListStrategy: [volume-mounts, device-specs]"],
        ),
        ({"devicePlugin": {"args": ["--mig-strategy=mixed"]}}, ["nvidia.com/mig-{profile}"]),
        (
            {"gds": {"enabled": True}, "gdrcopy": {"enabled": True}},
            ["gdsEnabled: true", "gdrcopyEnabled: true"],
        ),
    ],
)
def test_what_the_gpu_operator_sets_by_itself_counts(spec: object, words: list[str]) -> None:
    result = run(NVIDIA, json.dumps(POLICY | {"spec": spec})).stdout
    for word in words:
        assert word in result
    if "driver" in str(spec) and "enabled': False" in str(spec.get("driver", "")):  # type: ignore[attr-defined]
        assert "driverRoot" not in result


@pytest.mark.parametrize(
    ("directory", "root"), [("/opt/nv", "/opt/nv"), ("/run/nvidia/driver", "/a"), ("", "/a")]
)
def test_a_driver_of_the_node_is_where_the_gpu_operator_looks_for_it(directory: str, root: str) -> None:
    """``runValidation`` in the operator's ``cmd/nvidia-validator/main.go``; on GKE it is below /home."""
    paths = {"driverInstallDir": directory, "rootFS": "/a"}
    result = run(
        NVIDIA, json.dumps(POLICY | {"spec": {"driver": {"enabled": False}, "hostPaths": paths}})
    ).stdout
    assert f"    driverRoot: {root}\n" in result
    assert ("uses /a instead if it finds a driver there" in result) == (root != "/a")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"DP_DISABLE_HEALTHCHECKS": "all"}, "healthChecks: none"),
        ({"DP_DISABLE_HEALTHCHECKS": "xids", "DP_ENABLE_HEALTHCHECKS": "48"}, "healthChecks: none"),
        ({"DP_DISABLE_HEALTHCHECKS": "74, 63,word"}, "ignoreXids: [63, 74]"),
        ({"DP_ENABLE_HEALTHCHECKS": "31"}, "heedXids: [31]"),
        (
            {"DP_ENABLE_HEALTHCHECKS": "all", "DP_DISABLE_HEALTHCHECKS": "63"},
            "heedXids: [13, 31, 43, 45, 68, 109]",
        ),
    ],
)
def test_variables_for_health_checks_mean_what_they_mean_to_the_plugin(
    variables: dict[str, str], words: str
) -> None:
    env = [{"name": name, "value": value} for name, value in variables.items()]
    result = run(NVIDIA, json.dumps(POLICY | {"spec": {"devicePlugin": {"env": env}}})).stdout
    assert words in result


@pytest.mark.parametrize("order", [(2, 8), (8, 2)])
def test_two_entries_for_one_resource_add_up_as_in_the_plugin(order: tuple[int, int]) -> None:
    """It gives replicas ids from 0, so the higher number includes the lower one."""
    shares = [{"name": "nvidia.com/gpu", "replicas": number} for number in order]
    text = json.dumps({"sharing": {"timeSlicing": {"resources": shares}}})
    assert converted(NVIDIA, text)["nvidia.com/gpu"].share.replicas == 8


def test_as_written_keeps_every_entry_of_one_resource() -> None:
    shares = [
        {"name": "gpu", "rename": "light", "devices": ["0"], "replicas": 2},
        {"name": "gpu", "devices": ["1"], "replicas": 8},
        {"name": "gpu", "devices": ["2"], "replicas": 4},
    ]
    text = json.dumps({"sharing": {"timeSlicing": {"resources": shares}}})
    entries = converted(NVIDIA, text, "--as-written")
    assert entries["nvidia.com/light"].share.replicas == 2
    assert [one.replicas for one in entries["nvidia.com/gpu"].share.overrides] == [8, 4]


def test_equal_usb_selectors_of_kubevirt_are_different_sticks(tmp_path: Path) -> None:
    two = {"resourceName": "kubevirt.io/two", "selectors": [{"vendor": "46f4", "product": "0001"}] * 2}
    text = run("kubevirt", json.dumps({"permittedHostDevices": {"usb": [two]}})).stdout
    machines.usb_sticks(tmp_path, 5)
    first, second = (f"/dev/bus/usb/001/00{n} /dev/bus/usb/001/00{n + 1}" for n in (2, 4))
    assert offered(text, tmp_path) == {"kubevirt.io/two": {first: 1, second: 1}}


@pytest.mark.parametrize(
    ("kind", "spec", "path"),
    [
        ("KubeVirt", {"configuration": {"pciHostDevices": []}}, "spec.configuration.pciHostDevices"),
        ("KubeVirt", {"usb": [{"resourceName": "a.b/c"}]}, "spec.usb"),
        (
            "KubeVirt",
            {"permittedHostDevices": {"mediatedDevices": []}},
            "spec.permittedHostDevices.mediatedDevices",
        ),
        ("HyperConverged", {"mediatedDevices": []}, "spec.mediatedDevices"),
    ],
)
def test_a_list_of_devices_in_another_place_is_reported(kind: str, spec: object, path: str) -> None:
    right = (
        "spec.permittedHostDevices" if kind == "HyperConverged" else "spec.configuration.permittedHostDevices"
    )
    result = run("kubevirt", json.dumps({"kind": kind, "spec": spec})).stdout
    assert f"{path}: KubeVirt ignores it here: move it below {right}" in said(result)


def test_several_functions_under_one_name_are_explained() -> None:
    devices = [
        {"pciVendorSelector": ids, "resourceName": "nvidia.com/gpu"} for ids in ("10de:1eb8", "10de:10f8")
    ]
    result = run("kubevirt", json.dumps({"permittedHostDevices": {"pciHostDevices": devices}})).stdout
    assert "such as a GPU and its audio, give them different names" in said(result)


def test_a_link_of_udev_becomes_a_group_with_its_path() -> None:
    text = '- {devicematch: "^serial/by-id/usb-FTDI_A1-if00-port0$", nummaxdevices: 1}\n'
    result = run(SMARTER, text).stdout
    assert "- {path: /dev/serial/by-id/usb-FTDI_A1-if00-port0}" in result
    assert "smarter-devices/serial_by-id_usb-FTDI_A1-if00-port0" in converted(SMARTER, text)


@pytest.mark.parametrize(
    ("image", "flags", "name", "replicas"),
    [
        ("intel/intel-gpu-plugin", ["-shared-dev-num", "4"], "gpu.intel.com/{driver}", 4),
        ("example.org/intel-sgx-plugin:1", ["-enclave-limit=7"], "sgx.intel.com/enclave", 7),
        ("intel/intel-sgx-plugin", [], "sgx.intel.com/provision", 110),
        ("intel/intel-iaa-plugin", ["-shared-dev-num=9"], "iaa.intel.com/wq-user-shared", 9),
    ],
)
def test_flags_of_intel_plugins_are_the_keys_of_their_objects(
    image: str, flags: list[str], name: str, replicas: int
) -> None:
    spec = {"template": {"spec": {"containers": [{"image": image, "args": flags}]}}}
    assert converted(INTEL, json.dumps({"kind": "DaemonSet", "spec": spec}))[name].share.replicas == replicas


def test_an_object_of_intels_own_chart_is_accepted() -> None:
    """The chart writes the policy none; only balanced and packed need shared devices."""
    text = json.dumps(
        {"kind": "GpuDevicePlugin", "spec": {"sharedDevNum": 1, "preferredAllocationPolicy": "none"}}
    )
    assert "gpu.intel.com/{driver}" in converted(INTEL, text)


def test_values_of_the_network_operator_are_what_its_template_makes_of_them() -> None:
    text = "sriovDevicePlugin: {deploy: true, resources: [{name: hostdev, vendors: [15b3], pfNames: []}]}"
    assert set(converted("sriov-network-device-plugin", text)) == {"nvidia.com/hostdev"}
    assert "isRdma: true" in run("sriov-network-device-plugin", text).stdout
    default = "{deployCR: true, rdmaSharedDevicePlugin: {deploy: true}}"
    assert converted("rdma-shared-dev-plugin", default)["rdma/rdma_shared_device_a"].share.replicas == 63


def test_an_object_of_another_group_with_the_same_kind_is_not_read() -> None:
    text = "apiVersion: pkg.crossplane.io/v1\nkind: Configuration\nmetadata: {name: x}\nspec: {package: y}\n"
    assert 'a "Configuration.pkg.crossplane.io" contains no configuration' in refusal("akri", text)
    policy = {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "metadata": {"name": "x"}, "spec": {}}
    assert 'a "ClusterPolicy.kyverno.io" contains' in refusal(NVIDIA, json.dumps(policy))
    app = {"apiVersion": "app.k8s.io/v1beta1", "kind": "Application", "spec": {"selector": {}}}
    assert 'a "Application.app.k8s.io" contains' in refusal(NVIDIA, json.dumps(app))


def workload(name: str, image: str, *args: str, container: str = "main", **more: object) -> dict[str, object]:
    pod = {"containers": [{"name": container, "image": image, "args": [*args]} | more]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {"template": {"spec": pod}},
    }


def listed(*items: object) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def test_looking_at_other_workloads_does_not_mark_them_as_read() -> None:
    other = workload("web", "nginx", "run", "server", "-x", "1", command=["/bin/sh", "-c"])
    result = said(run(NVIDIA, listed(other, workload("a", "nvidia/k8s-device-plugin"))).stdout)
    assert "items[0]" not in result and "DaemonSet web" in result


def test_different_configurations_of_one_plugin_are_refused_with_the_names_of_the_objects() -> None:
    policies = [
        POLICY | {"metadata": {"name": name}, "spec": {"mig": {"strategy": strategy}}}
        for name, strategy in (("a", "single"), ("b", "mixed"))
    ]
    releases = [
        {
            "kind": "HelmRelease",
            "metadata": {"name": name},
            "spec": {
                "chart": {"spec": {"chart": "nvidia-device-plugin"}},
                "values": {"migStrategy": strategy},
            },
        }
        for name, strategy in (("a", "single"), ("b", "mixed"))
    ]
    for items in (policies, releases):
        assert f"{items[0]['kind']} a, {items[1]['kind']} b" in refusal(NVIDIA, listed(*items))
        assert run(NVIDIA, listed(items[0], items[0])).exit_code == 0
    assert "different configurations of" in refusal(NVIDIA, "version: v1\n---\nflags: {migStrategy: mixed}\n")


def test_the_entry_that_a_mount_makes_of_the_named_file_is_the_configuration() -> None:
    files = {
        "default": "version: v1",
        "cfg": "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 6}]}}",
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nv"}, "data": files}
    items = [{"key": "cfg", "path": "a/b.yaml"}]
    mounts = [
        ({"mountPath": "/config/"}, {"configMap": {"name": "nv"}}, "/config/cfg"),
        ({"mountPath": "/config"}, {"configMap": {"name": "nv", "items": items}}, "/config/a/b.yaml"),
        ({"mountPath": "/x.yaml", "subPath": "cfg"}, {"configMap": {"name": "nv"}}, "/x.yaml"),
        ({"mountPath": "/c"}, {"projected": {"sources": [{"configMap": {"name": "nv"}}]}}, "/c/cfg"),
    ]
    for mount, volume, path in mounts:
        one = workload(
            "a", "nvidia/k8s-device-plugin", "--config-file", path, volumeMounts=[mount | {"name": "c"}]
        )
        one["spec"]["template"]["spec"]["volumes"] = [volume | {"name": "c"}]  # type: ignore[index]
        assert converted(NVIDIA, listed(one, config))["nvidia.com/gpu"].share.replicas == 6


def test_a_chosen_key_of_a_plugin_without_a_file_is_refused() -> None:
    text = json.dumps(workload("a", "nvidia/k8s-device-plugin"))
    assert "reads no configuration file, so there is no x" in refusal(NVIDIA, text, "--key", "x")


@pytest.mark.parametrize(
    ("version", "is_cdi", "is_assumed"),
    [
        *(("v24.9.0", False, False), ("v25.3.4", False, False), ("25.10.0", True, False)),
        *(("26.x", True, False), ("^24.6.0", False, False), ("25.x", True, True), ("*", True, True)),
    ],
)
def test_the_release_of_the_chart_decides_its_defaults(version: str, is_cdi: bool, is_assumed: bool) -> None:
    chart = {"spec": {"chart": "gpu-operator", "version": version}}
    text = {"kind": "HelmRelease", "metadata": {"name": "x"}, "spec": {"chart": chart, "values": {}}}
    result = said(run(NVIDIA, json.dumps(text)).stdout)
    assert ("deviceListStrategy: cdi" in result) == is_cdi
    assert ("default of the chart since" in result) == is_assumed


def test_a_flag_that_this_import_does_not_know_is_not_called_wrong() -> None:
    text = json.dumps(workload("a", "nvidia/k8s-device-plugin", "--of-tomorrow=7"))
    assert "-of-tomorrow 7: this import does not know it" in said(run(NVIDIA, text).stdout)


def test_a_key_of_the_plugins_chart_in_values_of_the_operator_is_named_with_its_place_there() -> None:
    result = said(run(NVIDIA, "migStrategy: mixed\ntoolkit: {enabled: true}\ntolkit: {}\n").stdout)
    assert "migStrategy: this import does not know it (see mig.strategy)" in result
    assert "tolkit: this import does not know it (did you mean toolkit?)" in result
    assert "compatWithCPUManager" not in result


def test_values_in_other_places_of_another_chart_do_not_hide_a_configuration() -> None:
    spec = {"chart": {"spec": {"chart": "nginx"}}, "valuesFrom": [{"name": "x"}]}
    other = {"kind": "HelmRelease", "metadata": {"name": "web"}, "spec": spec}
    result = said(run(NVIDIA, listed(other, workload("a", "nvidia/k8s-device-plugin"))).stdout)
    assert "nvidia.com/gpu" in result
    assert "HelmRelease web has no values of a chart of this plugin" in refusal(NVIDIA, json.dumps(other))


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("spec: {source: {repoURL: 'https://rocm.github.io/gpu-operator', chart: x}}", "amd-device-plugin"),
        ("spec: {chart: {spec: {\n  chart: amd-gpu}}}", "amd-device-plugin"),
        ("spec: {source: {\n  chart: nvidia-device-plugin, helm: {}}}", NVIDIA),
        ("spec: {source: {\n  chart: 'gpu-operator'}}", NVIDIA),
    ],
)
def test_the_plugin_of_a_release_of_a_chart_is_recognized(text: str, peer: str) -> None:
    assert importers_of(text.encode()) == [peer]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("OCIRepository", {"url": "oci://example.org/charts/gpu-operator", "ref": {"tag": "v25.3.0"}}),
        ("HelmChart", {"chart": "gpu-operator", "version": "v25.3.0"}),
    ],
)
def test_a_release_has_the_chart_and_its_version_from_the_object_that_it_names(
    kind: str, spec: dict[str, object]
) -> None:
    group = "source.toolkit.fluxcd.io/v1"
    chart = {"apiVersion": group, "kind": kind, "metadata": {"name": "nv"}, "spec": spec}
    reference = {"chartRef": {"kind": kind, "name": "nv"}, "values": {"operator": {}}}
    release = {"kind": "HelmRelease", "metadata": {"name": "gpus"}, "spec": reference}
    for text in (listed(chart, release), listed(release, chart)):
        assert "deviceListStrategy: [envvar, device-specs]" in run(NVIDIA, text).stdout  # as before 25.10


def test_a_release_never_has_the_chart_of_a_helm_chart_of_k3s_with_the_same_name() -> None:
    metadata = {"name": "gpu-operator", "namespace": "a"}
    kind = {"kind": "HelmChart", "metadata": metadata}
    k3s = {**kind, "apiVersion": "helm.cattle.io/v1", "spec": {"chart": "podinfo", "version": "v1.0.0"}}
    spec = {"chart": "gpu-operator", "version": "v25.3.0"}
    flux = {**kind, "apiVersion": "source.toolkit.fluxcd.io/v1", "spec": spec}
    reference = {"chartRef": {"kind": "HelmChart", "name": "gpu-operator"}, "values": {"operator": {}}}
    release = {"kind": "HelmRelease", "metadata": metadata, "spec": reference}
    for text in (listed(k3s, flux, release), listed(flux, k3s, release)):
        assert "deviceListStrategy: [envvar, device-specs]" in run(NVIDIA, text).stdout
    assert "deviceListStrategy" in run(NVIDIA, listed(k3s, release)).stdout  # by the name of its chart


@pytest.mark.parametrize("where", [{}, {"namespace": "b"}])
def test_a_release_has_the_chart_from_the_object_in_its_namespace_unless_it_names_another(
    where: Mapping[str, str],
) -> None:
    charts = [
        {
            "kind": "OCIRepository",
            "metadata": {"name": "nv", "namespace": space},
            "spec": {"url": f"oci://x/{url}"},
        }
        for space, url in (("a", "podinfo"), ("b", "gpu-operator"))
    ]
    spec = {"chartRef": {"kind": "OCIRepository", "name": "nv", **where}, "values": {"operator": {}}}
    metadata = {"name": "gpus", "namespace": "a" if where else "b"}
    release = {"kind": "HelmRelease", "metadata": metadata, "spec": spec}
    assert "kind: [gpu, mig]" in run(NVIDIA, listed(*charts, release)).stdout


def test_a_variable_is_from_the_config_map_in_the_namespace_of_its_pod() -> None:
    maps = [
        {
            "kind": "ConfigMap",
            "metadata": {"name": "env", "namespace": space},
            "data": {"MIG_STRATEGY": value},
        }
        for space, value in (("a", "mixed"), ("b", "none"))
    ]
    container = {"image": "nvcr.io/nvidia/k8s-device-plugin", "envFrom": [{"configMapRef": {"name": "env"}}]}
    spec = {"template": {"spec": {"containers": [container]}}}
    plugin = {"kind": "DaemonSet", "metadata": {"name": "nvidia", "namespace": "b"}, "spec": spec}
    assert "mig-{profile}" not in run(NVIDIA, listed(*maps, plugin)).stdout
    done = run(NVIDIA, listed(maps[0], plugin)).stdout
    assert "mig-{profile}" not in done
    assert "the value is in the ConfigMap env: add that to the input" in said(done)


PACKAGE = str(Path(devhost_import.__file__).parent)


def lines(objects: Sequence[object]) -> int:
    """How many lines of this package are executed to read a file with these objects."""
    text, found = listed(*objects).encode(), Counter[str]()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        found[event] += 1
        return trace if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        Source(text, "objects.yaml", NVIDIA)
    finally:
        sys.settrace(before)
    return found["line"]


def of_flux(n: int) -> list[object]:
    reference = {"chartRef": {"kind": "OCIRepository", "name": f"n{n}"}, "values": {"x": 1}}
    return [
        {"kind": "HelmRelease", "metadata": {"name": f"n{n}"}, "spec": reference},
        {"kind": "OCIRepository", "metadata": {"name": f"n{n}"}, "spec": {"url": f"oci://x/n{n}"}},
    ]


def of_k3s(n: int) -> list[object]:
    head, spec = {"metadata": {"name": f"n{n}"}}, {"valuesContent": "x: 1"}
    return [head | {"kind": kind, "spec": spec} for kind in ("HelmChart", "HelmChartConfig")]


@pytest.mark.parametrize("made", [of_flux, of_k3s])
def test_a_file_of_twice_as_many_objects_takes_twice_as_much_work(
    made: Callable[[int], list[object]],
) -> None:
    small, large = (lines([one for n in range(most) for one in made(n)]) for most in (50, 100))
    assert large <= 2.1 * small, (small, large)


@pytest.mark.parametrize("kinds", [("HelmChart", "HelmChartConfig"), ("HelmChartConfig", "HelmChart")])
def test_a_helm_chart_config_overrides_its_chart_in_any_order(kinds: tuple[str, str]) -> None:
    values = {"HelmChart": "migStrategy: single", "HelmChartConfig": "migStrategy: mixed"}
    objects = [
        {"kind": kind, "metadata": {"name": "x"}, "spec": {"valuesContent": values[kind]}} for kind in kinds
    ]
    assert "nvidia.com/mig-{profile}" in run(NVIDIA, listed(*objects)).stdout


def test_a_refusal_is_about_the_object_with_values_or_of_a_plugin() -> None:
    release = {"kind": "HelmRelease", "metadata": {"name": "web"}, "spec": {"values": {"x": 1}}}
    gpus = {"kind": "GpuDevicePlugin", "metadata": {"name": "gpus"}}
    other = {"kind": "OCIRepository", "metadata": {"name": "web"}}
    assert "HelmRelease web has no values of a chart" in refusal(NVIDIA, listed(other, release))
    assert "`devhost import intel-device-plugins` reads it" in refusal(NVIDIA, listed(other, release, gpus))


@pytest.mark.parametrize("peer", [SMARTER, "generic-device-plugin", "amd-device-plugin", "akri"])
def test_a_release_without_values_is_refused_with_what_to_give(peer: str) -> None:
    message = "the output of helm get values has no values of a chart of this plugin (give "
    assert message in refusal(peer, "USER-SUPPLIED VALUES:\nnull\n")


def test_values_of_another_chart_are_not_taken_for_the_plugins_file() -> None:
    spec = {"chart": {"spec": {"chart": "nginx"}}, "values": {"devices": [], "x": 1}}
    release = {"kind": "HelmRelease", "metadata": {"name": "web"}, "spec": spec}
    message = "HelmRelease web has no values of a chart of this plugin"
    for peer in (SMARTER, "generic-device-plugin"):
        assert message in refusal(peer, json.dumps(release))


def test_another_configmap_is_not_read_instead_of_the_one_that_a_workload_names() -> None:
    one = workload("a", "nvidia/k8s-device-plugin", "--config-file=/config/x")
    one["spec"]["template"]["spec"]["volumes"] = [{"name": "c", "configMap": {"name": "nv"}}]  # type: ignore[index]
    other = {"kind": "ConfigMap", "metadata": {"name": "of-nfd"}, "data": {"default": "version: v1"}}
    assert "its configuration is in a ConfigMap, which is not in this file" in refusal(
        NVIDIA, listed(one, other)
    )


@pytest.mark.parametrize(
    ("peer", "image", "flag"),
    [
        (NVIDIA, "nvidia/k8s-device-plugin", "--config-file"),
        (SMARTER, "x/smarter-device-manager", "-config"),
        ("generic-device-plugin", "squat/generic-device-plugin", "--config"),
        ("sriov-network-device-plugin", "x/sriov-network-device-plugin", "--config-file"),
        ("rdma-shared-dev-plugin", "x/k8s-rdma-shared-dev-plugin", "--config-file"),
    ],
)
def test_a_configmap_that_the_input_lacks_is_named_with_the_command_that_prints_it(
    peer: str, image: str, flag: str
) -> None:
    mounts = {"volumeMounts": [{"name": "c", "mountPath": "/config"}]}
    one = workload("a", image, f"{flag}=/config/x.yaml", **mounts)
    one["metadata"] = {"name": "a", "namespace": "gpu"}
    pod = one["spec"]["template"]["spec"]  # type: ignore[index]
    pod["volumes"] = [{"name": n, "configMap": {"name": n * 3}} for n in ("b", "c")]
    message = (
        "its configuration is in a ConfigMap, which is not in this file (add the ConfigMap gpu/ccc, which "
        "has the entry x.yaml: kubectl get configmap ccc -n gpu -o yaml)"
    )
    assert message in refusal(peer, listed(one, UNRELATED))


def config_map(name: str, **data: str) -> dict[str, object]:
    metadata = {"name": name, "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


OF_PEERS = {
    NVIDIA: ("default", "version: v1", "version: v2"),
    SMARTER: ("conf.yaml", "- {devicematch: ^fuse$, nummaxdevices: 3}", "- {devicematch: ^kvm$}"),
    "gke-device-plugin": (
        "gpu_config.json",
        '{"GPUPartitionSize": "1g.5gb"}',
        '{"GPUPartitionSize": "2g.10gb"}',
    ),
    "generic-device-plugin": ("config.yaml", "devices: []", "domain: a.b\ndevices: []"),
    "sriov-network-device-plugin": ("config.json", '{"resourceList": []}', '{"resourceList": [{}]}'),
    "rdma-shared-dev-plugin": ("config.json", '{"configList": []}', '{"configList": [{}]}'),
}
"""The usual name of the entry, and two configurations."""


@pytest.mark.parametrize("peer", OF_PEERS)
def test_several_configmaps_of_which_none_fits_are_named(peer: str) -> None:
    maps = [config_map("coredns", Corefile="."), config_map("kube-proxy", a="b", c="d")]
    message = refusal(peer, listed(*maps))
    assert (
        f"none of kube-system/coredns, kube-system/kube-proxy has the entry {OF_PEERS[peer][0]} " in message
    )
    assert "give only the ConfigMap of the plugin, and name its entry with --key" in message
    assert "kube-proxy has the entry other (" in refusal(peer, listed(*maps), "--key", "other")


@pytest.mark.parametrize("peer", OF_PEERS)
def test_several_entries_of_which_each_may_be_the_configuration_are_named(peer: str) -> None:
    _, one, other = OF_PEERS[peer]
    message = refusal(peer, listed(config_map("coredns", a="b"), config_map("mine", x=one, y=other, z="?")))
    assert "several entries of ConfigMap mine may be the configuration (choose one with --key" in message
    assert "which may be x, y)" in message
    message = refusal(peer, listed(config_map("mine", x=one), config_map("yours", x=other)))
    assert "different configurations of" in message and "ConfigMap mine, ConfigMap yours" in message


def test_the_configmap_that_each_namespace_has_is_not_taken_for_the_configuration() -> None:
    """The only entry of the other one counts, whatever its name and its keys."""
    mine = config_map("mine", any="[{name: fuse, groups: [{paths: [{path: /dev/fuse}]}]}]")
    text = listed(config_map("kube-root-ca.crt", **{"ca.crt": "x"}), mine)
    assert "a.org/fuse" in converted("generic-device-plugin", text, "--domain", "a.org")


OF_RELEASE = """\
NAME: nvdp
LAST DEPLOYED: Thu Jan  1 00:00:00 2026
NAMESPACE: nvidia-device-plugin
STATUS: deployed
REVISION: 1
{values}HOOKS:
MANIFEST:
---
# Source: nvidia-device-plugin/templates/daemonset.yml
{manifest}
{notes}"""
"""What helm get all prints; without values also helm install --dry-run."""


@pytest.mark.parametrize("values", ["", "USER-SUPPLIED VALUES:\na: {}\n\nCOMPUTED VALUES:\na: {}\nb: 1\n\n"])
@pytest.mark.parametrize("notes", ["", "NOTES:\n1. Run: {kubectl get pods\n"])
def test_the_manifest_in_the_output_of_helm_get_all_is_read(values: str, notes: str) -> None:
    manifest = json.dumps(workload("a", "nvidia/k8s-device-plugin", "--mig-strategy=mixed"))
    text = OF_RELEASE.format(values=values, notes=notes, manifest=manifest)
    result = run(NVIDIA, text).stdout
    assert "nvidia.com/mig-{profile}" in converted(NVIDIA, text)
    assert UNKNOWN not in said(result)
    assert result == run(NVIDIA, manifest).stdout
    line = text.splitlines().index(manifest) + 1
    assert f"<stdin>:{line}:" in refusal(NVIDIA, text.replace("strategy=mixed", "strategy=x"))


@pytest.mark.parametrize("peer", OF_PEERS)
def test_entries_of_a_configmap_that_are_not_read_are_named(peer: str) -> None:
    usual = OF_PEERS[peer][0]
    text = {
        NVIDIA: "version: v1",
        SMARTER: "- {devicematch: ^fuse$, nummaxdevices: 3}",
        "gke-device-plugin": '{"GPUPartitionSize": "1g.5gb"}',
        "generic-device-plugin": "{domain: a.b, devices: []}",
        "sriov-network-device-plugin": '{"resourceList": [{"resourceName": "a", "selectors": {}}]}',
        "rdma-shared-dev-plugin": '{"configList": [{"resourceName": "a", "devices": ["ib0"]}]}',
    }[peer]
    assert "of-tomorrow" in said(
        run(peer, listed(config_map("x", **{usual: text, "of-tomorrow": "y"}))).stdout
    )


def test_a_configmap_of_another_namespace_is_not_that_of_the_workload() -> None:
    mounts = {"volumeMounts": [{"name": "c", "mountPath": "/c"}]}
    one = workload("a", "nvidia/k8s-device-plugin", "--config-file=/c/x", **mounts)
    one["metadata"] = {"name": "a", "namespace": "kube-system"}
    one["spec"]["template"]["spec"]["volumes"] = [{"name": "c", "configMap": {"name": "nv"}}]  # type: ignore[index]
    other = config_map("nv", x="flags: {migStrategy: mixed}")
    other["metadata"] = {"name": "nv", "namespace": "default"}
    assert "add the ConfigMap kube-system/nv" in refusal(NVIDIA, listed(one, other))
    assert len(converted(NVIDIA, listed(one, other, config_map("nv", x="version: v1")))) == 1


def test_a_file_for_each_node_is_chosen_by_the_user() -> None:
    peer = "sriov-network-device-plugin"
    mounts = {"volumeMounts": [{"name": "c", "mountPath": "/etc/sriov"}]}
    one = workload("a", f"x/{peer}", "--config-file=/etc/sriov/$(NODE_NAME)", **mounts)
    one["spec"]["template"]["spec"]["volumes"] = [{"name": "c", "configMap": {"name": "nodes"}}]  # type: ignore[index]
    nodes = {name: '{"resourceList": [{"resourceName": "a", "selectors": {}}]}' for name in ("w0", "w1")}
    assert "add the ConfigMap nodes: kubectl get" in refusal(peer, listed(one))
    message = (
        "several entries of ConfigMap nodes may be the configuration (choose one with --key, which may be "
    )
    assert f"{message}w0, w1)" in refusal(peer, listed(one, config_map("nodes", **nodes)))
    assert converted(peer, listed(one, config_map("nodes", **nodes)), "--key", "w1")


@pytest.mark.parametrize("peer", [NVIDIA, SMARTER, INTEL, "generic-device-plugin", "akri"])
def test_the_description_of_a_chart_is_not_taken_for_its_values(peer: str) -> None:
    text = "{apiVersion: v2, name: intel-device-plugins-gpu, version: 0.36.0, dependencies: [{name: x}]}"
    assert 'a "Chart" contains no configuration (give ' in refusal(peer, text)


def test_an_application_without_a_chart_is_refused_with_its_kind() -> None:
    source = {"repoURL": "https://example.org/x.git", "path": "nvidia"}
    text = json.dumps({"kind": "Application", "metadata": {"name": "x"}, "spec": {"source": source}})
    assert 'a "Application" contains no configuration (give ' in refusal(NVIDIA, text)


UNRELATED = {"kind": "ConfigMap", "metadata": {"name": "coredns"}, "data": {"Corefile": ".:53 {\n}\n"}}


@pytest.mark.parametrize(
    ("peer", "image", "message"),
    [
        (NVIDIA, "nvidia/k8s-device-plugin", ""),
        ("gke-device-plugin", "x/nvidia-gpu-device-plugin", ""),
        (SMARTER, "x/smarter-device-manager", "the file conf.yaml of the image counts"),
        ("generic-device-plugin", "squat/generic-device-plugin", "its devices are in the file /etc/generic-"),
        (
            "sriov-network-device-plugin",
            "x/sriov-network-device-plugin",
            "its configuration is in a ConfigMap",
        ),
        ("rdma-shared-dev-plugin", "x/k8s-rdma-shared-dev-plugin", "its configuration is in a ConfigMap"),
    ],
)
def test_unrelated_configmaps_beside_a_workload_are_not_read(peer: str, image: str, message: str) -> None:
    text = listed(workload("a", image), UNRELATED)
    if message:
        assert message in refusal(peer, text)
    else:
        assert "ConfigMap coredns" in said(run(peer, text).stdout)


def test_too_many_objects_are_refused_with_what_to_do() -> None:
    text = json.dumps({"kind": "Secret", "data": {"x": "y" * (1 << 20)}})
    assert "it is larger than 1 MiB (name the plugin's objects in the command" in refusal(NVIDIA, text)
