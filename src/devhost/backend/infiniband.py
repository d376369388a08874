"""The device nodes of RDMA devices, as the classes ``infiniband_*`` in sysfs list them.

For backends whose devices have RDMA devices: nodes belong to an RDMA device by their file ``ibdev``, and hang
on the function that it is a part of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from .sysfs import Sysfs

DIRECTORY = "/dev/infiniband"
"""The directory of the nodes, by the names that the kernel gives them (``infiniband/uverbs0``)."""

_RDMA_CM = "/sys/class/misc/rdma_cm"

_OWNER = re.compile(r"[^/\s]{1,64}")


class Role(Enum):
    """What a node is for: its name without the number, and the module that makes it."""

    UVERBS = "uverbs", "ib_uverbs"
    UMAD = "umad", "ib_umad"
    ISSM = "issm", "ib_umad"
    UCM = "ucm", "ib_ucm"
    RDMA_CM = "rdma_cm", "rdma_ucm"

    def __init__(self, word: str, module: str) -> None:
        self.word = word
        self.module = module


CLASSES = {
    "infiniband_verbs": (Role.UVERBS,),
    "infiniband_mad": (Role.UMAD, Role.ISSM),
    "infiniband_cm": (Role.UCM,),
}
"""The kernel's classes with the nodes of RDMA devices; ``infiniband_cm`` is gone since Linux 5.8."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that the kernel made for an RDMA device; ``entry`` is its directory in sysfs.

    ``ib_device`` is empty for a node that several share.
    """

    role: Role
    path: str
    ib_device: str
    entry: str


def role_of(class_name: str, name: str) -> Role | None:
    """What a device of a class is for; ``None`` for another file, such as ``abi_version``."""
    return next((role for role in CLASSES[class_name] if name.startswith(role.word)), None)


def owner(sysfs: Sysfs, entry: str) -> str:
    """The RDMA device that a node belongs to; empty if its directory does not say."""
    found = sysfs.text(f"{entry}/ibdev")
    return found if _OWNER.fullmatch(found) else ""


def node(sysfs: Sysfs, role: Role, entry: str, ib_device: str) -> Node:
    """The node whose directory in sysfs is ``entry``."""
    return Node(role, sysfs.node(entry, f"{DIRECTORY}/{entry.rpartition('/')[2]}"), ib_device, entry)


def nodes_below(sysfs: Sysfs, path: str) -> Iterator[Node]:
    """Each node that belongs to the function at ``path`` alone, in the order of roles. Never raises."""
    for class_name, roles in CLASSES.items():
        names = sysfs.names(f"{path}/{class_name}")
        for role in roles:
            for name in names:
                if name.startswith(role.word):
                    entry = f"{path}/{class_name}/{name}"
                    yield node(sysfs, role, entry, owner(sysfs, entry))


def rdma_cm_node(sysfs: Sysfs) -> str | None:
    """The node that all RDMA devices share for connections by address; ``None`` without ``rdma_ucm``."""
    return sysfs.node(_RDMA_CM, f"{DIRECTORY}/rdma_cm") if sysfs.exists(_RDMA_CM) else None
