"""The device nodes of RDMA devices, as the classes ``infiniband_*`` in sysfs list them.

For backends whose devices have RDMA devices. The file ``ibdev`` of a node names its RDMA device, and the node
is below the function that the RDMA device is part of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from .frozen import frozen
from .sysfs import Sysfs

DIRECTORY = "/dev/infiniband"
"""The directory of the nodes, as the kernel names them (``infiniband/uverbs0``)."""

_RDMA_CM = "/sys/class/misc/rdma_cm"

_OWNER = re.compile(r"[^/\s]{1,64}")


class Role(Enum):
    """The purpose of a node: its name without the number, and the module that creates it."""

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
"""The kernel's classes with nodes of RDMA devices; Linux 5.8 removed ``infiniband_cm``."""


@frozen(slots=True)
class Node:
    """A node that the kernel created for an RDMA device; ``entry`` is its directory in sysfs.

    ``ib_device`` is empty for a node that several RDMA devices share.
    """

    role: Role
    path: str
    ib_device: str
    entry: str


def role_of(class_name: str, name: str) -> Role | None:
    """The purpose of a device of a class; ``None`` for another file, such as ``abi_version``."""
    return next((role for role in CLASSES[class_name] if name.startswith(role.word)), None)


def owner(sysfs: Sysfs, entry: str) -> str:
    """The RDMA device that a node belongs to; empty if its directory does not name one."""
    found = sysfs.text(f"{entry}/ibdev")
    return found if _OWNER.fullmatch(found) else ""


def node(sysfs: Sysfs, role: Role, entry: str, ib_device: str) -> Node:
    """The node whose directory in sysfs is ``entry``."""
    return Node(role, sysfs.node(entry, f"{DIRECTORY}/{entry.rpartition('/')[2]}"), ib_device, entry)


def nodes_below(sysfs: Sysfs, path: str) -> Iterator[Node]:
    """Each node that belongs to the function at ``path`` only, in the order of roles. Never raises."""
    for class_name, roles in CLASSES.items():
        names = sysfs.names(f"{path}/{class_name}")
        for role in roles:
            for name in names:
                if name.startswith(role.word):
                    entry = f"{path}/{class_name}/{name}"
                    yield node(sysfs, role, entry, owner(sysfs, entry))


def rdma_cm_node(sysfs: Sysfs) -> str | None:
    """The node for connections by address, which all RDMA devices share; ``None`` without ``rdma_ucm``."""
    return sysfs.node(_RDMA_CM, f"{DIRECTORY}/rdma_cm") if sysfs.exists(_RDMA_CM) else None
