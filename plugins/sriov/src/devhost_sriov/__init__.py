"""devhost backend for SR-IOV: physical, virtual and scalable functions, of any class."""

from __future__ import annotations

from devhost.backend import Backend, hookimpl

from .backend import Sriov

__all__ = ["Sriov", "devhost_backends"]


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    """The backend this package brings."""
    return [Sriov]
