"""The backend for AWS Neuron: the devices and cores of Inferentia and Trainium."""

from __future__ import annotations

from devhost.backend import Backend, hookimpl

__all__ = ["devhost_backends"]


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    from .backend import Neuron

    return [Neuron]
