"""devhost backend for NVIDIA, AMD and Intel GPUs, and all other devices with a DRM node."""

from __future__ import annotations

from devhost.backend import Backend, hookimpl

from .backend import Gpu

__all__ = ["Gpu", "devhost_backends"]


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    return [Gpu]
