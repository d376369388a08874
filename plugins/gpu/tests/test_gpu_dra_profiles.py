"""What slices have of modelled GPUs with a profile, beside what the vendor's own driver publishes of them.

| profile | repository | file | commit |
|---|---|---|---|
| nvidia | kubernetes-sigs/dra-driver-nvidia-gpu | cmd/gpu-kubelet-plugin/deviceinfo.go, mig.go | 95932046 |
| amd | ROCm/k8s-gpu-dra-driver | docs/driver-attributes.md | 06dbe583 |
| intel | intel/intel-resource-drivers-for-kubernetes | node_state.go, models.go, sriov.go | 1da939fa |
| reader | NVIDIA/dcgm-exporter | internal/pkg/transformation/dra.go | d5e5f510 |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_amd
import gpu_intel
import pytest
from devhost_gpu.attributes import COUNTED
from devhost_gpu.options import GpuOptions
from devhost_testing.fixtures import BackendFixture
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk
from kit.plan import sliced

from devhost.backend import Device
from devhost.dra.slices import OWN

DOCUMENTED = (Path(__file__).parents[3] / "docs/dra-names.md").read_text()
ENGINES = {"copyEngines": "1", "decoders": "1", "encoders": "0", "jpegEngines": "1", "ofaEngines": "0"}
LEFT_OUT = {
    "nvidia": {"brand", "addressingMode", "memorySlice<n>"},
    "amd": set(),
    "intel": {"health"},
}
"""What a driver publishes besides, and no backend knows."""

STANDARD = "resource.kubernetes.io"
A, B = DGX[:2]


def published(profile: str, devices: Iterable[Device], driver: str = "d") -> dict[str, dict[str, Any]]:
    """The devices in slices by id, all of which can be published."""
    slices, left_out = sliced("gpu", f"{{profile: {profile}}}", devices, driver)
    assert not left_out
    return {device["attributes"]["id"]["string"]: dict(device) for one in slices for device in one.devices}


def facts(device: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The attributes without devhost's own, and the capacities."""
    attributes = {key: value for key, value in device["attributes"].items() if key not in OWN}
    return attributes, {key: one["value"] for key, one in device.get("capacity", {}).items()}


def string(**values: str) -> dict[str, dict[str, str]]:
    return {key: {"string": value} for key, value in values.items()}


def version(**values: str) -> dict[str, dict[str, str]]:
    return {key: {"version": value} for key, value in values.items()}


def whole(uuid: str) -> dict[str, Any]:
    """What NVIDIA's driver publishes of the first GPU, and of each instance of it."""
    return {
        **string(productName="NVIDIA A100-SXM4-80GB", architecture="Ampere", uuid=uuid),
        **version(cudaComputeCapability="8.0.0", driverVersion="570.124.6", cudaDriverVersion="12.8.0"),
        f"{STANDARD}/pciBusID": {"string": A},
        f"{STANDARD}/pcieRoot": {"string": "pci0000:06"},
        f"{STANDARD}/numaNode": {"int": 0},
    }


@pytest.mark.conformance(122)
def test_a_gpu_and_a_mig_instance_look_as_published_by_the_driver_of_nvidia(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]
) -> None:
    gpu = nvidia.gpu(A)
    parent = nvidia.gpu(B)
    instance = nvidia.mig(B, 1, 0, "3g.40gb", memory_mib=40192, multiprocessors=42, decoder=1, jpeg=1)
    found = published("nvidia", at(nvidia).look().values())
    assert found.keys() == {gpu, instance}
    assert facts(found[gpu]) == (whole(gpu) | string(type="gpu"), {"memory": "80Gi"})
    part = whole(instance) | string(type="mig", parentUUID=parent, profile="3g.40gb")
    part |= {
        f"{STANDARD}/pciBusID": {"string": B},
        f"{STANDARD}/pcieRoot": {"string": "pci0000:0e"},
    }
    assert facts(found[instance]) == (part, ENGINES | {"memory": "40192Mi", "multiprocessors": "42"})


@pytest.mark.conformance(122)
def test_an_instance_on_demand_looks_as_published_by_the_driver_of_nvidia(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]
) -> None:
    parent = nvidia.divisible(A)
    devices = at(nvidia, GpuOptions(mig="dynamic")).look()
    place = replace(devices[f"{parent.lower()}-1g10gb-0"], withheld=None)
    ((_, one),) = published("nvidia", [place, devices[parent]]).items()
    attributes, capacity = facts(one)
    assert attributes.keys() == {*whole(""), "type", "parentUUID", "profile"} - {"uuid"}
    assert attributes["profile"] == {"string": "1g.10gb"} and attributes["parentUUID"] == {"string": parent}
    assert capacity == ENGINES | {"memory": "9984Mi", "multiprocessors": "16"}


def test_devices_have_numbers_of_engines_only_for_an_entry_that_names_them(
    nvidia: NvidiaMachine, tmp_path: Path, looking: BackendFixture
) -> None:
    nvidia.gpu(A)
    instance = nvidia.mig(A, 1, 0)
    for wanted, names in (((), frozenset()), (("decoders",), {"decoders"})):
        (found,) = (one for one in looking(nvidia.tree, None, wanted).discover() if one.id == instance)
        assert found.attributes.keys() & COUNTED == names
        (card,) = looking(gpu_amd.mi300x(tmp_path / str(len(wanted)), count=1), None, wanted).discover()
        assert not card.attributes.keys() & COUNTED


@pytest.mark.conformance(122)
def test_an_amd_gpu_looks_as_published_by_the_driver_of_amd(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_amd.mi300x(tmp_path, count=1)
    tree.file("/sys/module/amdgpu/version", "6.19.14.31400000")
    ((_, device),) = published("amd", looking(tree).discover()).items()
    assert facts(device) == (
        {
            **string(type="amdgpu", deviceID="0x74a1", driverVersionFull="6.19.14.31400000"),
            **string(productName="AMD_Instinct_MI300X_OAM", partitionProfile="spx_nps1"),
            **version(driverVersion="6.19.14"),
            "numaNode": {"int": 0},
            f"{STANDARD}/pciBusID": {"string": "0000:0c:00.0"},
            f"{STANDARD}/pcieRoot": {"string": "pci0000:0a"},
            f"{STANDARD}/numaNode": {"int": 0},
        },
        {"memory": "196592Mi", "computeUnits": "104", "simdUnits": "416"},
    )


def test_a_partition_looks_as_published_by_the_driver_of_amd(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_amd.mi300x(tmp_path, "CPX", "NPS4", count=1)
    found = published("amd", looking(tree).discover())
    attributes, capacity = facts(found["amdgpu_xcp_0"])
    assert len(found) == 8
    assert attributes == {
        **string(type="amdgpu-partition", deviceID="0x74a1", partitionProfile="cpx_nps4"),
        **string(productName="AMD_Instinct_MI300X_OAM"),
        "numaNode": {"int": 0},
        f"{STANDARD}/pciBusID": {"string": "0000:0c:00.0"},
        f"{STANDARD}/pcieRoot": {"string": "pci0000:0a"},
        f"{STANDARD}/numaNode": {"int": 0},
    }
    assert capacity == {"memory": "24574Mi", "computeUnits": "104", "simdUnits": "416"}


@pytest.mark.conformance(122)
def test_a_card_looks_as_published_by_the_driver_of_intel(tmp_path: Path, looking: BackendFixture) -> None:
    found = published("intel", looking(gpu_intel.flex(tmp_path)).discover())
    assert facts(found["0000:4d:00.0"]) == (
        {
            **string(type="gpu", driver="i915", pciId="0x56c0", pciAddress="0000:4d:00.0", pciRoot="4a"),
            **string(model="Flex 170", family="Data Center Flex"),
            "sriov": {"bool": True},
            f"{STANDARD}/pciBusID": {"string": "0000:4d:00.0"},
            f"{STANDARD}/pcieRoot": {"string": "pci0000:4a"},
            f"{STANDARD}/numaNode": {"int": 0},
        },
        {"memory": "13536Mi", "millicores": "1k"},
    )
    virtual, _ = facts(found["0000:b4:00.1"])
    assert (virtual["type"], virtual["sriov"]) == ({"string": "vf"}, {"bool": False})


def test_an_intel_gpu_has_no_virtual_functions_for_its_driver_without_their_drivers(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_intel.flex(tmp_path)
    tree.file("/sys/bus/pci/devices/0000:4d:00.0/sriov_drivers_autoprobe", "0")
    found = published("intel", looking(tree).discover())
    assert facts(found["0000:4d:00.0"])[0]["sriov"] == {"bool": False}


def test_an_intel_gpu_that_its_driver_does_not_know_is_unknown(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_intel.flex(tmp_path)
    tree.file("/sys/bus/pci/devices/0000:4d:00.0/device", "0x1234")
    attributes, _ = facts(published("intel", looking(tree).discover())["0000:4d:00.0"])
    assert attributes["model"] == attributes["family"] == {"string": "Unknown"}


@pytest.mark.parametrize("profile", ["nvidia", "amd"])
def test_a_gpu_of_another_vendor_is_not_published_with_the_names_of_a_driver(
    profile: str, tmp_path: Path, looking: BackendFixture
) -> None:
    """A class of that driver would select it, and its pods cannot use it."""
    devices = looking(gpu_intel.flex(tmp_path)).discover()
    slices, left_out = sliced("gpu", f"{{profile: {profile}}}", devices)
    assert not any(one.devices for one in slices)
    reasons = {(one.attribute, one.reason) for one in left_out}
    assert reasons == {("", f"its vendor is intel, and the entry has dra.profile: {profile}")}


@pytest.mark.parametrize("profile", LEFT_OUT)
def test_the_documentation_names_what_a_profile_leaves_out(profile: str) -> None:
    row = next(line for line in DOCUMENTED.splitlines() if line.startswith(f"| `{profile}`"))
    assert set(row.split("|")[-2].replace("`", "").replace(",", " ").split()) == LEFT_OUT[profile]


# Who reads the slices of NVIDIA's driver


def seen_by_dcgm_exporter(driver: str, pool: str, devices: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the exporter learns: the UUID of each GPU, and parent, UUID and profile of each instance.

    It reads slices of one driver, and of those only attributes that are strings.
    """
    if driver != "gpu.nvidia.com":
        return {}
    learned: dict[str, Any] = {}
    for device in devices:
        text = {key: value.get("string", "") for key, value in device["attributes"].items()}
        name = f"{pool}/{device['name']}"
        if text.get("type") == "gpu" and text.get("uuid"):
            learned[name] = text["uuid"]
        if text.get("type") == "mig" and text.get("parentUUID"):
            learned[name] = (text["parentUUID"], text.get("uuid", ""), text.get("profile", ""))
    return learned


@pytest.mark.conformance(122)
def test_dcgm_exporter_finds_the_pods_of_gpus_and_of_instances(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]
) -> None:
    gpu = nvidia.gpu(A)
    parent = nvidia.gpu(B)
    instance = nvidia.mig(B, 1, 0, "3g.40gb")
    found = published("nvidia", at(nvidia).look().values(), "gpu.nvidia.com")
    learned = seen_by_dcgm_exporter("gpu.nvidia.com", "p", found.values())
    assert learned == {
        f"p/{found[gpu]['name']}": gpu,
        f"p/{found[instance]['name']}": (parent, instance, "3g.40gb"),
    }
