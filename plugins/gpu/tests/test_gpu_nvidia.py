"""NVIDIA's GPUs and MIG instances as the core sees them: what is offered, and why something is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from devhost_gpu.environment import Environment
from devhost_gpu.options import GpuOptions
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import PATIENCE, NvidiaDesk

A, B = DGX[:2]
Open = Callable[..., NvidiaDesk]


# Discovery


def test_a_dgx_has_six_gpus_and_the_parts_of_two(station: NvidiaMachine, at: Open) -> None:
    found = at(station).look()
    offered = [device for device in found.values() if not device.withheld]
    assert all(device.health for device in found.values())
    assert sum(device.attributes["kind"] == "gpu" for device in offered) == 6
    assert sorted(str(one.attributes["profile"]) for one in offered if one.attributes["kind"] == "mig") == [
        *["1c.3g.40gb"] * 2,
        *["1g.10gb"] * 7,
        "3g.40gb",
    ]


def test_a_gpu_has_every_attribute_that_is_known_of_it(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A, serial="1320920032321", vbios="92.00.45.00.03")
    assert at(nvidia).look()[uuid].attributes == {
        "vendor": "nvidia",
        "kind": "gpu",
        "product": "NVIDIA A100-SXM4-80GB",
        "uuid": uuid,
        "index": 0,
        "memory": 81920,
        "architecture": "ampere",
        "computeCapability": "8.0",
        "driverVersion": "570.124.06",
        "cudaVersion": "12.8",
        "pciBusID": A,
        "pcieRoot": "pci0000:06",
        "numaNode": 0,
        "driver": "nvidia",
        "vendorID": "10de",
        "deviceID": "20b2",
        "subsystemVendorID": "10de",
        "subsystemDeviceID": "20b2",
        "firmware": "92.00.45.00.03",
        "serial": "1320920032321",
    }


@pytest.mark.parametrize("model", ["DGX Display", "NVIDIA DGX Display"])
def test_the_display_gpu_of_a_dgx_station_is_reserved(nvidia: NvidiaMachine, at: Open, model: str) -> None:
    compute, display = nvidia.gpu(A), nvidia.gpu(B, name=model)
    found = at(nvidia).look()
    assert found[display].attributes["purpose"] == "display"
    assert found[display].reserved == "it only drives the display of this machine"
    assert found[display].health
    assert not found[compute].reserved
    assert "purpose" not in found[compute].attributes


def test_an_instance_has_its_own_nodes_and_is_a_part_of_its_gpu(nvidia: NvidiaMachine, at: Open) -> None:
    parent = nvidia.gpu(A)
    uuid = nvidia.mig(A, 7, 0)
    desk = at(nvidia)
    found = desk.look()
    assert found[uuid].attributes["parent"] == parent
    common = {"node:/dev/nvidia0", "node:/dev/nvidia-caps/nvidia-cap3"}
    assert found[uuid].part_of == {f"pci:{A}", *common}
    assert found[uuid].claims == {f"mig:{uuid}", "node:/dev/nvidia-caps/nvidia-cap4"}
    card = desk.backend.cards[uuid]
    assert card.facts.nodes == (  # type: ignore[attr-defined]
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap3",
        "/dev/nvidia-caps/nvidia-cap4",
    )
    assert card.facts.index == "0:0"  # type: ignore[attr-defined]


@pytest.mark.parametrize("root", ["/run/nvidia/driver", "//run/nvidia//driver/"])
def test_a_gpu_claims_its_nodes_below_another_root_too(nvidia: NvidiaMachine, at: Open, root: str) -> None:
    uuid = nvidia.gpu(A)
    claims = at(nvidia, GpuOptions(dev_root=root)).look()[uuid].claims
    assert {"node:/dev/nvidia0", "node:/run/nvidia/driver/dev/nvidia0"} <= claims


def test_a_gpu_with_mig_and_no_instance_is_not_offered(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A, mig=1)
    other = nvidia.gpu(B, mig_pending=1)
    assert at(nvidia).reasons() == {
        uuid: "MIG is on, but it has no instance",
        other: "MIG will be on after its next reset",
    }


def test_another_partition_is_found_by_the_next_scan(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    other = nvidia.gpu(B)
    desk = at(nvidia)
    assert [*desk.look()] == [uuid, other]
    first, second = nvidia.mig(A, 1, 0), nvidia.mig(A, 2, 0)
    assert [*desk.look()] == [uuid, first, second, other]
    del nvidia.nvml.migs[first]
    nvidia.nvml.write()
    assert [*desk.look()] == [uuid, second, other]
    nvidia.nvml.migs.clear()
    nvidia.nvml.gpus[uuid]["mig"] = 0
    nvidia.nvml.write()
    assert [*desk.look()] == [uuid, other]
    assert desk.reasons() == {}


async def test_another_partition_causes_an_event(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.gpu(A)
    desk = at(nvidia, compare=0.1)
    desk.look()
    async with desk.watched() as changed:
        nvidia.mig(A, 1, 0)
        await asyncio.wait_for(changed.wait(), PATIENCE)


def test_a_gpu_that_shares_the_systems_memory_is_offered_without_any(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A, name="NVIDIA GB10")
    del nvidia.nvml.gpus[uuid]["memory"]
    nvidia.nvml.write()
    desk = at(nvidia)
    assert "memory" not in desk.look()[uuid].attributes
    assert desk.reasons() == desk.probe() == {}


def test_sixteen_gpus_on_switches_are_all_alike(nvidia: NvidiaMachine, at: Open) -> None:
    addresses = [f"0000:{bus:02x}:00.0" for bus in range(0x10, 0xB0, 0x0A)]
    for address in addresses:
        nvidia.nvml.link(nvidia.gpu(address), "switch", 6)
    nvidia.nvml.write()
    desk = at(nvidia)
    found = list(desk.look().values())
    assert len(found) == 16
    assert {desk.backend.links(a, b) for a in found for b in found if a is not b} == {6}


# What is not there


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ("", "no driver is bound to it"),
        ("nouveau", "it is bound to nouveau, which makes no GPU of it for containers"),
        ("vfio-pci", "it is bound to vfio-pci, which makes no GPU of it for containers"),
    ],
)
def test_a_gpu_without_its_driver_is_shown_by_its_address(
    nvidia: NvidiaMachine, at: Open, driver: str, reason: str
) -> None:
    uuid = nvidia.gpu(A)
    nvidia.gpu(B, driver)
    nvidia.inform(B, 1, "")
    found = at(nvidia).look()
    assert found[B].withheld == reason
    assert not found[uuid].withheld
    assert found[uuid].health


def test_a_driver_without_a_gpu_is_logged(
    nvidia: NvidiaMachine, at: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        assert at(nvidia).look() == {}
        assert "there is no GPU" in caplog.text


def test_without_the_library_gpus_are_known_from_the_drivers_files(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    nvidia.gpu(B)
    nvidia.inform(B, 1, "GPU-????????-????-????-????-????????????")  # it has not been woken up yet
    (nvidia.root / "usr/lib64/libnvidia-ml.so.1").unlink()
    found = at(nvidia, GpuOptions(driver_root="/run/nvidia/driver")).look()
    right = "is backends.gpu.driverRoot right?"
    reason = f"libnvidia-ml.so.1 was not found: /run/nvidia/driver does not exist ({right})"
    assert found[uuid].health.reason == reason
    assert not found[uuid].withheld
    assert found[B].withheld == reason


def test_without_the_binding_the_reason_names_the_package_to_install(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    assert at(nvidia, environment=Environment(find_binding=lambda: "")).reasons() == {
        uuid: "nvidia-ml-py is not installed: pip install nvidia-ml-py",
    }


def test_a_library_of_another_version_is_the_reason_until_the_right_one_is_there(
    nvidia: NvidiaMachine, at: Open
) -> None:
    uuid = nvidia.gpu(A)
    mismatch = nvidia.nvml.fault("nvmlInit_v2", error=18)
    desk = at(nvidia, first_delay=0.0)
    assert "mismatch" in desk.reasons()[uuid]
    nvidia.nvml.fix(mismatch)
    desk.until(lambda: not desk.reasons())


def test_a_gpu_that_its_driver_leaves_out_is_not_offered(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A)
    nvidia.inform(A, 0, uuid, excluded="Yes")
    assert "exclude it" in at(nvidia).reasons()[uuid]


def test_a_driver_that_is_loaded_later_is_used(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A, "")
    nvidia.inform(A, 0, "")
    desk = at(nvidia)
    assert [*desk.look()] == [A]
    assert not desk.pid
    nvidia.tree.bind(nvidia.paths[A], "nvidia")
    assert [*desk.look()] == [uuid]
    assert desk.reasons() == {}
