"""The container sees those directories of the node that its configuration needs, and no more."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from rendering import Chart, Refused, Rendered

from devhost.planning.settings import CDI_DIRECTORY, DEVICE_INFO_DIRECTORY, LABEL_DIRECTORY

ALWAYS = {
    "/etc/devhost",
    "/run/devhost",
    "/var/lib/devhost",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/pod-resources",
    "/host/dev",
    "/host/sys",
    "/host/proc",
    "/host/run/udev",
}
WRITABLE = {"/run/devhost", "/var/lib/devhost", "/var/lib/kubelet/device-plugins"}

FUSE = {"name": "example.com/fuse", "backend": "udev", "where": {"devNode": "/dev/fuse"}}
GPU = {"name": "example.com/gpu", "backend": "gpu"}
SRIOV = {"name": "example.com/vf", "backend": "sriov"}
RDMA = {"name": "example.com/hca", "backend": "rdma"}


def configured(*resources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"config": {"version": 1, "resources": list(resources), **more}}


def programs(bitstream: str) -> dict[str, Any]:
    return {"name": "example.com/fpga", "backend": "fpga", "program": {"bitstream": bitstream}}


def writable(rendered: Rendered) -> set[str]:
    return {path for path, mount in rendered.mounts.items() if not mount.get("readOnly")}


def more(rendered: Rendered) -> set[str]:
    return set(rendered.mounts) - ALWAYS


def test_udev_needs_no_more_than_every_configuration(chart: Chart) -> None:
    rendered = chart.render(configured(FUSE))
    assert set(rendered.mounts) == ALWAYS
    assert writable(rendered) == WRITABLE
    assert rendered.pod["hostNetwork"] is False


@pytest.mark.parametrize(
    ("values", "directories"),
    [
        (configured({**FUSE, "inject": "cdi"}), {str(CDI_DIRECTORY)}),
        (configured({**FUSE, "inject": "cdi"}, cdi={"directory": "/etc/cdi"}), {"/etc/cdi"}),
        (configured(FUSE, labels={"write": True}), {str(LABEL_DIRECTORY)}),
        (configured(FUSE, labels={"write": True, "directory": "/srv/nfd"}), {"/srv/nfd"}),
        (configured(SRIOV), {str(DEVICE_INFO_DIRECTORY)}),
        (configured(SRIOV, deviceInfo={"directory": "/run/info"}), {"/run/info"}),
    ],
)
def test_what_devhost_writes_for_others_is_writable_at_its_own_place(
    chart: Chart, values: dict[str, Any], directories: set[str]
) -> None:
    rendered = chart.render(values)
    assert more(rendered) - {"/run/udev"} == directories
    assert writable(rendered) == WRITABLE | directories
    for path in directories:
        assert rendered.mounts[path]["hostPath"] == {"path": path, "type": "DirectoryOrCreate"}


@pytest.mark.parametrize(
    "values",
    [
        configured(FUSE, labels={"write": False}),
        configured(FUSE, labels={"directory": "/srv/nfd"}),
        configured(FUSE, cdi={"directory": "/etc/cdi"}),
        configured(FUSE, backends={"gpu": {"driverRoot": "/run/nvidia/driver"}}),
        configured(FUSE, backends={"sriov": {}}),
    ],
)
def test_options_of_what_is_not_used_need_nothing(chart: Chart, values: dict[str, Any]) -> None:
    assert more(chart.render(values)) == set()


def test_device_info_that_is_not_written_needs_no_directory(chart: Chart) -> None:
    rendered = chart.render(configured(SRIOV, deviceInfo={"write": False}))
    assert more(rendered) == {"/run/udev"}


@pytest.mark.parametrize("resource", [SRIOV, RDMA])
def test_backends_with_rtnetlink_use_the_node_network_and_receive_udevd_events(
    chart: Chart, resource: dict[str, Any]
) -> None:
    rendered = chart.render(configured(resource))
    assert rendered.pod["hostNetwork"] is True
    assert rendered.mounts["/run/udev"]["name"] == rendered.mounts["/host/run/udev"]["name"]
    assert rendered.mounts["/run/udev"]["readOnly"] is True


def test_only_a_gpu_that_must_not_be_occupied_needs_the_nodes_processes(chart: Chart) -> None:
    gpu = {"name": "nvidia.com/gpu", "backend": "gpu", "where": {"vendor": "nvidia"}}
    assert "hostPID" not in chart.render(configured(gpu)).pod
    values = configured(gpu, backends={"gpu": {"occupied": "refuse"}})
    rendered = chart.render(values)
    assert rendered.pod["hostPID"] is True
    assert rendered.mounts["/host/var/log/pods"]["readOnly"] is True
    assert "hostPID" not in chart.render({**values, "hostPID": False}).pod
    assert chart.render({**configured(FUSE), "hostPID": True}).pod["hostPID"] is True
    assert "hostPID" not in chart.render(configured(FUSE, backends={"gpu": {"occupied": "refuse"}})).pod


@pytest.mark.parametrize("wanted", [True, False])
def test_the_nodes_network_can_be_chosen(chart: Chart, wanted: bool) -> None:
    for resource in (FUSE, SRIOV):
        rendered = chart.render({**configured(resource), "hostNetwork": wanted})
        assert rendered.pod["hostNetwork"] is wanted
        assert ("/run/udev" in rendered.mounts) is wanted, "without it the kernel's own events count at once"


def test_virtual_functions_are_made_in_a_writable_sys_and_noted_on_the_node(chart: Chart) -> None:
    made = {"sriov": {"virtualFunctions": [{"pf": "ens1f0", "count": 8}]}}
    rendered = chart.render(configured(backends=made))
    assert writable(rendered) >= {"/host/sys", "/host/run/devhost"}
    assert rendered.mounts["/host/run/devhost"]["hostPath"]["path"] == "/run/devhost"
    assert rendered.pod["hostNetwork"] is True


def test_gpus_are_partitioned_with_a_writable_sys_in_a_privileged_container(chart: Chart) -> None:
    values = configured(FUSE, backends={"gpu": {"partitions": [{"compute": "CPX"}]}})
    rendered = chart.render(values)
    assert writable(rendered) == WRITABLE | {"/host/sys"}
    assert rendered.container["securityContext"]["privileged"] is True
    off = chart.render({**values, "host": {"partitions": False}, "securityProfile": "gpu"})
    assert writable(off) == WRITABLE
    assert off.container["securityContext"]["privileged"] is False


def test_mig_instances_on_demand_are_noted_on_the_node_and_need_privileges(chart: Chart) -> None:
    rendered = chart.render(
        configured({"name": "a.b/c", "backend": "gpu"}, backends={"gpu": {"mig": "dynamic"}})
    )
    assert "/host/run/devhost" in writable(rendered) and "/host/sys" not in writable(rendered)
    assert rendered.container["securityContext"]["privileged"] is True


@pytest.mark.parametrize(
    ("options", "directories"),
    [
        ({}, {"/host/usr"}),
        ({"driverRoot": "/"}, {"/host/usr"}),
        ({"driverRoot": "//", "devRoot": ""}, {"/host/usr"}),
        ({"driverRoot": "/run/nvidia/driver"}, {"/host/run/nvidia"}),  # where the operator's files are
        ({"driverRoot": "/run/nvidia/driver/", "devRoot": "/run/nvidia"}, {"/host/run/nvidia"}),
        ({"driverRoot": "/run/nvidia/driver", "devRoot": "/"}, {"/host/run/nvidia"}),
        ({"driverDirectory": "/srv/nvidia"}, {"/host/usr", "/host/srv/nvidia"}),
        ({"driverDirectory": "/usr/local/nvidia"}, {"/host/usr"}),
    ],
)  # fmt: skip
def test_gpus_need_the_files_of_nvidias_driver(
    chart: Chart, options: dict[str, Any], directories: set[str]
) -> None:
    rendered = chart.render(configured(GPU, backends={"gpu": options}))
    assert more(rendered) == directories
    assert writable(rendered) == WRITABLE
    for path in directories:  # a driver's container mounts it later
        assert rendered.mounts[path]["mountPropagation"] == "HostToContainer"


@pytest.mark.parametrize(
    ("mps", "directories"),
    [
        ({"root": "/run/nvidia/mps"}, {"/host/usr", "/host/run/nvidia/mps"}),
        ({"pipeDirectory": "/tmp/nvidia-mps", "shmDirectory": "/run/shm"},
         {"/host/usr", "/host/tmp/nvidia-mps", "/host/run/shm"}),
    ],
)  # fmt: skip
def test_gpus_that_are_shared_through_mps_need_the_files_of_the_server(
    chart: Chart, mps: dict[str, str], directories: set[str]
) -> None:
    rendered = chart.render(configured({**GPU, "mps": mps}))
    assert more(rendered) == directories
    assert rendered.mounts[max(directories)]["mountPropagation"] == "HostToContainer"


def test_a_specification_by_nvidia_ctk_takes_the_whole_root(chart: Chart) -> None:
    options = {"deviceListStrategy": ["envvar", "cdi"], "cdiDirectories": ["/etc/cdi", "/run/cdi"]}
    rendered = chart.render(configured(GPU, backends={"gpu": options}))
    assert rendered.mounts["/host"]["hostPath"] == {"path": "/", "type": "Directory"}
    assert rendered.mounts["/host"]["readOnly"] is True
    assert rendered.mounts["/host/sys"]["recursiveReadOnly"] == "IfPossible"
    assert writable(rendered) == WRITABLE | {str(CDI_DIRECTORY), "/run/cdi"}


def test_a_bitstream_is_read_in_its_directory(chart: Chart) -> None:
    rendered = chart.render(configured(programs("/srv/fpga/crypto.gbs")))
    assert more(rendered) == {"/host/srv/fpga"}
    assert writable(rendered) == WRITABLE


def test_firmware_for_an_fpga_takes_a_writable_sys(chart: Chart) -> None:
    rendered = chart.render(configured(programs("/lib/firmware/xilinx/crypto.bin")))
    assert more(rendered) == {"/host/lib/firmware"}
    assert writable(rendered) == WRITABLE | {"/host/sys"}


def test_files_that_groups_mount_are_looked_for_in_their_directories(chart: Chart) -> None:
    group = {
        "name": "onload",
        "members": [{"path": "/dev/onload"}, {"path": "/srv/nodes/tty*"}, {"where": {"driver": "sfc"}}],
        "mounts": [
            {"path": "/usr/lib64/libonload*.so"},
            {"path": "/usr/lib64/*/x"},
            {"path": "/etc/ppp/peers"},
        ],
    }
    rendered = chart.render(configured(FUSE, backends={"udev": {"groups": [group]}}))
    assert more(rendered) == {"/host/usr/lib64", "/host/etc/ppp", "/host/srv/nodes"}


def test_usb_devices_for_kubevirt_take_a_writable_dev_and_one_capability(chart: Chart) -> None:
    usb = {**FUSE, "where": {"devType": "usb_device"}, "kubevirt": True}
    rendered = chart.render(configured(usb))
    assert writable(rendered) == WRITABLE | {"/host/dev"}
    assert rendered.container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    both = chart.render({**configured(usb), "capabilities": ["NET_ADMIN"]})
    assert both.container["securityContext"]["capabilities"]["add"] == ["NET_ADMIN", "CHOWN"]
    off = chart.render({**configured(usb), "host": {"deviceOwners": False}})
    assert writable(off) == WRITABLE


def test_a_file_in_the_root_directory_is_refused_with_the_way_out(chart: Chart) -> None:
    values = configured(programs("/crypto.gbs"))
    with pytest.raises(Refused, match=r"names a file in the node's root directory.*set host\.root to true"):
        chart.render(values)
    assert "/host" in chart.render({**values, "host": {"root": True}}).mounts


def test_adapters_are_opened_at_their_own_place_where_that_is_allowed(chart: Chart) -> None:
    assert "/dev/infiniband" not in chart.render(configured(RDMA)).mounts
    rendered = chart.render({**configured(RDMA), "securityProfile": "privileged"})
    assert rendered.mounts["/dev/infiniband"]["hostPath"]["path"] == "/dev/infiniband"


@pytest.mark.parametrize(
    ("key", "directories"),
    [
        ("cdi", {str(CDI_DIRECTORY)}),
        ("nodeLabels", {str(LABEL_DIRECTORY)}),
        ("deviceInfo", {str(DEVICE_INFO_DIRECTORY)}),
        ("virtualFunctions", {"/host/run/devhost"}),
        ("migInstances", {"/host/run/devhost"}),
        ("firmware", {"/host/lib/firmware"}),
        ("nvidiaDriver", {"/host/usr"}),
        ("verbs", {"/dev/infiniband"}),
        ("root", {"/host"}),
    ],
)
def test_values_replace_what_the_chart_cannot_read(chart: Chart, key: str, directories: set[str]) -> None:
    theirs = {"existingConfigMap": "theirs"}
    assert more(chart.render(theirs)) == set()
    assert more(chart.render({**theirs, "host": {key: True}})) == directories


def test_what_is_derived_can_be_switched_off(chart: Chart) -> None:
    off = dict.fromkeys(("cdi", "nodeLabels", "deviceInfo", "nvidiaDriver"), False)
    rendered = chart.render({"host": off}, profile="full")
    assert more(rendered) == {"/run/udev", "/dev/infiniband"}


def test_the_text_of_a_file_is_read_as_the_map_is(chart: Chart) -> None:
    values = configured({**FUSE, "inject": "cdi"}, labels={"write": True})
    text = "  # of the meters\n\n" + yaml.safe_dump(values["config"])
    rendered = chart.render({"config": text})
    assert rendered.mounts == chart.render(values).mounts
    assert rendered.configuration == text


def test_text_that_is_no_yaml_is_refused(chart: Chart) -> None:
    with pytest.raises(Refused, match="config is no YAML"):
        chart.render({"config": "version: 1\nresources: ["})


def test_more_directories_are_below_the_root_by_default(chart: Chart) -> None:
    exporter, drop_ins = "/var/lib/amd-metrics-exporter", "/srv/backends"
    rendered = chart.render(
        {
            "extraHostPaths": [
                {"path": exporter},
                {"path": drop_ins, "mountPath": drop_ins, "readOnly": False, "type": "Directory"},
            ]
        },
        profile="minimal",
    )
    assert more(rendered) == {f"/host{exporter}", drop_ins}
    assert rendered.mounts[f"/host{exporter}"]["readOnly"] is True
    assert writable(rendered) == WRITABLE | {drop_ins}
    assert rendered.mounts[drop_ins]["hostPath"] == {"path": drop_ins, "type": "Directory"}


def test_a_kubelet_elsewhere_is_found_where_it_is(chart: Chart) -> None:
    rendered = chart.render({"kubelet": {"root": "/data/kubelet/", "pluginDirectory": "/data/plugins"}})
    assert (
        rendered.mounts["/var/lib/kubelet/pod-resources"]["hostPath"]["path"] == "/data/kubelet/pod-resources"
    )
    assert rendered.mounts["/var/lib/kubelet/device-plugins"]["hostPath"]["path"] == "/data/plugins"


def test_an_empty_directory_is_never_made_in_place_of_the_kubelets(chart: Chart) -> None:
    """It makes them before it starts a pod: where they are missing, the values name the wrong place."""
    for place in ("device-plugins", "pod-resources"):
        assert chart.render().mounts[f"/var/lib/kubelet/{place}"]["hostPath"]["type"] == "Directory"


def test_what_is_mounted_below_a_read_only_directory_is_read_only_too(chart: Chart) -> None:
    for path in ("/host/sys", "/host/proc", "/host/dev"):
        assert chart.render().mounts[path]["recursiveReadOnly"] == "IfPossible"
        older = chart.render({}, "--kube-version=1.30").mounts[path]
        assert "recursiveReadOnly" not in older, "the API server would refuse it"
        assert older["readOnly"] is True
