"""The file in which a kubelet stores resources and allocations across a restart.

It has the name, the meaning and the format of the kubelet's file, but no checksum, which is over a dump of Go
data structures; a kubelet would not accept it. It names its writer.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from devhost.backend.errors import EnvironmentFailure
from devhost.kubelet.api.api_pb2 import ContainerAllocateResponse

_WRITER = "devhost kubelet simulator"


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices of a resource that a container of a pod holds, with the plugin's answer for them.

    ``listed`` is whether podresources lists them; it does not for init containers that end.
    """

    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    response: ContainerAllocateResponse
    listed: bool = True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content: the names of known resources, and the allocations of pods that have not ended."""

    resources: tuple[str, ...] = ()
    allocations: tuple[Allocation, ...] = ()


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint; a missing or damaged one counts as empty, as for a kubelet.

    Raises ``EnvironmentFailure`` if the file belongs to a real kubelet, and would be lost.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return Checkpoint()
    if isinstance(content, dict) and "Checksum" in content:
        raise EnvironmentFailure(
            f"{path} belongs to a real kubelet, and simulating one here would overwrite it",
            "use an empty directory",
        )
    try:
        if content["writer"] != _WRITER:
            return Checkpoint()
        data = content["Data"]
        return Checkpoint(tuple(data["RegisteredDevices"]), tuple(map(_allocation, data["PodDeviceEntries"])))
    except (KeyError, TypeError, ValueError, AttributeError, DecodeError):
        return Checkpoint()


def save(path: Path, resources: Iterable[str], allocations: Iterable[Allocation]) -> None:
    """Writes a checkpoint next to ``path`` and renames it, like the kubelet."""
    content = {
        "Data": {
            "PodDeviceEntries": [
                {
                    "PodUID": allocation.pod,
                    "ContainerName": allocation.container,
                    "ResourceName": allocation.resource,
                    "DeviceIDs": {"-1": allocation.device_ids},
                    "AllocResp": base64.b64encode(allocation.response.SerializeToString()).decode(),
                    "listed": allocation.listed,
                }
                for allocation in allocations
            ],
            "RegisteredDevices": {name: [] for name in sorted(resources)},
        },
        "writer": _WRITER,
    }
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(content))
    draft.replace(path)


def _allocation(entry: dict[str, Any]) -> Allocation:
    return Allocation(
        str(entry["PodUID"]),
        str(entry["ContainerName"]),
        str(entry["ResourceName"]),
        tuple(str(token) for tokens in entry["DeviceIDs"].values() for token in tokens),
        ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"])),
        bool(entry["listed"]),
    )
