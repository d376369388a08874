"""What makes cards Unhealthy, and Healthy again."""

from __future__ import annotations

import shutil
from pathlib import Path

import gpu_amd
import gpu_intel
import gpu_others
import pytest
from devhost_gpu import Gpu
from devhost_gpu.options import GpuOptions
from devhost_testing.fixtures import BackendFixture, by_id, request
from kit.backend import missing_drivers

from devhost.backend import Cause, OptionError

MI210 = "0000:63:00.0"


def reasons(backend: Gpu) -> dict[str, str]:
    """The cards that a probe finds unhealthy, with the reason."""
    return {name: health.reason for name, health in backend.probe(backend.discover()).items()}


def test_uncorrectable_errors_make_only_their_card_unhealthy_until_they_are_gone(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.mi210(tmp_path)
    backend = looking(tree)
    assert reasons(backend) == {}
    count = f"/sys/bus/pci/devices/{MI210}/ras/umc_err_count"
    tree.file(count, "ue: 2\nce: 14\nde: 0")
    assert reasons(backend) == {MI210: "uncorrectable errors since its driver was loaded: 2 of umc"}
    tree.file(count, "ue: 0\nce: 0\nde: 0")
    assert reasons(backend) == {}


@pytest.mark.parametrize(("limit", "is_unhealthy"), [(0, False), (2, True), (3, False)])
def test_the_limit_of_errors_is_an_option(
    tmp_path: Path, looking: BackendFixture, limit: int, is_unhealthy: bool
) -> None:
    tree = gpu_amd.mi210(tmp_path)
    tree.file(f"/sys/bus/pci/devices/{MI210}/ras/umc_err_count", "ue: 2\nce: 14")
    assert bool(reasons(looking(tree, GpuOptions(uncorrectable_errors=limit)))) is is_unhealthy


def test_a_fault_of_a_gpu_concerns_all_its_partitions_and_no_others(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.mi300x(tmp_path, "CPX", "NPS4", count=2)
    backend = looking(tree)
    tree.file("/sys/bus/pci/devices/0000:1c:00.0/ras/gfx_err_count", "ue: 1\nce: 0")
    assert set(reasons(backend)) == {"0000:1c:00.0", *(f"amdgpu_xcp_{n}" for n in range(7, 14))}


def test_a_card_of_which_the_configuration_space_reads_as_ones_is_dead(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.mi210(tmp_path)
    backend = looking(tree)
    config = tmp_path / f"sys/bus/pci/devices/{MI210}/config"
    config.write_bytes(b"\xff" * 256)
    assert list(reasons(backend)) == [MI210]
    config.write_bytes(b"\x02\x10\x0f\x74" + bytes(252))
    assert reasons(backend) == {}


def test_a_sleeping_card_is_not_dead(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_intel.arc(tmp_path)
    place = "sys/bus/pci/devices/0000:03:00.0"
    (tmp_path / place / "config").write_bytes(b"\xff" * 64)
    tree.file(f"/{place}/power_state", "D3cold")
    assert reasons(looking(tree)) == {}


def test_a_card_for_computing_that_the_topology_does_not_have_is_unhealthy(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.mi210(tmp_path)
    backend = looking(tree)
    shutil.rmtree(tmp_path / "sys/class/kfd/kfd/topology/nodes/1")
    devices = by_id(backend)
    assert "it is not in the compute topology" in devices[MI210].health.reason
    assert sum(device.health.healthy for device in devices.values()) == 3


def test_a_card_for_computing_is_unhealthy_on_a_kernel_that_cannot(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.mi210(tmp_path)
    shutil.rmtree(tmp_path / "sys/devices/virtual/kfd")
    assert not any(device.health.healthy for device in by_id(looking(tree)).values())


def hide(root: Path) -> None:
    """Makes the topology what a container sees that may not open DRM nodes: reading it is refused."""
    for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("[1-9]*/properties"):
        path.unlink()


def test_whole_gpus_need_no_topology_that_is_hidden_from_a_container(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.mi210(tmp_path)
    hide(tmp_path)
    backend = looking(tree)
    devices = by_id(backend)
    assert all(device.health.healthy for device in devices.values())
    assert devices[MI210].attributes["memory"] == 65520
    assert "/dev/kfd" in {node.path for node in backend.allocate(request(backend, [devices[MI210]])).nodes}


def test_partitions_that_are_hidden_from_a_container_are_reported(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.mi300x(tmp_path, "CPX", "NPS4", count=1)
    hide(tmp_path)
    (device,) = by_id(looking(tree)).values()
    assert "as a privileged one has" in device.health.reason


def test_a_consumer_card_that_cannot_compute_is_healthy_and_needs_no_kfd(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.radeon(tmp_path)
    shutil.rmtree(tmp_path / "sys/class/kfd/kfd/topology/nodes/1")
    backend = looking(tree)
    device = by_id(backend)["0000:03:00.0"]
    assert device.health.healthy
    assert "architecture" not in device.attributes
    assert "/dev/kfd" not in {node.path for node in backend.allocate(request(backend, [device])).nodes}


@pytest.mark.parametrize("node", ["dri/renderD128", "dri/card0", "kfd"])
def test_a_missing_node_is_named(tmp_path: Path, looking: BackendFixture, node: str) -> None:
    tree = gpu_amd.mi210(tmp_path)
    (tmp_path / "dev" / node).unlink()
    assert by_id(looking(tree))[MI210].health.reason == f"/dev/{node} does not exist"


def test_a_card_is_unhealthy_from_the_temperature_limit_on(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_amd.mi210(tmp_path)
    tree.hwmon(f"/sys/devices/pci0000:60/0000:60:03.1/0000:61:00.0/0000:62:00.0/{MI210}", 0, mem=100)
    assert reasons(looking(tree)) == {}, "there is no limit by default"
    assert reasons(looking(tree, GpuOptions(temperature_limit=101))) == {}
    backend = looking(tree, GpuOptions(temperature_limit=100))
    found = backend.probe(backend.discover())
    assert {name: health.reason for name, health in found.items()} == {
        MI210: "mem is at 100 °C, the limit is 100 °C"
    }
    assert found[MI210].causes == {Cause.THERMAL}


@pytest.mark.parametrize("limits", [{"temperature_limit": 100}, {"uncorrectable_errors": 5}])
def test_a_limit_that_a_card_cannot_exceed_is_reported(
    tmp_path: Path, looking: BackendFixture[Gpu], limits: dict[str, int]
) -> None:
    tree = gpu_amd.mi210(tmp_path)
    path = f"/sys/devices/pci0000:60/0000:60:03.1/0000:61:00.0/0000:62:00.0/{MI210}"
    shutil.rmtree(tree.root / path.lstrip("/") / "ras", ignore_errors=True)
    shutil.rmtree(tree.root / path.lstrip("/") / "hwmon", ignore_errors=True)
    backend = looking(tree, GpuOptions(**limits))
    (lacking,) = missing_drivers(backend)
    key = "temperatureLimit" if "temperature_limit" in limits else "uncorrectableErrors"
    assert lacking.subject.startswith(MI210)
    assert lacking.reason.startswith(f"backends.gpu.{key} has no effect")
    assert not lacking.makes_device
    tree.hwmon(path, 0, mem=50)
    tree.file(f"{path}/ras/umc_err_count", "ue: 0\nce: 0")
    assert not missing_drivers(backend)


def test_the_default_limits_report_nothing(tmp_path: Path, looking: BackendFixture[Gpu]) -> None:
    assert not missing_drivers(looking(gpu_amd.mi210(tmp_path)))


def test_limits_are_not_negative() -> None:
    with pytest.raises(OptionError, match="0 or more"):
        GpuOptions(temperature_limit=-1)


def test_a_probe_ignores_cards_that_are_gone(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_others.virtual_machine(tmp_path))
    devices = backend.discover()
    (tmp_path / "empty").mkdir()
    assert looking(tmp_path / "empty").probe(devices) == {}
