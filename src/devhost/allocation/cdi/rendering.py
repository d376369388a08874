"""What a backend gives a container, as edits of a specification, and whether the host still has it so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from devhost.allocation.resource_backend import Granted
from devhost.backend.errors import AllocationError
from devhost.backend.frozen import frozen
from devhost.backend.model import Device

from . import spec
from .spec import ContainerEdits, HostNode

Seen = Mapping[str, HostNode | bool | None]
"""What the host has: at the path of a node the node or ``None``, at that of a mount whether it exists."""


@frozen
class Rendered:
    """Edits of a specification; they are right as long as the host has at each path what it had."""

    edits: ContainerEdits
    seen: Seen = field(default_factory=dict)


def rendered(granted: Granted, root: Path) -> Rendered:
    """The edits of a specification for what a container gets. May block: not for the event loop.

    Raises ``AllocationError`` if a device node is missing, or CDI cannot carry it.
    """
    seen: dict[str, HostNode | bool | None] = {
        mount.host_path: mount.host_path not in granted.left_out for mount in granted.edits.mounts
    }
    seen |= dict.fromkeys(granted.left_out.intersection(node.path for node in granted.edits.nodes))

    def look(path: str) -> HostNode:
        found = seen[path] = spec.host_node(path, root)
        return found

    return Rendered(spec.container_edits(granted.edits, look, granted.left_out), seen)


def outdated(every: Iterable[Seen], root: Path, exists: Callable[[str], bool]) -> list[int]:
    """The numbers of those for which the host has something else now. May block: not for the event loop.

    ``exists`` is whether the host has the source of a mount.
    """
    now: dict[tuple[str, bool], HostNode | bool | None] = {}

    def differs(seen: Seen) -> bool:
        for path, before in seen.items():
            place = path, isinstance(before, bool)
            if place not in now:
                now[place] = exists(path) if isinstance(before, bool) else _node(path, root)
            if now[place] != before:
                return True
        return False

    return [number for number, seen in enumerate(every) if differs(seen)]


def recorded(edits: ContainerEdits) -> Seen | None:
    """What the host had when these edits of a file were rendered; ``None`` if the file lacks it."""
    try:
        return {
            node.get("hostPath", node["path"]): HostNode(
                node.get("hostPath", node["path"]),
                *(node[key] for key in ("type", "major", "minor", "fileMode", "uid", "gid")),
            )
            for node in edits.get("deviceNodes", ())
        }
    except (KeyError, TypeError, AttributeError):
        return None


def claims_of(devices: Iterable[Device]) -> frozenset[str]:
    return frozenset[str]().union(*(device.claims for device in devices))


def is_own(seen: Seen, own: Collection[str], claimed: Collection[str]) -> bool:
    """Whether the nodes that a device gave are claimed by no other device.

    ``own`` are the claims of the device, ``claimed`` those of all devices that are present.
    """
    paths = {*seen, *(node.path for node in seen.values() if isinstance(node, HostNode))}
    return all(node in own or node not in claimed for node in map("node:{}".format, paths))


def _node(path: str, root: Path) -> HostNode | None:
    try:
        return spec.host_node(path, root)
    except AllocationError:
        return None


def adds_up(parts: Sequence[ContainerEdits], whole: ContainerEdits) -> bool:
    """Whether a container that gets these parts one by one has the same as with ``whole``."""
    return spec.applied(parts) == spec.applied([whole])
