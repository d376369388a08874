"""Node labels: GPU feature discovery's names for NVIDIA, the labellers' of AMD and Intel for theirs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import gpu_amd
import gpu_intel
import pytest
from devhost_gpu.labels import nvidia as nvidia_labels
from devhost_gpu.nvml.reports import Shape
from devhost_testing.fixtures import BackendFixture, by_id

from devhost.backend import AttributeValue, Device
from devhost.host.node_labels import sorted_out

A100, T4 = "NVIDIA A100-SXM4-40GB", "Tesla T4"
SHAPE = Shape(1, 1, 14, 1, 0, 0, 0, 0)


def gpu(number: int, product: str = A100, **more: AttributeValue) -> Device:
    known: dict[str, AttributeValue] = {
        "vendor": "nvidia",
        "kind": "gpu",
        "product": product,
        "memory": 40960 if product == A100 else 15360,
        "computeCapability": "8.0" if product == A100 else "7.5",
        "driverVersion": "570.86.15",
        "cudaVersion": "12.8",
        "pciBusID": f"0000:{number:02x}:00.0",
    }
    return Device(f"GPU-{number}", known | more)


def mig(parent: int, number: int, profile: str = "1g.5gb") -> Device:
    return Device(
        f"MIG-{parent}-{number}",
        dict(gpu(parent).attributes) | {"kind": "mig", "profile": profile, "memory": 4864, "index": number},
    )


def said(
    devices: list[Device],
    offered: Mapping[str, Mapping[str, int]] | None = None,
    *,
    machine: str = "DGXA100",
    pci_class: str = "030200",
    mps: Collection[str] = (),
) -> dict[str, str]:
    """What devhost would write: every label must be one."""
    once = {device.id: {"nvidia.com/gpu": 1} for device in devices}
    classes = {str(device.attributes["pciBusID"]): pci_class for device in devices}
    shapes = {device.id: SHAPE for device in devices if device.attributes["kind"] == "mig"}
    found = nvidia_labels(devices, once if offered is None else offered, shapes, machine, classes, mps)
    return checked(found)


def checked(found: Mapping[str, str | int]) -> dict[str, str]:
    good, wrong = sorted_out(found.items())
    assert wrong == []
    return good


def under(found: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}


def test_a_node_of_one_model_has_the_labels_of_gpu_feature_discovery() -> None:
    assert said([gpu(n) for n in range(8)]) == {
        "nvidia.com/cuda.driver-version.full": "570.86.15",
        "nvidia.com/cuda.driver-version.major": "570",
        "nvidia.com/cuda.driver-version.minor": "86",
        "nvidia.com/cuda.driver-version.revision": "15",
        "nvidia.com/cuda.driver.major": "570",
        "nvidia.com/cuda.driver.minor": "86",
        "nvidia.com/cuda.driver.rev": "15",
        "nvidia.com/cuda.runtime-version.full": "12.8",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "8",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/cuda.runtime.minor": "8",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.family": "ampere",
        "nvidia.com/gpu.machine": "DGXA100",
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mps.capable": "false",
    }


def test_a_node_without_a_gpu_or_without_its_driver_has_no_labels() -> None:
    bound = Device("0000:01:00.0", {"vendor": "nvidia", "kind": "gpu", "pciBusID": "0000:01:00.0"})
    assert said([]) == {}
    assert said([bound]) == {}


def test_a_mixed_node_speaks_of_the_model_it_has_most_of_and_has_a_block_for_each() -> None:
    found = said([gpu(0), gpu(1, T4), gpu(2, T4)], pci_class="030000")
    assert found["nvidia.com/gpu.product"] == "Tesla-T4"
    assert found["nvidia.com/gpu.count"] == "2"
    assert found["nvidia.com/gpu.mode"] == "graphics"
    assert under(found, "nvidia.com/gpu-Tesla-T4.") == {
        "product": "Tesla-T4",
        "count": "2",
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": "15360",
        "family": "turing",
        "compute.major": "7",
        "compute.minor": "5",
    }
    assert under(found, "nvidia.com/gpu-NVIDIA-A100-SXM4-40GB.")["count"] == "1"


def test_the_order_of_devices_does_not_matter() -> None:
    devices = [gpu(0), gpu(1, T4), mig(0, 1), mig(0, 2)]
    assert said(devices) == said(devices[::-1])


@pytest.mark.parametrize(
    ("resources", "product", "replicas", "strategy"),
    [
        ({"nvidia.com/gpu": 10}, "Tesla-T4-SHARED", "10", "time-slicing"),
        ({"nvidia.com/gpu.shared": 10}, "Tesla-T4", "10", "time-slicing"),
        ({"nvidia.com/gpu": 1}, "Tesla-T4", "1", "none"),
        ({}, "Tesla-T4", "0", "none"),
    ],
)
def test_the_product_label_shows_sharing_where_the_resource_name_does_not(
    resources: dict[str, int], product: str, replicas: str, strategy: str
) -> None:
    found = under(said([gpu(0, T4)], {"GPU-0": resources}), "nvidia.com/gpu.")
    assert (found["product"], found["replicas"], found["sharing-strategy"]) == (product, replicas, strategy)


@pytest.mark.parametrize(
    ("resources", "product", "strategy", "capable"),
    [
        ({"nvidia.com/gpu": 4}, "Tesla-T4-SHARED", "mps", "true"),
        ({"nvidia.com/gpu.shared": 4}, "Tesla-T4", "time-slicing", "false"),
        ({"nvidia.com/gpu": 1}, "Tesla-T4", "none", "true"),
        ({}, "Tesla-T4", "none", "false"),
    ],
)
def test_a_node_that_shares_gpus_through_mps_has_the_label_for_nvidia_s_daemon(
    resources: dict[str, int], product: str, strategy: str, capable: str
) -> None:
    """NVIDIA's mps-control-daemon selects nodes by ``mps.capable``, which GPU feature discovery sets."""
    found = said([gpu(0, T4)], {"GPU-0": resources}, mps=["nvidia.com/gpu"])
    assert found["nvidia.com/mps.capable"] == capable
    mine = under(found, "nvidia.com/gpu.")
    assert (mine["product"], mine["sharing-strategy"]) == (product, strategy)


def test_mig_instances_are_not_shared_through_mps() -> None:
    devices = [gpu(0), mig(0, 0)]
    found = said(devices, {devices[1].id: {"nvidia.com/gpu": 4}}, mps=["nvidia.com/gpu"])
    assert found["nvidia.com/mps.capable"] == "false"
    assert found["nvidia.com/gpu.sharing-strategy"] == "time-slicing"


def test_instances_with_separate_resources_have_labels_for_each_profile() -> None:
    devices = [gpu(0), gpu(1), mig(1, 0), mig(1, 1), mig(1, 2, "1g.10gb+me")]
    offered = {"GPU-0": {"nvidia.com/gpu": 1}} | {
        device.id: {f"nvidia.com/mig-{device.attributes['profile']}": 1} for device in devices[2:]
    }
    found = said(devices, offered)
    assert found["nvidia.com/mig.strategy"] == "mixed"
    assert found["nvidia.com/gpu.count"] == "2"
    assert under(found, "nvidia.com/mig-1g.5gb.") == {
        "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "count": "2",
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": "4864",
        "multiprocessors": "14",
        "slices.gi": "1",
        "slices.ci": "1",
        "engines.copy": "1",
        "engines.decoder": "0",
        "engines.encoder": "0",
        "engines.jpeg": "0",
        "engines.ofa": "0",
    }
    assert found["nvidia.com/mig-1g.10gb.me.count"] == "1"


def test_instances_offered_as_gpus_take_their_labels() -> None:
    parent = gpu(0)
    devices = [mig(0, n) for n in range(7)]
    offered = {device.id: {"nvidia.com/gpu": 1} for device in devices}
    found = said([parent, *devices], offered)
    assert found["nvidia.com/mig.strategy"] == "single"
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert found["nvidia.com/gpu.count"] == "7"
    assert found["nvidia.com/gpu.slices.gi"] == "1"
    assert not under(found, "nvidia.com/mig-")


@pytest.mark.parametrize(
    ("capability", "capable"), [("7.5", "false"), ("8.9", "false"), ("9.0", "true"), ("12.0", None)]
)
def test_mig_capable_is_set_if_it_follows_from_the_generation(capability: str, capable: str | None) -> None:
    found = said([gpu(0, computeCapability=capability)])
    assert found.get("nvidia.com/mig.capable") == capable


@pytest.mark.parametrize(
    ("capability", "family"), [("10.3", "blackwell"), ("13.0", "rubin"), ("99.0", "undefined")]
)
def test_the_family_is_that_of_the_compute_capability(capability: str, family: str) -> None:
    assert said([gpu(0, computeCapability=capability)])["nvidia.com/gpu.family"] == family


def test_very_long_names_still_make_valid_and_different_labels() -> None:
    long = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition With A Longer Name"
    found = said([gpu(0, f"{long} A"), gpu(1, f"{long} B"), gpu(2)])
    assert len({name for name in found if name.endswith(".sharing-strategy")}) == 4


def test_amd_cards_of_one_kind_have_values_and_others_have_counts(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(gpu_amd.mi210(tmp_path))
    found = checked(backend.labels(list(by_id(backend).values()), {}))
    assert found["amd.com/gpu.device-id"] == found["beta.amd.com/gpu.device-id"] == "740f"
    assert found["beta.amd.com/gpu.device-id.740f"].isdigit()
    assert found["amd.com/gpu.product-name"] == "Instinct_MI210"
    assert found["amd.com/gpu.vram"] == "64G"
    assert found["amd.com/gpu.simd-count"] == "416"
    assert found["amd.com/gpu.cu-count"] == "104"


def test_firmware_of_amd_cards_is_counted_by_version(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_amd.mi210(tmp_path)
    for address, version in (("0000:63:00.0", "0x00000058"), ("0000:43:00.0", "0x00000059")):
        tree.file(f"/sys/bus/pci/devices/{address}/fw_version/rlc_fw_version", version)
        tree.file(f"/sys/bus/pci/devices/{address}/fw_version/sdma_fw_version", "0x00000008")
    tree.file("/sys/bus/pci/devices/0000:43:00.0/fw_version/smc_fw_version", "garbage")
    backend = looking(tree)
    found = checked(backend.labels(list(by_id(backend).values()), {}))
    assert under(found, "beta.amd.com/gpu.firmware.") == {
        "RLC.fw.88": "1",
        "RLC.fw.89": "1",
        "SDMA0.fw.8": "2",
    }


def test_labels_show_the_mode_of_amd_partitions(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_amd.mi300x(tmp_path, "CPX", "NPS4", 2)
    backend = looking(tree)
    found = checked(backend.labels(list(by_id(backend).values()), {}))
    assert found["amd.com/compute-memory-partition"] == "cpx_nps4"
    assert found["amd.com/gpu.compute-memory-partition"] == "cpx_nps4"
    assert found["amd.com/memory-partitioning-supported"] == "true"


def test_intel_cards_are_counted_by_id_and_named_as_in_intels_rules(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(gpu_intel.max1550(tmp_path))
    devices = list(by_id(backend).values())
    found = checked(backend.labels(devices, {}))
    count = str(len(devices))
    assert found == {
        "gpu.intel.com/device-id.0380-0bd5.count": count,
        "gpu.intel.com/device-id.0380-0bd5.present": "true",
        "gpu.intel.com/device.count": count,
        "gpu.intel.com/family": "Max_Series",
        "gpu.intel.com/product": "Max_1550",
    }
