"""Claims: the physical things that a device occupies, in the same notation for all backends.

::

    Device(id, claims=frozenset({claim.pci("0000:3b:00.1"), claim.node("/dev/vfio/17")}),
           part_of=frozenset({claim.pci("0000:3b:00.0")}))

Two devices with a common claim are never allocated to two pods, even if they belong to different backends. A
claim is a plain string such as ``pci:0000:3b:00.1``, and two of them are equal or not: a misspelled one would
never equal another. So each constructor raises :class:`ValueError` for a name that cannot be valid, and the
core refuses a device with a claim that no constructor makes (:func:`flaw`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection

from .sysfs import BDF

_KIND = re.compile(r"[a-z][a-z0-9-]*")
_BLOCK = re.compile(r"[0-9]+:[0-9]+")
_PART = re.compile(r"[^#]+#[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def pci(address: str) -> str:
    """A PCI function, by its address with the domain: ``0000:3b:00.0``."""
    if not BDF.fullmatch(address):
        raise ValueError(f"{address!r} is not a PCI address such as 0000:3b:00.0")
    return f"pci:{address}"


def node(path: str) -> str:
    """A device node, by its path on the host: ``/dev/fuse``. It has no ``..`` and no repeated slash."""
    if not path.startswith("/") or path.startswith("//") or path != posixpath.normpath(path) or path == "/":
        raise ValueError(f"{path!r} is not the absolute path of a device node such as /dev/fuse")
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


def part(name: str) -> str:
    """A part of a device that other devices use up: ``GPU-…#memory-slice-3``.

    What follows ``#`` is a DNS label, which names the shared counter of the part.
    """
    if not _PART.fullmatch(name):
        raise ValueError(f"{name!r} is not a part of a device such as GPU-…#memory-slice-3")
    return other("part", name)


def device(backend: str, name: str) -> str:
    """A device in what :meth:`devhost.backend.Context.held` returns, by backend and id. Not for claims."""
    return other("device", f"{backend}/{name}")


def holder(pod: str, backend: str, name: str) -> str:
    """The pod (``namespace/name``) that holds a device, likewise.

    ``pod`` is empty if a container holds it that the kubelet has not named yet, or a ResourceClaim.
    """
    return f"holder:{pod}:{backend}/{name}"


def other(kind: str, name: str) -> str:
    """A thing of another kind, which :attr:`.Backend.claim_kinds` declares.

    ``kind`` has lower-case letters, digits and hyphens.
    """
    if not _KIND.fullmatch(kind):
        raise ValueError(f"{kind!r} is not a kind of claim: lower-case letters, digits and hyphens")
    if not name or not name.isprintable() or name != name.strip():
        raise ValueError(f"{name!r} is not a name that can be claimed")
    return f"{kind}:{name}"


MAX_CLAIM = 4200
"""Longest claim in characters: a path of Linux's ``PATH_MAX`` with its kind."""

KINDS: dict[str, tuple[Callable[[str], str], str]] = {
    "pci": (pci, 'claim.pci("0000:3b:00.0")'),
    "node": (node, 'claim.node("/dev/fuse")'),
    "aux": (auxiliary, 'claim.auxiliary("mlx5_core.sf.4")'),
    "iommu": (iommu_group, 'claim.iommu_group("17")'),
    "block": (block, 'claim.block("8:0")'),
    "usb": (usb, 'claim.usb("1-1.2")'),
    "rdma": (rdma, 'claim.rdma("0000:3b:00.0")'),
    "ib": (infiniband, 'claim.infiniband("mlx5_0")'),
    "fpga": (fpga, 'claim.fpga("region0")'),
    "mig": (mig, 'claim.mig("MIG-…")'),
    "part": (part, 'claim.part("GPU-…#memory-slice-3")'),
    "partition": (partition, 'claim.partition("amdgpu_xcp_3")'),
}
"""The kinds that every backend may use: the constructor of each, and how it is written."""


def is_kind(text: object) -> bool:
    """Whether a backend may declare this as another kind of claim."""
    reserved = text in KINDS or text == "device"
    return isinstance(text, str) and _KIND.fullmatch(text) is not None and not reserved


def flaw(text: object, kinds: Collection[str] = ()) -> str:
    """Why a string is not a claim, and how to write it; empty if it is one.

    Args:
        kinds: the kinds that the backend declares.
    """
    if not isinstance(text, str):
        return f"claim {text!r:.40} is {type(text).__name__}, not a string"
    if len(text) > MAX_CLAIM:
        return f"claim {text[:40]!r}… has {len(text)} characters, more than {MAX_CLAIM}"
    kind, colon, name = text.partition(":")
    if kind in KINDS and colon:
        make, example = KINDS[kind]
        try:
            return "" if make(name) == text else f"claim {text!r} is malformed (write {example})"
        except ValueError as error:
            return f"claim {text!r} is malformed: {error} (write {example})"
    if kind in kinds and colon:
        try:
            return "" if other(kind, name) == text else f"claim {text!r} is malformed"
        except ValueError as error:
            return f"claim {text!r} is malformed: {error}"
    if kind in ("device", "holder") and colon:
        return f"claim {text!r} is of a kind that only Context.held() has"
    return f"claim {text!r} {_kindless(text, kind if colon else '')}"


def _kindless(text: str, kind: str) -> str:
    """What is wrong with a claim without a known kind."""
    if text.startswith("/"):
        return f'has no kind (write claim.node("{text}"))' if text.isprintable() else "has no kind"
    if not kind:
        return f"has no kind (write claim.other(kind, name), or one of {', '.join(sorted(KINDS))})"
    import difflib  # 0.2 MB, only after a misspelling

    close = difflib.get_close_matches(kind, KINDS, n=1)
    meant = f"did you mean {KINDS[close[0]][1]}? If not, " if close else ""
    return f"is of the unknown kind {kind!r} ({meant}list {kind!r} in the backend's claim_kinds)"
