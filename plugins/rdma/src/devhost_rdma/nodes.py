"""The device nodes of RDMA devices: which exist, which are required, and the reason if one is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field

from devhost.backend.frozen import mutable
from devhost.backend.infiniband import CLASSES, Node, Role, node, owner, role_of
from devhost.backend.sysfs import Sysfs, natural

from .model import INFINIBAND, IbDevice

_ENTRY = re.compile(r"[\w-][\w.-]*")
"""Names of the devices of a class; other names could not be claimed."""


@mutable
class NodeTable:
    """The nodes of all RDMA devices. An entry is read again only if its inode changed."""

    sysfs: Sysfs
    _known: dict[str, tuple[int, Node]] = field(default_factory=dict)

    def refresh(self, settled: Collection[str]) -> Sequence[Node]:
        """Every node that exists now, unordered.

        Only the nodes of ``settled`` RDMA devices, unchanged since the last call, are not read again: a
        renamed device keeps its nodes, and another device may have its old name.
        """
        known = self._known
        fresh: dict[str, tuple[int, Node]] = {}
        for role, path, inode in _entries(self.sysfs):
            old = known.get(path)
            if old is not None and old[0] == inode and old[1].ib_device in settled:
                fresh[path] = old
            elif ib_device := owner(self.sysfs, path):
                fresh[path] = inode, node(self.sysfs, role, path, ib_device)
        self._known = fresh
        return [node for _, node in fresh.values()]


def read_nodes(sysfs: Sysfs, owners: Collection[str], parents: Set[str]) -> dict[str, list[Node]]:
    """The nodes of these RDMA devices as they are at this moment.

    ``parents`` are the names of their parent directories; nodes elsewhere are skipped.
    """
    return by_owner(
        node(sysfs, role, path, ib_device)
        for role, path, _ in _entries(sysfs)
        if not parents.isdisjoint(sysfs.link(path).split("/")[:-2])
        and (ib_device := owner(sysfs, path)) in owners
    )


def by_owner(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """The nodes of each RDMA device, in a stable order."""
    found: dict[str, list[Node]] = {}
    for one in nodes:
        found.setdefault(one.ib_device, []).append(one)
    for own in found.values():
        own.sort(key=lambda node: (node.role.word, len(node.path), node.path))
    return found


def _entries(sysfs: Sysfs) -> Iterator[tuple[Role, str, int]]:
    for name in CLASSES:
        for entry, inode in sysfs.identities(f"/sys/class/{name}").items():
            if _ENTRY.fullmatch(entry) and (role := role_of(name, entry)):
                yield role, f"/sys/class/{name}/{entry}", inode


def in_order(devices: Iterable[IbDevice], nodes: Mapping[str, Sequence[Node]]) -> list[IbDevice]:
    """The RDMA devices of one function, those that programs open first.

    The others are companions without verbs, such as the ``smi`` device of an XDR adapter, which only
    transports management datagrams.
    """

    def companion(device: IbDevice) -> bool:
        return all(node.role is not Role.UVERBS for node in nodes.get(device.name, ()))

    return sorted(devices, key=lambda device: (companion(device), natural(device.name)))


def required(main: IbDevice) -> Iterator[Role]:
    """The nodes that the function of ``main`` needs.

    Connections by address need a transport that the kernel's connection manager supports, so neither EFA nor
    usNIC. Programs on an InfiniBand port send datagrams to the subnet manager.
    """
    yield Role.UVERBS
    if main.transport in ("", "ib", "iwarp"):
        yield Role.RDMA_CM
    if any(port.link_layer == INFINIBAND for port in main.ports):
        yield Role.UMAD


def missing_node_reason(main: IbDevice, nodes: Sequence[Node], rdma_cm: str | None, sysfs: Sysfs) -> str:
    """The reason if a node is missing that the function of ``main``, with these nodes, needs; else empty."""
    for role in required(main):
        if role is Role.RDMA_CM:
            paths = [rdma_cm] if rdma_cm else []
        else:
            paths = [node.path for node in nodes if node.role is role]
        if not paths:
            return f"{role.word} is missing (is module {role.module} loaded?)"
        for path in paths:
            if not os.path.exists(sysfs.prefix + path):  # noqa: PTH110 - any error means "no"
                return f"{path} is missing (is udev running, is /dev mounted?)"
    return ""
