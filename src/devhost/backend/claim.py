"""Claims: the physical things that a device occupies, in the same notation for all backends.

::

    Device(id, claims=frozenset({claim.pci("0000:3b:00.1"), claim.node("/dev/vfio/17")}),
           part_of=frozenset({claim.pci("0000:3b:00.0")}))

Two devices with a common claim are never allocated to two pods, even if they belong to different backends. A
claim is a plain string such as ``pci:0000:3b:00.1``; it is compared, never parsed. Each constructor raises
:class:`ValueError` for a name that cannot be valid: a misspelled claim would never equal another one.
"""

from __future__ import annotations

import re

from .sysfs import BDF

_KIND = re.compile(r"[a-z][a-z0-9-]*")
_BLOCK = re.compile(r"[0-9]+:[0-9]+")


def pci(address: str) -> str:
    """A PCI function, by its address with the domain: ``0000:3b:00.0``."""
    if not BDF.fullmatch(address):
        raise ValueError(f"{address!r} is not a PCI address such as 0000:3b:00.0")
    return f"pci:{address}"


def node(path: str) -> str:
    """A device node, by its path on the host: ``/dev/fuse``."""
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"{path!r} is not the absolute path of a device node")
    return other("node", path)


def auxiliary(name: str) -> str:
    """A device of the auxiliary bus, by its name: ``mlx5_core.sf.4``."""
    return other("aux", name)


def iommu_group(number: int | str) -> str:
    """An IOMMU group, by its number. Its devices go to one pod, each by itself."""
    if not re.fullmatch("[0-9]+", str(number)):
        raise ValueError(f"{number!r} is not the number of an IOMMU group")
    return f"iommu:{number}"


def block(number: str) -> str:
    """A block device, by its number: ``8:0``."""
    if not _BLOCK.fullmatch(number):
        raise ValueError(f"{number!r} is not the number of a block device such as 8:0")
    return f"block:{number}"


def usb(port: str) -> str:
    """A USB device, by the port it is plugged into: ``1-1.2``."""
    return other("usb", port)


def rdma(name: str) -> str:
    """The RDMA devices of one function, by the name of the function: ``0000:3b:00.0``."""
    return other("rdma", name)


def infiniband(name: str) -> str:
    """One RDMA device, by its name: ``mlx5_0``."""
    return other("ib", name)


def fpga(name: str) -> str:
    """An FPGA, or a region of one, by its name: ``region0``."""
    return other("fpga", name)


def mig(uuid: str) -> str:
    """A MIG instance, by its UUID."""
    return other("mig", uuid)


def partition(name: str) -> str:
    """A partition of an accelerator, by its name: ``amdgpu_xcp_3``."""
    return other("partition", name)


def device(backend: str, name: str) -> str:
    """A device in what :meth:`devhost.backend.Context.held` returns, by backend and id. Not for claims."""
    return other("device", f"{backend}/{name}")


def other(kind: str, name: str) -> str:
    """A thing of another kind. ``kind`` has lower-case letters, digits and hyphens."""
    if not _KIND.fullmatch(kind):
        raise ValueError(f"{kind!r} is not a kind of claim: lower-case letters, digits and hyphens")
    if not name or not name.isprintable() or name != name.strip():
        raise ValueError(f"{name!r} is not a name that can be claimed")
    return f"{kind}:{name}"
