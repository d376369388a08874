"""The backend keeps the promises that every backend makes, on a machine with the difficult cases of GPUs."""

from __future__ import annotations

from pathlib import Path

from devhost_gpu import Gpu
from devhost_gpu.options import GpuOptions
from devhost_testing.contract import BackendContract
from gpu_others import everything


class TestGpuContract(BackendContract):
    """GPUs, partitions, virtual functions, twins, unhealthy cards, cards without a vendor."""

    backend = Gpu
    options = GpuOptions(temperature_limit=100)

    def tree(self, root: Path) -> None:
        everything(root)
