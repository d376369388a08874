"""devhost backend for any device node that udev can describe."""

from __future__ import annotations

from devhost.backend import Backend, hookimpl

from .backend import Udev

__all__ = ["Udev", "devhost_backends"]


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    return [Udev]
