"""The names of MIG profiles: ``1g.10gb``, ``1c.3g.20gb``, ``1g.10gb+me``."""

from __future__ import annotations

import re

from .nvml.reports import Instance

_NAME = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb(?:[+-][a-z.+-]*)?)")
"""How a MIG instance's name ends: ``NVIDIA A100-SXM4-80GB MIG 1g.10gb``."""


def profile(instance: Instance, gpu_memory: int | None) -> str:
    """The profile of a MIG instance: by its name, else by its shape; empty where neither tells.

    A compute instance that does not have all of its GPU instance's slices bears their number in front.

    Args:
        instance: the instance.
        gpu_memory: of the whole GPU, in MiB.
    """
    if found := _NAME.search(instance.name):
        return found[1]
    shape = instance.shape
    if shape is None or not instance.memory:
        return ""
    part = f"{shape.compute_slices}c." if shape.compute_slices != shape.gpu_slices else ""
    return f"{part}{shape.gpu_slices}g.{_gigabytes(instance.memory, gpu_memory)}gb"


def _gigabytes(memory: int, gpu_memory: int | None) -> int:
    """The memory as a profile has it: eighths of the GPU's, each rounded up (A100 40GB: 4864 MiB are 5)."""
    if not gpu_memory:
        return -(-memory // 1024)
    whole = -(-gpu_memory // 1024)
    eighths = max(1, round(memory * 8 / gpu_memory))
    return -(-eighths * whole // 8)
