"""The backend with another environment than outside tests."""

from __future__ import annotations

from collections.abc import Mapping

from devhost_gpu import Gpu
from devhost_gpu.backend import Maker
from devhost_gpu.environment import STANDARD, Environment, Timings
from devhost_gpu.options import GpuOptions

from devhost.backend import Context
from devhost.backend.model import NOTHING


def gpu_with(environment: Environment = STANDARD, makers: Mapping[str, Maker] = NOTHING) -> type[Gpu]:
    """The backend's class, with this environment, and other code of these vendors."""

    class Configured(Gpu):
        def __init__(self, options: GpuOptions, context: Context) -> None:
            super().__init__(options, context, environment, makers)

    return Configured


def gpu_timed(**seconds: float) -> type[Gpu]:
    """The backend's class with these durations."""
    return gpu_with(Environment(Timings(**seconds)))
