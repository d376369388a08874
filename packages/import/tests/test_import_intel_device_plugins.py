"""`devhost import intel-device-plugins`: the objects of Intel's operator as entries of the same names."""

from __future__ import annotations

import json
from pathlib import Path

import peer_machines as machines
import pytest
from devhost_testing.node import Node
from importing import converted, installed, offered, refusal, run, said, wheres

from devhost.planning.settings import Of, Prefer

PEER = "intel-device-plugins"

if not {"udev", "gpu", "sriov", "fpga"} <= installed().installed.keys():
    pytest.skip("the result is for several backends", allow_module_level=True)


def plugin(kind: str, **spec: object) -> str:
    document = {"apiVersion": "deviceplugin.intel.com/v1", "kind": f"{kind}DevicePlugin", "spec": spec}
    return json.dumps(document)


def several(*objects: str) -> str:
    return "\n---\n".join(objects)


def test_every_key_of_the_gpu_plugin_is_kept() -> None:
    text = plugin(
        "Gpu", sharedDevNum=10, denyIDs="0x56C0,0x1", preferredAllocationPolicy="balanced", bypathMode="all"
    )
    entry = converted(PEER, text)["gpu.intel.com/{driver}"]
    assert wheres(entry) == ["vendor: intel, not: {deviceID: 56c0 or 0001}"]
    assert (entry.share.replicas, entry.prefer, entry.exclusive) == (10, Prefer.SPREAD, True)
    assert "    bypath: all" in run(PEER, text).stdout
    allowed = converted(PEER, plugin("Gpu", allowIDs="0x56c0"))["gpu.intel.com/{driver}"]
    assert wheres(allowed) == ["vendor: intel, deviceID: 56c0"]


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("single", ["monitoring"]),
        ("split", ["i915_monitoring", "xe_monitoring"]),
    ],
)
def test_monitoring_shares_all_gpus_with_the_pods_that_hold_them(mode: str, names: list[str]) -> None:
    entries = converted(PEER, plugin("Gpu", enableMonitoring=True, monitoringMode=mode))
    assert list(entries) == ["gpu.intel.com/{driver}", *(f"gpu.intel.com/{name}" for name in names)]
    assert not any(entry.exclusive for entry in entries.values())
    assert {entries[f"gpu.intel.com/{name}"].share.of for name in names} == {Of.ALL}


async def test_only_monitoring_gets_the_firmware_node_of_a_gpu(tmp_path: Path) -> None:
    """The plugin gives /dev/mei* in its monitoring resource alone."""
    async with Node(tmp_path) as node:
        machines.graphics(node.root)
        text = run(PEER, plugin("Gpu", enableMonitoring=True)).stdout
        node.configure(text.split("version: 1\n", 1)[1])
        async with node.served({"gpu.intel.com/xe": 1, "gpu.intel.com/monitoring": 1}):
            card = await node.container({"gpu.intel.com/xe": 1})
            monitoring = await node.container({"gpu.intel.com/monitoring": 1})
    assert "/dev/mei1" not in {one.host_path for one in card.devices}
    assert "/dev/mei1" in {one.host_path for one in monitoring.devices}


@pytest.mark.parametrize(
    ("mode", "kind", "development"),
    [("af", "af", False), ("region", "region", False), ("regiondevel", "region", True)],
)
def test_the_modes_of_the_fpga_plugin_become_kinds(mode: str, kind: str, development: bool) -> None:
    text = plugin("Fpga", mode=mode)
    assert wheres(converted(PEER, text)["fpga.intel.com/{intelName}"]) == [f"vendor: intel, kind: {kind}"]
    assert ("development: true" in run(PEER, text).stdout) is development


def test_qat_resources_are_named_by_generation_and_services() -> None:
    text = plugin("Qat", dpdkDriver="igb_uio", kernelVfDrivers=["4xxxvf", "c6xxvf"])
    entries = converted(PEER, text, "--services", "dc;asym")
    assert {name: wheres(entry) for name, entry in entries.items()} == {
        "qat.intel.com/generic": ["kind: vf, vendor: 8086, device: 37c9, driver: igb_uio"],
        "qat.intel.com/asym-dc": ["kind: vf, vendor: 8086, device: 4941 or 4943 or 4945, driver: igb_uio"],
    }
    assert {str(entry.give.env) for entry in entries.values()} == {"{'QAT{index}': '{pciBusID}'}"}


@pytest.mark.parametrize(
    ("services", "name"),
    [("sym;asym", "cy"), ("asym;sym", "cy"), ("dc", "dc"), ("sym;dc", "sym-dc"), ("dc;sym", "sym-dc")],
)
def test_the_services_in_a_configmap_name_the_resource(services: str, name: str) -> None:
    conf = {"qat.conf": f"# configured\nServicesEnabled={services}\n"}
    config_map = {"kind": "ConfigMap", "metadata": {"name": "mine"}, "data": conf}
    mine = plugin("Qat", kernelVfDrivers=["4xxxvf"], provisioningConfig="mine")
    text = several(json.dumps(config_map), mine)
    assert list(converted(PEER, text)) == [f"qat.intel.com/{name}"]
    assert "is assumed" not in said(run(PEER, text).stdout)


def test_invalid_services_are_refused() -> None:
    done = run(PEER, plugin("Qat"), "--services", "fast")
    assert done.exit_code == 2 and '"fast" are not services of QAT' in done.output


def test_queues_for_virtual_machines_are_functions_bound_to_vfio() -> None:
    entry = converted(PEER, plugin("Dsa", driver="vfio-pci"))["dsa.intel.com/vfio"]
    assert (entry.backend, wheres(entry)) == (
        "sriov",
        ["vendor: 8086, device: 0b25 or 11fb or 1212, driver: vfio-pci"],
    )
    assert entry.give.env == {"VFIO_BDF{index}": "{pciBusID}"}


def test_objects_of_several_kinds_become_one_file(tmp_path: Path) -> None:
    machines.accelerators(tmp_path)
    text = several(
        plugin("Dlb"), "# nothing\n", plugin("Sgx", enclaveLimit=20), plugin("Npu", sharedDevNum=2)
    )
    assert offered(run(PEER, text).stdout, tmp_path) == {
        "dlb.intel.com/pf": {"/dev/dlb0": 1},
        "dlb.intel.com/vf": {"/dev/dlb1": 1},
        "sgx.intel.com/enclave": {"/dev/sgx_enclave": 20},
        "sgx.intel.com/provision": {"/dev/sgx_provision": 110},
        "npu.intel.com/accel": {"/dev/accel/accel0": 2},
    }


def test_settings_without_counterpart_are_explained() -> None:
    text = several(plugin("Gpu", resourceManager=True, sharedDevnum=2), plugin("Dsa", provisioningConfig="q"))
    remarks = said(run(PEER, text).stdout)
    assert "resourceManager: devhost has no fractions of GPUs" in remarks
    assert "provisioningConfig q: devhost configures no queues" in remarks
    assert converted(PEER, text)["gpu.intel.com/{driver}"].share.replicas == 2  # Go takes any case of letters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod", 'a "Pod" contains no configuration (give one of GpuDevicePlugin, '),
        ("spec: {}", "<stdin>:1:1: it is not a Kubernetes object (give one of GpuDevicePlugin, "),
        (plugin("Gpu", sharedDevNum=0), "spec.sharedDevNum: must be from 1 to 100000, not 0"),
        (plugin("Gpu", allowIDs="0x1", denyIDs="0x2"), "spec.denyIDs: cannot be used with allowIDs"),
        (plugin("Gpu", allowIDs="arc"), 'spec.allowIDs: must be a list of PCI ids, not "arc"'),
        (plugin("Gpu", preferredAllocationPolicy="packed"), "requires sharedDevNum above 1"),
        (plugin("Fpga", mode="all"), "spec.mode: must be one of af, region, regiondevel"),
        (
            plugin("Qat", kernelVfDrivers=["x"]),
            'spec.kernelVfDrivers[0]: must be a driver of virtual functions, not "x" (dh895',
        ),
        (plugin("Qat", dpdkDriver="uio"), "spec.dpdkDriver: must be one of vfio-pci, igb_uio"),
    ],
)
def test_objects_that_the_operator_refuses_are_refused_in_one_line(text: str, message: str) -> None:
    assert message in refusal(PEER, text)


@pytest.mark.parametrize(
    ("image", "names"),
    [
        ("intel/intel-gpu-plugin:0.35.0", ["i915_monitoring", "xe_monitoring"]),
        ("registry.local:5000/intel-gpu-plugin:0.36.0", ["monitoring"]),
        ("intel/intel-gpu-plugin:devel", ["monitoring"]),
    ],
)
def test_the_release_in_the_tag_decides_the_names_of_monitoring(image: str, names: list[str]) -> None:
    text = plugin("Gpu", image=image, enableMonitoring=True)
    assert list(converted(PEER, text)) == [f"gpu.intel.com/{one}" for one in ("{driver}", *names)]
    assert ("single is assumed" in said(run(PEER, text).stdout)) is image.endswith("devel")


def test_a_name_that_depends_on_a_missing_configmap_names_it() -> None:
    text = plugin("Qat", kernelVfDrivers=["4xxxvf"], provisioningConfig="conf")
    assert "The ConfigMap conf sets them" in said(run(PEER, text).stdout)
    assert "ConfigMap" not in run(PEER, text, "--services", "dc").stdout
    without_names = plugin("Qat", kernelVfDrivers=["c6xxvf"], provisioningConfig="conf")
    assert "is assumed" not in run(PEER, without_names).stdout


@pytest.mark.parametrize("text", ["USER-SUPPLIED VALUES:\nnull\n", "sharedDevNum: 3", "logLevel: 2"])
def test_values_that_fit_several_charts_are_refused_with_the_command_that_shows_the_object(text: str) -> None:
    assert "these values do not show which plugin they are for (give the object" in refusal(PEER, text)


def test_equal_objects_for_several_groups_of_nodes_are_one_entry() -> None:
    text = several(plugin("Gpu", sharedDevNum=2, nodeSelector={"a": "b"}), plugin("Gpu", sharedDevNum=2))
    assert "omitted" not in run(PEER, text).stdout and len(converted(PEER, text)) == 1
    container = {"image": "intel/intel-gpu-plugin", "args": ["-shared-dev-num=2", "-allocation-policy=none"]}
    workload = {"kind": "DaemonSet", "spec": {"template": {"spec": {"containers": [container]}}}}
    assert len(converted(PEER, several(plugin("Gpu", sharedDevNum=2), json.dumps(workload)))) == 1
    different = several(plugin("Gpu", sharedDevNum=2), plugin("Gpu", bypathMode="none"))
    assert "different configurations of intel-gpu-plugin" in refusal(PEER, different)


def test_the_daemonset_that_the_operator_made_is_not_read_beside_its_object() -> None:
    mine = json.loads(plugin("Dsa", provisioningConfig="conf", sharedDevNum=2))
    mine["metadata"] = {"name": "dsa"}
    container = {"image": "intel/intel-dsa-plugin:0.36.0", "args": ["-shared-dev-num", "2"]}
    metadata = {"name": "intel-dsa-plugin", "ownerReferences": [{"kind": "DsaDevicePlugin", "name": "dsa"}]}
    spec = {"template": {"spec": {"containers": [container]}}}
    made = {"kind": "DaemonSet", "metadata": metadata, "spec": spec}
    assert len(converted(PEER, several(json.dumps(mine), json.dumps(made)))) == 2


@pytest.mark.parametrize(
    ("release", "devices"),
    [("0.29.0", ["37c9", "4941"]), ("0.30.0", ["37c9", "4941", "4947"]), ("0.31.1", ["4941", "4947"])],
)
def test_the_release_decides_which_functions_of_qat_are_offered(release: str, devices: list[str]) -> None:
    result = run(PEER, plugin("Qat", image=f"intel/intel-qat-plugin:{release}")).stdout
    assert [one for one in ("37c9", "4941", "4947") if f'"{one}"' in result] == devices
