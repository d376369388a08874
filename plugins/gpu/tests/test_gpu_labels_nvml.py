"""Node labels from NVML's reports, through the real binding: whole GPUs, instances, one that is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from gpu_nvidia import DGX, NvidiaMachine, dgx
from gpu_nvidia_desk import NvidiaDesk

from devhost.host.node_labels import sorted_out


@pytest.fixture
def desk(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvidiaDesk]:
    machine: NvidiaMachine = dgx(tmp_path / "dgx", nvml_library)
    monkeypatch.setenv("NVML_STUB", str(machine.nvml.file))
    found = NvidiaDesk(machine)
    yield found
    found.close()


def said(desk: NvidiaDesk) -> dict[str, str]:
    devices = desk.look()
    offered: dict[str, Mapping[str, int]] = {}
    for name, device in devices.items():
        if not device.withheld:
            profile = device.attributes.get("profile")
            offered[name] = {f"nvidia.com/mig-{profile}" if profile else "nvidia.com/gpu": 1}
    good, wrong = sorted_out(desk.backend.labels(list(devices.values()), offered).items())
    assert wrong == []
    return good


def test_labels_of_a_dgx_with_two_partitioned_gpus(desk: NvidiaDesk) -> None:
    found = said(desk)
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert found["nvidia.com/gpu.count"] == "8"
    assert found["nvidia.com/gpu.replicas"] == "1"
    assert found["nvidia.com/gpu.mode"] == "compute"
    assert found["nvidia.com/mig.capable"] == "true"
    assert found["nvidia.com/mig.strategy"] == "mixed"
    assert found["nvidia.com/mig-1g.10gb.count"] == "7"
    assert found["nvidia.com/mig-1g.10gb.product"] == "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    assert int(found["nvidia.com/mig-1g.10gb.multiprocessors"]) > 0
    assert found["nvidia.com/cuda.driver-version.major"] == "570"


def test_a_gpu_for_the_display_is_not_counted(desk: NvidiaDesk) -> None:
    desk.machine.nvml.gpus[desk.machine.uuids[DGX[0]]]["name"] = "NVIDIA DGX Display"
    desk.machine.nvml.write()
    found = said(desk)
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert found["nvidia.com/gpu.count"] == "7"
    assert not any("display" in name.lower() for name in found)


def test_a_gpu_that_is_lost_changes_no_label(desk: NvidiaDesk) -> None:
    before = said(desk)
    desk.machine.lose(DGX[2])
    assert said(desk) == before
