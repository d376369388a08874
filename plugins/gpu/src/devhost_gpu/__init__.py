"""devhost backend for GPUs: NVIDIA, AMD, Intel, and whatever else has a DRM node."""

from __future__ import annotations

from devhost.backend import Backend, hookimpl

from .backend import Gpu

__all__ = ["Gpu", "devhost_backends"]


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    """The backend this package brings."""
    return [Gpu]
