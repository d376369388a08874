"""The modelled machines are modules beside the tests, which import them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from devhost_gpu import Gpu
from devhost_testing.fixtures import BackendFixture

sys.path.append(str(Path(__file__).parent / "machines"))

if TYPE_CHECKING:
    from devhost_gpu.options import GpuOptions
    from gpu_nvidia import NvidiaMachine
    from gpu_nvidia_desk import NvidiaDesk


@pytest.fixture
def looking() -> Iterator[BackendFixture[Gpu]]:
    """Makes backends on a machine, and ends what they began."""
    with BackendFixture(Gpu) as looking:
        yield looking


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub NVML, built once."""
    from gpu_nvml import build, compiler

    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    if compiler() is None:
        pytest.skip("no C compiler to build the stub NVML with")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvidia(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> NvidiaMachine:
    """A machine with NVIDIA's driver and no GPU yet."""
    from gpu_nvidia import NvidiaMachine

    machine = NvidiaMachine(tmp_path / "root", nvml_library)
    monkeypatch.setenv("NVML_STUB", str(machine.nvml.file))
    return machine


@pytest.fixture
def station(
    nvidia: NvidiaMachine, tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> NvidiaMachine:
    """A DGX with two GPUs split by MIG."""
    from gpu_nvidia import dgx

    machine = dgx(tmp_path / "dgx", nvml_library)
    monkeypatch.setenv("NVML_STUB", str(machine.nvml.file))
    return machine


@pytest.fixture
def at() -> Iterator[Callable[..., NvidiaDesk]]:
    """Makes backends on machines with NVIDIA's GPUs, and ends what they began."""
    from gpu_nvidia_desk import NvidiaDesk

    desks: list[NvidiaDesk] = []

    def make(machine: NvidiaMachine, options: GpuOptions | None = None, **more: Any) -> NvidiaDesk:
        desks.append(NvidiaDesk(machine, options, **more))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()
