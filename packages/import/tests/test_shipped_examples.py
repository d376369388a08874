"""Every example that a peer ships is imported, checked, and offers on a modelled machine what it means there.

``data/SOURCES.md`` says where the examples come from. What each means was written by hand, from what its
plugin does with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import peer_machines as machines
import pytest
from click.testing import CliRunner, Result
from devhost_import.command import command
from devhost_testing.trees import Tree
from importing import akri, installed, offered, said

HERE = Path(__file__).parent
DATA = HERE / "data"

if not {"udev", "gpu", "sriov", "rdma", "fpga"} <= installed().installed.keys():
    pytest.skip("the examples are for all of devhost's backends", allow_module_level=True)


if not machines.PLUGINS.is_dir():
    pytest.skip("the machines of the backends' tests are not here", allow_module_level=True)


@dataclass(frozen=True)
class Example:
    """An example, the machine that it is for, and what the plugin makes of that machine.

    ``offers`` has, for each resource, each device and how often it is handed out: by its node or nodes, its
    PCI address or its id. ``says`` is in the result, whose comments may be wrapped.
    """

    file: str
    machine: Callable[[Path], Tree]
    offers: Mapping[str, Mapping[str, int]]
    says: Sequence[str] = ()
    arguments: Sequence[str] = field(default=())


def each(count: int, *devices: str) -> dict[str, int]:
    return dict.fromkeys(devices, count)


SOUND = "/dev/snd/controlC0 /dev/snd/pcmC0D0c /dev/snd/pcmC0D0p"

BOARD = {
    "smarter-devices/snd": {SOUND: 20},
    "smarter-devices/gpiomem": {"/dev/gpiomem": 40},
    "smarter-devices/gpiochip0": {"/dev/gpiochip0": 20},
    "smarter-devices/gpiochip1": {"/dev/gpiochip1": 20},
    "smarter-devices/i2c-1": {"/dev/i2c-1": 1},
    "smarter-devices/rtc0": {"/dev/rtc0": 20},
    "smarter-devices/video0": {"/dev/video0": 20},
    "smarter-devices/video1": {"/dev/video1": 20},
    "smarter-devices/vchiq": {"/dev/vchiq": 20},
    "smarter-devices/vcsm-cma": {"/dev/vcsm-cma": 20},
}
SERIAL = {
    "smarter-devices/ttyUSB0": {"/dev/ttyUSB0": 1},
    "smarter-devices/ttyS0": {"/dev/ttyS0": 1},
}

SQUAT = ["--domain", "squat.ai"]
"""The default domain of older releases of generic-device-plugin."""

GENERIC = {
    "squat.ai/serial": {"/dev/ttyUSB0": 1},
    "squat.ai/video": {"/dev/video0": 1},
    "squat.ai/fuse": {"/dev/fuse": 10},
    "squat.ai/audio": {SOUND: 10},
}
CAPTURE = {"/dev/snd/controlC0 /dev/snd/pcmC0D0c": 1}
"""The first card: those that the machine does not have are Unhealthy here and absent there."""

VFIO = {"0000:3b:02.2": 1}
CX4, CX5 = each(1, "0000:5e:00.2", "0000:5e:00.3"), each(1, "0000:86:00.2", "0000:86:00.3")
CX5_IB = each(1, "0000:af:00.2", "0000:af:00.3")
HOSTDEV = CX4 | CX5 | CX5_IB | each(1, "0000:d8:00.2", "0000:d8:00.3")
PORT_0 = [f"0000:3b:{2 + n // 8:02x}.{n % 8}" for n in range(12)]
PORT_1 = [f"0000:3b:{4 + n // 8:02x}.{n % 8}" for n in range(12)]
HCAS = {
    "rdma/hca_shared_devices_a": {"0000:3b:00.0": 1000},
    "rdma/hca_shared_devices_b": each(500, "0000:5e:00.0", "0000:86:00.0"),
}
A100 = [f"GPU-8dfe9b2c-0000-0000-0000-00000000000{n}" for n in range(2)]
PARTITIONS = [f"0000:{n}c:00.0" for n in range(8)] + [f"amdgpu_xcp_{n}" for n in range(56)]
MI210 = ["0000:43:00.0", "0000:63:00.0", "0000:c3:00.0", "0000:e3:00.0"]

EXAMPLES = [
    Example("generic-device-plugin/devices.yaml", machines.board, GENERIC, arguments=SQUAT),
    Example(
        "generic-device-plugin/daemonset-k3s.yaml",
        machines.board,
        {"squat.ai/serial": {"/dev/ttyUSB0": 1}, "squat.ai/video": {"/dev/video0": 1}},
        arguments=SQUAT,
    ),
    Example(  # a serial adapter by its path and by its USB ids: either resource hands it out
        "generic-device-plugin/readme.yaml",
        machines.board,
        {
            "squat.ai/video": {"/dev/video0": 1},
            "squat.ai/serial": {"/dev/ttyUSB0": 1},
            "squat.ai/capture": {"/dev/snd/pcmC0D0c /dev/snd/controlC0": 1},
            "squat.ai/ch340": {"/dev/bus/usb/001/003": 1},
            "squat.ai/fuse": {"/dev/fuse": 10},
        },
        arguments=SQUAT,
    ),
    Example(
        "sriov-network-device-plugin/configmap.yaml",
        machines.adapters,
        {
            "intel.com/intel_sriov_netdevice": each(1, "0000:3b:02.0", "0000:3b:02.1"),
            "intel.com/intel_sriov_dpdk": VFIO,
            "intel.com/mlnx_sriov_rdma": CX5_IB,
        },
        ["    rdma: true"],
    ),
    Example(
        "sriov-network-device-plugin/config.json",
        machines.adapters,
        {
            "intel.com/intel_sriov_netdevice": each(1, "0000:3b:02.0", "0000:3b:02.1"),
            "intel.com/intel_sriov_dpdk": VFIO,
        },
        ["ifnames: this import does not know it"],
    ),
    Example(
        "sriov-network-device-plugin/rbln.yaml",
        machines.adapters,
        {"rebellions.ai/ATOM": {"0000:17:00.0": 1}},
    ),
    Example("sriov-network-device-plugin/dpdk.yaml", machines.adapters, {"intel.com/intel_x710vfio": VFIO}),
    Example(
        "sriov-network-device-plugin/dpdk-virt.yaml",
        machines.adapters,
        {
            "intel.com/intelnics_radio_downlink": each(1, "0000:00:09.0", "0000:00:0a.0"),
            "intel.com/intelnics_radio_uplink": each(1, "0000:00:07.0", "0000:00:08.0"),
        },
    ),
    Example(
        "sriov-network-device-plugin/dpdk-all-nics.yaml",
        machines.adapters,
        {"dpdk.org/nic": VFIO | CX4 | CX5},
        ["    rdma: true"],
    ),
    Example(
        "sriov-network-device-plugin/mlnx-dpdk.yaml",
        machines.adapters,
        {"intel.com/mlnx_connectx4": CX4, "intel.com/mlnx_connectx5": CX5 | CX5_IB},
        ["    rdma: true"],
    ),
    Example(  # which packages an adapter has loaded only devlink says, and a tree has none
        "sriov-network-device-plugin/ddp-x700.yaml",
        machines.adapters,
        {},
        ['ddpProfile: "GTPv1-C/U IPv4/IPv6 payload"', 'ddpProfile: "E710 PPPoE and PPPoL2TPv2"'],
    ),
    Example(
        "sriov-network-device-plugin/ddp-e800.yaml",
        machines.adapters,
        {},
        ['ddpProfile: "ICE OS Default Package"', 'ddpProfile: "ICE COMMS Package"'],
    ),
    Example(
        "sriov-network-device-plugin/rdma.yaml",
        machines.adapters,
        {"intel.com/mlnx_rdma": CX4 | CX5 | CX5_IB},
        ["isRdma: this import does not know it (put it into selectors)"],
    ),
    Example(
        "sriov-network-device-plugin/vdpa.yaml",
        machines.adapters,
        {
            "intel.com/vdpa_mlx_virtio": {"0000:d8:00.2": 1},
            "intel.com/vdpa_mlx_vhost": {"0000:d8:00.3": 1},
        },
    ),
    Example(
        "sriov-network-device-plugin/rdma-selectors.yaml",
        machines.adapters,
        {"mellanox.com/mlnx_rdma": CX4 | CX5},
        ["    rdma: true"],
    ),
    Example(
        "sriov-network-device-plugin/images.yaml",
        machines.adapters,
        {
            "intel.com/intel_sriov_netdevice": each(1, "0000:3b:02.0", "0000:3b:02.1"),
            "intel.com/intel_sriov_dpdk": VFIO,
        },
        ["ifnames: this import does not know it"],
    ),
    Example(
        "sriov-network-device-plugin/readme.json",
        machines.adapters,
        {
            "intel.com/intel_sriov_netdevice": each(1, "0000:3b:02.0", "0000:3b:02.1"),
            "intel.com/intel_sriov_dpdk": VFIO,
            "mellanox.com/mlnx_sriov_rdma": CX5_IB,
        },
        ["isRdma: this import does not know it (put it into selectors)"],
    ),
    Example(
        "sriov-network-device-plugin/per-node.yaml",
        machines.two_ports,
        {"intel.com/sriovnics": each(1, *PORT_0[:5], *PORT_1[:10])},
        arguments=["--key", "sriov-node-0"],
    ),
    Example(
        "sriov-network-device-plugin/per-node.yaml",
        machines.two_ports,
        {"intel.com/sriovnics": each(1, *PORT_0[:10], *PORT_1[:5])},
        arguments=["--key", "sriov-node-1"],
    ),
    Example(
        "sriov-network-device-plugin/subfunctions-bluefield.json",
        machines.bluefield,
        {"nvidia.com/bf2_sf": each(1, *(f"mlx5_core.sf.{number + 2}" for number in range(1, 6)))},
    ),
    Example(
        "sriov-network-device-plugin/subfunctions-connectx.json",
        machines.adapters,
        {"nvidia.com/cx6dx_vf": each(1, "0000:d8:00.2", "0000:d8:00.3")},
        ["where: {kind: sf, "],
    ),
    Example(
        "sriov-network-device-plugin/nicclusterpolicy-full.yaml",
        machines.adapters,
        {"nvidia.com/hostdev": HOSTDEV},
        ["    rdma: true"],
    ),
    Example(
        "sriov-network-device-plugin/nicclusterpolicy-hostdev.yaml",
        machines.adapters,
        {"nvidia.com/hostdev": HOSTDEV},
        ["    rdma: true"],
    ),
    Example(
        "rdma-shared-dev-plugin/base.yaml",
        machines.fabric,
        HCAS,
        ["of: all", "    permissions: rwm", "periodicUpdateInterval: 300", "kubeletRootDir: "],
    ),
    Example("rdma-shared-dev-plugin/images.yaml", machines.fabric, HCAS, ["of: all", "permissions: rwm"]),
    Example("rdma-shared-dev-plugin/example.yaml", machines.fabric, HCAS, ["of: all", "permissions: rwm"]),
    Example(
        "rdma-shared-dev-plugin/nicclusterpolicy.yaml",
        machines.fabric,
        {"rdma/rdma_shared_device_a": {"0000:3b:00.0": 63}},
        ["of: all", "    permissions: rwm"],
    ),
    Example(
        "rdma-shared-dev-plugin/nicclusterpolicy-full.yaml",
        machines.fabric,
        {"rdma/rdma_shared_device_a": {"0000:3b:00.0": 63}},
        ["of: all", "    permissions: rwm"],
    ),
    Example(
        "rdma-shared-dev-plugin/nicclusterpolicy-ocp.yaml",
        machines.fabric,
        {"rdma/rdma_shared_device_a": each(63, "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0")},
        ["of: all", "    permissions: rwm"],
    ),
    Example("nvidia-device-plugin/flags.yaml", machines.nvidia, {"nvidia.com/gpu": each(1, *A100)}),
    Example(
        "nvidia-device-plugin/daemonset.yaml",
        machines.nvidia,
        {"nvidia.com/gpu": each(1, *A100)},
        ["failOnInitError is omitted"],
    ),
    Example(
        "nvidia-device-plugin/daemonset-cpumanager.yaml",
        machines.nvidia,
        {"nvidia.com/gpu": each(1, *A100)},
        ["    deviceListStrategy: [envvar, device-specs]"],
    ),
    Example(
        "nvidia-device-plugin/daemonset-service-account.yaml",
        machines.nvidia,
        {"nvidia.com/gpu": each(1, *A100)},
        ["    deviceListStrategy: [envvar, device-specs]"],
    ),
    Example(
        "nvidia-device-plugin/configmap.yaml",
        machines.nvidia,
        {"nvidia.com/gpu": each(1, *A100)},
        ["# This is the configuration config0."],
        arguments=["--key", "config0"],
    ),
    Example(
        "nvidia-device-plugin/configmap.yaml",
        machines.nvidia,
        {"nvidia.com/gpu": each(1, *A100)},
        ["# This is the configuration config1.", '  - name: "nvidia.com/mig-{profile}"'],
        arguments=["--key", "config1"],
    ),
    Example(
        "nvidia-device-plugin/values-mixed.yaml",
        machines.nvidia,
        {"nvidia.com/gpu": each(1, *A100)},
        ["    deviceListStrategy: [envvar, device-specs]", '  - name: "nvidia.com/mig-{profile}"'],
    ),
    Example("nvidia-device-plugin/time-slicing.yaml", machines.nvidia, {"nvidia.com/gpu": each(10, *A100)}),
    Example(
        "nvidia-device-plugin/time-slicing-renamed.yaml",
        machines.nvidia,
        {"nvidia.com/gpu.shared": each(10, *A100)},
    ),
    Example(
        "nvidia-device-plugin/mps.yaml",
        machines.nvidia,
        {"nvidia.com/gpu": each(10, *A100)},
        ["    share: {replicas: 10, maxPerContainer: 1}", "    mps: {root: /run/nvidia/mps}"],
    ),
    Example(
        "nvidia-device-plugin/mps-renamed.yaml",
        machines.nvidia,
        {"nvidia.com/gpu.shared": each(10, *A100)},
        ["    share: {replicas: 10, maxPerContainer: 1}", "    mps: {root: /run/nvidia/mps}"],
    ),
    Example(
        "smarter-device-manager/conf.yaml",
        machines.board,
        BOARD | SERIAL,
        ["  - name: smarter-devices/nvidia-gpu0", 'env: {NVIDIA_VISIBLE_DEVICES: "0"}'],
    ),
    Example("smarter-device-manager/configmap-rpi.yaml", machines.board, BOARD | SERIAL),
    Example("smarter-device-manager/configmap-xavier.yaml", machines.board, BOARD),
    Example(
        "smarter-device-manager/nitro.yaml",
        machines.board,
        {
            "smarter-devices/nitro_enclaves": {"/dev/nitro_enclaves": 1},
            "smarter-devices/vsock": {"/dev/vsock": 1},
            "smarter-devices/rtc0": {"/dev/rtc0": 20},
        }
        | SERIAL,
    ),
    Example(
        "kubevirt/permitted.yaml",
        machines.virtual_machines,
        {
            "nvidia.com/TU104GL_Tesla_T4": {"0000:65:00.0": 1},
            "intel.com/qat": {"0000:68:00.0": 1},
            "nvidia.com/GRID_T4-1Q": {machines.MDEV: 1},
        },
        [
            "    kubevirt: true",
            # the T4 has an external provider already
            "devhost starts: intel.com/qat, nvidia.com/GRID_T4-1Q. Otherwise",
        ],
    ),
    Example(
        "kubevirt/nvme.yaml",
        machines.virtual_machines,
        {"devices.kubevirt.io/nvme": {"0000:69:00.0": 1}},
        ["    kubevirt: true"],
    ),
    Example(
        "kubevirt/usb.yaml",
        machines.virtual_machines,
        {"kubevirt.io/storage": {"/dev/bus/usb/001/002": 1}},
        ["    kubevirt: true"],
    ),
    Example(  # "all USB devices need to be present in order for the assignment to work"
        "kubevirt/usb-bundle.yaml",
        machines.virtual_machines,
        {"kubevirt.io/peripherals": {"/dev/bus/usb/001/003 /dev/bus/usb/001/004 /dev/bus/usb/001/005": 1}},
        ["    kubevirt: true"],
    ),
    Example(
        "kubevirt/hyperconverged.yaml",
        machines.virtual_machines,
        {
            "nvidia.com/GV100GL_Tesla_V100": {"0000:67:00.0": 1},
            "intel.com/qat": {"0000:68:00.0": 1},
            "nvidia.com/GRID_T4-1Q": {machines.MDEV: 1},
        },
        ["devhost starts: nvidia.com/GV100GL_Tesla_V100, nvidia.com/GRID_T4-1Q. Otherwise"],
    ),
    Example(
        "intel-device-plugins/gpu.yaml",
        machines.graphics,
        {
            "gpu.intel.com/i915": {"0000:00:02.0": 10},
            "gpu.intel.com/xe": {"0000:03:00.0": 10},
            "gpu.intel.com/i915_monitoring": {"0000:00:02.0": 1},
            "gpu.intel.com/xe_monitoring": {"0000:03:00.0": 1},
        },
        ["    share: {of: all}", "    firmware: true"],
    ),
    Example(
        "intel-device-plugins/fpga.yaml",
        machines.fpga,
        {"fpga.intel.com/region-69528db6eb31577a8c3668f9faa081f6": {"0000:3f:00.0-fme": 1}},
    ),
    Example(
        "intel-device-plugins/qat.yaml",
        machines.quick_assist,
        {"qat.intel.com/cy": each(1, "0000:6b:00.3", "0000:6b:00.4")},
        ["sym;asym is assumed"],
    ),
    Example(
        "intel-device-plugins/qat.yaml",
        machines.quick_assist,
        {"qat.intel.com/dc": each(1, "0000:6b:00.3", "0000:6b:00.4")},
        arguments=["--services", "dc"],
    ),
    Example(
        "intel-device-plugins/dsa.yaml",
        machines.queues,
        {
            "dsa.intel.com/wq-user-dedicated": {"/dev/dsa/wq0.0": 1},
            "dsa.intel.com/wq-user-shared": {"/dev/dsa/wq0.1": 10},
        },
    ),
    Example(
        "intel-device-plugins/iaa.yaml",
        machines.queues,
        {
            "iaa.intel.com/wq-user-dedicated": {"/dev/iax/wq1.1": 1},
            "iaa.intel.com/wq-user-shared": {"/dev/iax/wq1.0": 10},
        },
    ),
    Example(
        "intel-device-plugins/dlb.yaml",
        machines.accelerators,
        {"dlb.intel.com/pf": {"/dev/dlb0": 1}, "dlb.intel.com/vf": {"/dev/dlb1": 1}},
    ),
    Example(
        "intel-device-plugins/sgx.yaml",
        machines.accelerators,
        {
            "sgx.intel.com/enclave": {"/dev/sgx_enclave": 110},
            "sgx.intel.com/provision": {"/dev/sgx_provision": 110},
        },
    ),
    Example(
        "intel-device-plugins/npu.yaml",
        machines.accelerators,
        {"npu.intel.com/accel": {"/dev/accel/accel0": 1}},
    ),
    Example(
        "akri/udev-video.yaml",
        machines.board,
        {"akri.sh/akri-udev-video": each(5, "/dev/video0", "/dev/video1")},
        ["permissions: rwm", 'env: {UDEV_DEVNODE: "{devNode}"}'],
    ),
    Example(
        "akri/udev-video-broker-pod-spec.yaml",
        machines.board,
        {"akri.sh/akri-udev-video": each(5, "/dev/video0", "/dev/video1")},
    ),
    Example(
        "akri/udev-video-first.yaml",
        machines.board,
        {"akri.sh/akri-udev-video": each(5, "/dev/video0", "/dev/video1")},
    ),
    Example("akri/dev-null.yaml", machines.board, {"akri.sh/akri-udev-dev-null": {"/dev/null": 1}}),
    Example("amd-device-plugin/daemonset.yaml", machines.instinct, {"amd.com/gpu": each(1, *MI210)}),
    Example(
        "amd-device-plugin/daemonset-init-container.yaml",
        machines.instinct,
        {"amd.com/gpu": each(1, *MI210)},
    ),
    Example(
        "amd-device-plugin/daemonset-health.yaml",
        machines.partitioned,
        {"amd.com/gpu": each(1, *PARTITIONS)},
    ),
    Example("amd-device-plugin/deviceconfig.yaml", machines.instinct, {"amd.com/gpu": each(1, *MI210)}),
    Example(
        "gke-device-plugin/daemonset.yaml",
        machines.nvidia,
        {"nvidia.com/gpu": each(1, *A100)},
        [
            "    healthChecks: none",
            "    permissions: mrw",
            "    driverDirectory: /home/kubernetes/bin/nvidia",
        ],
    ),
    Example(
        "gke-device-plugin/daemonset-addon.yaml",
        machines.nvidia,
        {"nvidia.com/gpu": each(1, *A100)},
        ["    healthChecks: none", "    driverDirectory: /home/kubernetes/bin/nvidia"],
    ),
    Example(
        "gke-device-plugin/daemonset-health.yaml",
        machines.nvidia,
        {"nvidia.com/gpu": each(1, *A100)},
        ["    healthChecks: [xid]", "    heedXids: [48]", "    ignoreXids: all"],
    ),
]

REFUSED = [
    ("sriov-network-device-plugin/vdpa-as-shipped.yaml", "did not find expected ',' or '}'"),
    ("rdma-shared-dev-plugin/mode-hca.yaml", "k8s-rdma-sriov-dev-plugin in mode hca"),
    ("rdma-shared-dev-plugin/mode-sriov.yaml", "`devhost import sriov-network-device-plugin`"),
    ("rdma-shared-dev-plugin/empty.yaml", "data.config.json:1:1: the key configList is required"),
    ("akri/udev-video-protocol.yaml", "its discovery handler is not udev"),
    ("akri/onvif.yaml", "its discovery handler is not udev"),
    ("gke-device-plugin/daemonset-first.yaml", "none of its containers runs the GKE GPU device plugin"),
    ("kubevirt/mediated.yaml", "it has no spec.configuration.permittedHostDevices"),
]
"""Examples that a release of today refuses as well, or that configure nothing that devhost offers."""


def imported(file: str, *arguments: str, text: str = "") -> Result:
    peer = file.partition("/")[0]
    return CliRunner().invoke(command, [peer, *arguments, "-" if text else str(DATA / file)], input=text)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: " ".join((one.file, *one.arguments)))
def test_a_shipped_example_offers_the_same_devices_as_its_plugin(tmp_path: Path, example: Example) -> None:
    done = imported(example.file, *example.arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    example.machine(tmp_path)
    found = offered(done.stdout, tmp_path)
    assert {name: found.get(name, {}) for name in example.offers} == example.offers
    beyond = found.keys() - example.offers.keys()
    assert beyond <= {"squat.ai/capture"}  # see the test of that group
    for text in example.says:
        assert text in done.stdout or text in said(done.stdout)


def test_a_sound_card_is_offered_by_its_directory_and_by_its_nodes(tmp_path: Path) -> None:
    """generic-device-plugin offers /dev/snd as audio and its nodes as capture, at the same time."""
    machines.board(tmp_path)
    found = offered(imported("generic-device-plugin/devices.yaml", *SQUAT).stdout, tmp_path)
    assert found["squat.ai/capture"] == CAPTURE


def test_the_daemonset_of_generic_device_plugin_offers_the_devices_of_its_flags(tmp_path: Path) -> None:
    done = imported("generic-device-plugin/daemonset.yaml", *SQUAT)
    assert done.exit_code == 0
    machines.board(tmp_path)
    found = offered(done.stdout, tmp_path)
    assert {name: found.get(name) for name in GENERIC} == GENERIC


@pytest.mark.parametrize(("file", "message"), REFUSED)
def test_an_example_without_configuration_is_refused_in_one_line(file: str, message: str) -> None:
    done = imported(file)
    assert done.exit_code != 0 and not done.stdout
    assert message in str(done.exception) and "\n" not in str(done.exception)


def test_every_example_is_in_the_table_with_its_source() -> None:
    sources = (DATA / "SOURCES.md").read_text(encoding="utf-8")
    tested = {example.file for example in EXAMPLES} | {file for file, _ in REFUSED}
    own_tests = {
        "generic-device-plugin/daemonset.yaml",
        "akri/grouped.yaml",
        "akri/example.rules",
        "akri/example-unsupported.rules",
    }
    kept = {str(file.relative_to(DATA)) for file in DATA.glob("*/*")}
    assert kept == tested | own_tests
    for file in kept:
        peer, name = file.split("/")
        assert f"`{file}`" in sources or f"`{peer}/*.yaml`" in sources or f"`{name}`" in sources


VIDEO = ["/dev/video0", "/dev/video1"]
OMITTED = "omitted"

RULES: list[tuple[list[str], str]] = [
    (VIDEO, ""),
    (VIDEO, ""),
    ([], "KERNEL video*|vbi*: libudev takes | literally"),
    ([], OMITTED),  # tags
    (VIDEO, ""),
    ([], ""),
    ([], OMITTED),  # a property that is no attribute
    (["/dev/video0"], ""),
    (["/dev/bus/usb/001/002", "/dev/bus/usb/001/003", "/dev/ttyUSB0", *VIDEO], ""),
    ([], ""),
    ([], OMITTED),  # tags
    ([], OMITTED),  # names of devices above
]
"""What each of Akri's example rules finds on the board, and what is said."""


@pytest.mark.parametrize("number", range(len(RULES)))
def test_example_rules_of_akri_find_the_same_devices(tmp_path: Path, number: int) -> None:
    rule = (DATA / "akri/example.rules").read_text(encoding="utf-8").splitlines()[number][2:]
    done = imported("akri", text=akri(rule))
    assert done.exit_code == 0, (done.output, done.exception)
    machines.board(tmp_path)
    nodes, remark = RULES[number]
    assert sorted(offered(done.stdout, tmp_path).get("akri.sh/found", {})) == sorted(nodes)
    assert remark in said(done.stdout)
    assert (OMITTED in done.stdout) == (remark == OMITTED)


UNSUPPORTED = (DATA / "akri/example-unsupported.rules").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("rule", UNSUPPORTED)
def test_rules_that_akri_does_not_support_are_refused_in_one_line(rule: str) -> None:
    done = imported("akri", text=akri(rule))
    assert done.exit_code != 0 and not done.stdout
    assert "udevRules[0]" in str(done.exception) and "Akri refuses it as well" in str(done.exception)
    assert "\n" not in str(done.exception)


def test_the_grouped_example_of_akri_finds_each_node_separately(tmp_path: Path) -> None:
    """Akri gives the nodes of one device together; here that is said, with what does the same."""
    template = (DATA / "akri/grouped.yaml").read_text(encoding="utf-8")
    done = imported("akri", text=template.format("pci-0000:00:14.0-usb-0:1:1.0"))
    assert done.exit_code == 0, (done.output, done.exception)
    machines.board(tmp_path)
    assert offered(done.stdout, tmp_path) == {"akri.sh/akri-udev-grouped": each(1, *VIDEO)}
    assert "# groupRecursive: " in done.stdout
