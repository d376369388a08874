"""What a container may do with the device nodes it gets: the letters of ``devices`` cgroup rules. Pure.

``r`` reads, ``w`` writes, ``m`` makes nodes (mknod), as in ``linux.resources.devices`` of the OCI runtime
specification and ``DeviceSpec.permissions`` of the device plugin API.
"""

from __future__ import annotations

from dataclasses import replace

from .errors import AllocationError
from .model import Edits

PERMISSIONS = r"(?=.*[rw])(?!.*(.).*\1)[rwm]{1,3}"
"""What a resource may say: each letter at most once, and not ``m`` alone, which opens no node."""

_ORDINARY = frozenset("rw")


def permitted(edits: Edits, permissions: str) -> Edits:
    """The same edits with these permissions for device nodes; unchanged where they are empty.

    A node for which the backend asks for less than ``rw`` is never widened: it keeps what both allow.

    Raises:
        AllocationError: a node is left with nothing by which it could be opened.
    """
    if not permissions:
        return edits
    nodes = []
    for node in edits.nodes:
        allowed = permissions
        if not _ORDINARY.issubset(node.permissions):
            allowed = "".join(letter for letter in node.permissions if letter in permissions)
            if _ORDINARY.isdisjoint(allowed):
                why = f"it is given with {node.permissions!r} only, and the resource allows {permissions!r}"
                raise AllocationError(f"no permissions are left for {node.path}: {why}")
        nodes.append(replace(node, permissions=allowed))
    return replace(edits, nodes=tuple(nodes))
