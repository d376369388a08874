"""The public API for backend authors: everything a package needs to serve a new kind of hardware.

A backend reports which devices exist and what a container needs to use them. It knows nothing about
Kubernetes, resources or sharing: the core handles those. A package registers its classes through pluggy::

    # pyproject.toml:  [project.entry-points.devhost]  mykind = "devhost_mykind"
    from devhost.backend import Attribute, Backend, Device, DeviceNode, Edits, hookimpl

    class MyKind(Backend):
        name = "mykind"
        subsystems = ("misc",)
        attributes = {"model": Attribute(str, "model as printed on the card", "X100")}

        def discover(self):
            yield Device(id="card-0123", attributes={"model": "X100"})

        def allocate(self, request):
            return Edits(nodes=(DeviceNode("/dev/mykind0"),))

    @hookimpl
    def devhost_backends():
        return [MyKind]

The same module also works without a package, as a ``.py`` file in a directory of ``backendPaths``.

Methods are plain functions that may block. The core calls them on the backend's own threads, each
call with a deadline. A call that hangs or raises degrades this backend only, and never empties a device
list. ``discover`` and ``notice`` run on one thread, ``probe`` on another, ``allocate`` and ``prepare`` on a
third, and ``links`` on a fourth. So an expensive check does not delay hot-plug, and a slow scan does not
delay a pod. Protect what the methods share with a lock, or replace it as a whole.

Import from here: the names below, and the modules ``errors``, ``model``, ``where``, ``sysfs``, ``netlink``,
``claim``, ``process``, ``backoff``, ``incident``, ``files``, ``frozen``, ``disks``, ``infiniband``,
``trusted``, ``provision``, ``purpose``, ``threads``, ``traffic``, ``templates`` and ``observe``.
May import: nothing else of devhost.
"""

from __future__ import annotations

from . import claim
from .base import (
    API_VERSION,
    AllocateRequest,
    Attribute,
    Backend,
    Conditions,
    Consumed,
    ContainerRequest,
    Context,
    Event,
    MissingDriver,
    NoOptions,
    Offered,
    OptionError,
    Usage,
    option,
)
from .errors import AllocationError, NotYet
from .model import HEALTHY, AttributeValue, Cause, Device, DeviceNode, Edits, Health, Mount, unhealthy
from .observe import hookimpl

__all__ = [
    "API_VERSION",
    "HEALTHY",
    "AllocateRequest",
    "AllocationError",
    "Attribute",
    "AttributeValue",
    "Backend",
    "Cause",
    "Conditions",
    "Consumed",
    "ContainerRequest",
    "Context",
    "Device",
    "DeviceNode",
    "Edits",
    "Event",
    "Health",
    "MissingDriver",
    "Mount",
    "NoOptions",
    "NotYet",
    "Offered",
    "OptionError",
    "Usage",
    "claim",
    "hookimpl",
    "option",
    "unhealthy",
]
