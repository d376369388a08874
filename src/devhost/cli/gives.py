"""What the entries of ``devhost explain`` give a container with one device, by their key ``give``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from devhost.allocation.give import given
from devhost.backend.errors import AllocationError, printable
from devhost.backend.model import Device, DeviceNode, Edits, Mount
from devhost.planning.plan import PlannedResource


class Gives:
    """What a resource gives a container with one device besides what the backend gives.

    ``exists`` is whether the host has a path.
    """

    def __init__(self, planned: PlannedResource, device: Device, exists: Callable[[str], bool]) -> None:
        self._exists = exists
        self._edits = Edits()
        self._refusal = ""
        try:
            self._edits = given(planned.entry.give, [device], planned.name, len(planned.offers))
        except AllocationError as error:
            self._refusal = error.message

    def lines(self) -> Iterator[str]:
        """One line for each thing, without characters that do not print."""
        if self._refusal:
            yield printable(f"refused: {self._refusal}")
        for node in self._edits.nodes:
            yield printable(f"{_place(node.path, node.container_path)}{self._remark(node, node.path)}")
        for mount in self._edits.mounts:
            access = "read-only" if mount.read_only else "read-write"
            remark = self._remark(mount, mount.host_path)
            yield printable(f"{_place(mount.host_path, mount.container_path)} {access}{remark}")
        for pairs in (self._edits.env, self._edits.annotations):
            yield from (printable(f"{name}={value}") for name, value in pairs.items())
        yield from map(printable, self._edits.cdi_devices)

    def document(self) -> dict[str, Any]:
        """The same in the terms of JSON."""
        return {
            "refused": self._refusal,
            "nodes": [
                {
                    "path": node.path,
                    "containerPath": node.container_path or node.path,
                    "permissions": node.permissions,
                    "optional": not node.required,
                    "exists": self._exists(node.path),
                }
                for node in self._edits.nodes
            ],
            "mounts": [
                {
                    "path": mount.host_path,
                    "containerPath": mount.container_path,
                    "readOnly": mount.read_only,
                    "optional": not mount.required,
                    "exists": self._exists(mount.host_path),
                }
                for mount in self._edits.mounts
            ],
            "env": dict(self._edits.env),
            "annotations": dict(self._edits.annotations),
            "cdiDevices": list(self._edits.cdi_devices),
        }

    def _remark(self, thing: DeviceNode | Mount, path: str) -> str:
        if self._exists(path):
            return ""
        return f" ({'does not exist' if thing.required else 'omitted, as it does not exist'})"


def _place(host: str, container: str) -> str:
    return host if container in ("", host) else f"{host} at {container}"
