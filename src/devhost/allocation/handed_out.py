"""The device nodes of the host that a container can open with its edits. Reads the host's files.

Not counted are nodes that the backend declares as shared (:attr:`devhost.backend.DeviceNode.shared`), those
that every container has, and those in a directory that is mounted: they may change after the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from os.path import realpath

from devhost.backend import claim
from devhost.backend.model import Device, Edits
from devhost.backend.sysfs import is_regular, node_number, read_lines

EVERYWHERE = frozenset(
    f"/dev/{name}" for name in ("console", "full", "null", "ptmx", "random", "tty", "urandom", "zero")
)
"""The nodes that every container has (OCI runtime specification, "Default Devices")."""

_NO_NODES = ("/dev/hugepages/", "/dev/mqueue/", "/dev/pts/", "/dev/shm/")
"""Directories in ``/dev`` whose files are no devices, in a recorded tree, where files represent nodes."""


def unclaimed(
    edits: Edits, devices: Collection[Device], prefix: str, left_out: Collection[str] = ()
) -> frozenset[str]:
    """The claims of nodes that these devices neither claim nor are part of. May block.

    For ``prefix`` see :func:`~devhost.backend.sysfs.prefix_of`. ``left_out`` are host paths of optional parts
    that do not exist.
    """
    known = {one for device in devices for one in (*device.claims, *device.part_of)}
    found = {text for text in _claims(edits, prefix, left_out, known) if text not in known}
    if not found:
        return frozenset()
    nodes = (one.removeprefix("node:") for one in known if one.startswith("node:"))
    numbers = {number for node in nodes if (number := node_number(realpath(prefix + node)))}
    own = {text: node_number(realpath(prefix + text.removeprefix("node:"))) for text in found}
    return frozenset(text for text in found if own[text] not in numbers)


def _claims(edits: Edits, prefix: str, left_out: Collection[str], known: Collection[str]) -> Iterator[str]:
    paths = [node.path for node in edits.nodes if not node.shared]
    paths += [mount.host_path for mount in edits.mounts if is_node(prefix, mount.host_path)]
    for path in paths:
        # what is claimed by the name in the answer, as usual, needs no other name
        if path in left_out or path in EVERYWHERE or f"node:{path}" in known:
            continue
        node = _canonical(prefix, path)
        if node not in EVERYWHERE:
            try:
                yield claim.node(node)
            except ValueError:
                continue  # a path that nothing can claim


def _canonical(prefix: str, path: str) -> str:
    """The name that the kernel gives a node; else the path without links."""
    real = realpath(prefix + path)
    number = node_number(real)
    if number:
        kind = "char" if number[0] == "c" else "block"
        for line in read_lines(f"{prefix}/sys/dev/{kind}/{number[1:]}/uevent"):
            name = line.removeprefix("DEVNAME=")
            if name != line and node_number(f"{prefix}/dev/{name}") == number:
                return f"/dev/{name}"
    inside = real.removeprefix(prefix)
    return inside if real.startswith(f"{prefix}/") else path


def is_node(prefix: str, path: str) -> bool:
    """Whether the source of a mount is a device node, or a file that represents one. May block."""
    real = realpath(prefix + path)
    if node_number(real):
        return True
    represents = bool(prefix) and path.startswith("/dev/") and not path.startswith(_NO_NODES)
    return represents and is_regular(real)
