"""How much of GPUs is in use: NVML through its real binding, and the files of amdgpu."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import gpu_amd
import pytest
from devhost_gpu.options import GpuOptions
from devhost_testing.fixtures import BackendFixture
from gpu_nvidia import DGX, NvidiaMachine, dgx
from gpu_nvidia_desk import NvidiaDesk

from devhost.backend import Usage
from devhost.backend.errors import BackendError

GIB = 1 << 30


@pytest.fixture(params=["envvar", "cdi"])
def desk(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[NvidiaDesk]:
    """A machine, with each way in which containers get GPUs."""
    machine: NvidiaMachine = dgx(tmp_path / "dgx", nvml_library)
    monkeypatch.setenv("NVML_STUB", str(machine.nvml.file))
    found = NvidiaDesk(machine, GpuOptions(device_list_strategy=request.param))
    yield found
    found.close()


def usage(desk: NvidiaDesk) -> Mapping[str, Usage]:
    return desk.backend.usage(list(desk.look().values()))


def test_nvml_reports_the_use_of_gpus_and_the_memory_of_instances(desk: NvidiaDesk) -> None:
    nvml, uuids = desk.machine.nvml, desk.machine.uuids
    nvml.gpus[uuids[DGX[0]]].update(busy=37, memory_used=3 * GIB)
    instance = next(iter(nvml.migs))
    nvml.migs[instance].update(memory=10 * GIB, memory_used=GIB)
    nvml.write()
    found = usage(desk)
    assert found[uuids[DGX[0]]] == Usage(0.37, 3 * GIB, 80 * GIB)
    assert found[uuids[DGX[1]]] == Usage(None, 0, 80 * GIB), "a driver that does not count this"
    assert found[instance] == Usage(None, GIB, 10 * GIB)


def test_a_gpu_that_is_lost_has_no_figures_and_hides_no_other(desk: NvidiaDesk) -> None:
    desk.look()
    desk.machine.lose(DGX[2])
    found = usage(desk)
    assert desk.machine.uuids[DGX[2]] not in found
    assert desk.machine.uuids[DGX[0]] in found


def test_nvml_is_not_asked_while_the_driver_is_released(desk: NvidiaDesk) -> None:
    devices = list(desk.look().values())
    desk.backend.release()
    with pytest.raises(BackendError):
        desk.backend.usage(devices)
    assert desk.pid == 0


def test_a_vendor_that_does_not_answer_hides_no_figures_of_another(desk: NvidiaDesk) -> None:
    gpu_amd.radeon(desk.machine.root, {"gpu_busy_percent": "12"})
    devices = list(desk.look().values())
    desk.backend.release()
    assert 0.12 in [one.busy for one in desk.backend.usage(devices).values()]


def test_amdgpu_reports_the_use_of_a_gpu(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_amd.mi210(tmp_path)
    backend = looking(tree)
    first, *others = (one for one in backend.discover() if one.attributes["vendor"] == "amd")
    where = f"/sys/bus/pci/devices/{first.attributes['pciBusID']}"
    for name, value in (
        ("gpu_busy_percent", 12),
        ("mem_info_vram_used", 7),
        ("mem_info_vram_total", 64 * GIB),
    ):
        tree.file(f"{where}/{name}", f"{value}")
    found = backend.usage([first, *others])
    assert found[first.id] == Usage(0.12, 7, 64 * GIB)
    assert {found[one.id].busy for one in others} == {None}


def test_a_partition_of_an_amd_gpu_has_no_figures(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_amd.mi300x(tmp_path, "CPX", "NPS4", count=1))
    assert backend.usage(list(backend.discover())) == {}
