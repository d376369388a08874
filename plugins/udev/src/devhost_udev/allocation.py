"""What a container gets in addition to a node, and the changes on the host for that."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from devhost.backend import AllocateRequest, AllocationError, AttributeValue
from devhost.backend.model import FrozenDict

from .options import KUBEVIRT

QEMU = 107
"""The user and group of qemu in pods of KubeVirt (``util.NonRootUID``)."""

USB_VARIABLE = "USB_RESOURCE"
"""Prefix of the variable from which virt-launcher reads USB devices (``v1.USBResourcePrefix``)."""


NO_USB_DEVICE = FrozenDict(
    {KUBEVIRT: "it is not a whole USB device (kubevirt: true is for devType: usb_device)"}
)
"""What a device that is no whole USB device cannot be used for (``Device.unusable_for``)."""


def is_usb_device(attributes: Mapping[str, AttributeValue]) -> bool:
    """Whether a node with these attributes is that of a whole USB device."""
    return attributes.get("devType") == "usb_device"


def also_at(attributes: Mapping[str, AttributeValue]) -> tuple[str, ...]:
    """Further paths in the container of a node with these attributes.

    libaccel-config opens a work queue of Intel DSA or IAA as ``/dev/char/<major>:<minor>``
    (``accfg_wq_get_user_dev_path``); Intel's plugin provides both paths.
    """
    if attributes.get("subsystem") not in ("dsa", "iax"):
        return ()
    return (f"/dev/char/{attributes['major']}:{attributes['minor']}",)


def to_kubevirt(prefix: str, nodes: Sequence[str], request: AllocateRequest) -> dict[str, str]:
    """Makes qemu the owner of nodes of USB devices; returns the variables that name them for virt-launcher.

    KubeVirt's own plugin does the same at each Allocate. The name of its variable keeps the hyphens of the
    resource's name; the name that shells can expand is set, too. ``prefix`` is used as ``/``, without a
    trailing slash; ``nodes`` are paths as the kernel names them, ``/dev/bus/usb/<bus>/<device>``.
    """
    found = []
    for node in nodes:
        path = prefix + node
        try:
            status = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - a string
            if (status.st_uid, status.st_gid) != (QEMU, QEMU):
                os.chown(path, QEMU, QEMU, follow_symlinks=False)
        except OSError as error:
            needs = "devhost needs CAP_CHOWN and a writable /dev"
            reason = f"cannot give {node} to KubeVirt's user {QEMU}: {error.strerror} ({needs})"
            raise AllocationError(reason) from error
        bus, device = node.split("/")[-2:]
        found.append(f"{int(bus)}:{int(device)}")
    names = (request.variable(USB_VARIABLE, keep_hyphens=True), request.variable(USB_VARIABLE))
    return dict.fromkeys(names, ",".join(found))
