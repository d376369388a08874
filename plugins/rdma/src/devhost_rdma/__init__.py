"""devhost backend for RDMA: InfiniBand, RoCE, iWARP and EFA."""

from __future__ import annotations

from devhost.backend import Backend, hookimpl

from .backend import Rdma

__all__ = ["Rdma", "devhost_backends"]


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    """The backend this package brings."""
    return [Rdma]
