"""What network plugins read of a function: a document of the NPWG device information specification."""

from __future__ import annotations

from collections.abc import Mapping

from devhost.backend.sysfs import Sysfs

from . import nodes
from .function import Function, Kind
from .options import SriovUse

VERSION = "1.1.0"
"""The version of the specification that the documents keep to."""


def document(
    sysfs: Sysfs, function: Function, representor: str, use: SriovUse
) -> Mapping[str, object] | None:
    """The document of a function; ``None`` for one that no network plugin has to do with.

    That is one that is no network adapter, and a scalable function without a vDPA device: the specification
    has only a PCI address to tell functions by.

    Args:
        representor: the interface that stands for it in an embedded switch; empty without one.
        use: what the container gets with it.
    """
    if not function.is_network:
        return None
    place = {
        "pci-address": "" if function.kind is Kind.SCALABLE else function.address,
        "pf-pci-address": function.parent,
        "representor-device": representor,
    }
    vdpa = function.vdpa
    if vdpa is not None and vdpa.type and (path := nodes.vdpa_path(sysfs, function)):
        return _document("vdpa", place | {"parent-device": vdpa.name, "driver": vdpa.type, "path": path})
    if function.kind is Kind.SCALABLE:
        return None
    rdma = ",".join(nodes.rdma_devices(sysfs, function)) if use.rdma else ""
    vhost = nodes.VHOST_NET_NODE if use.vhost_net else ""
    return _document("pci", place | {"rdma-device": rdma, "vhost-net": vhost})


def _document(kind: str, facts: Mapping[str, str]) -> Mapping[str, object]:
    return {"type": kind, "version": VERSION, kind: {key: text for key, text in facts.items() if text}}
