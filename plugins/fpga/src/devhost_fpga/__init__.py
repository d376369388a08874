"""The backend for FPGAs: accelerator functions, regions, cards behind DFL, OPAE, XRT or the kernel alone."""

from __future__ import annotations

from devhost.backend import Backend, hookimpl

__all__ = ["devhost_backends"]


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    from .backend import Fpga

    return [Fpga]
