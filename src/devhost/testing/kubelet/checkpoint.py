"""The file in which a kubelet remembers resources and allocations over a restart.

It has the kubelet's file name and meaning but a format of its own: the kubelet's carries a checksum
over Go data structures, and no plugin may read either.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from devhost.backend.errors import EnvironmentFailure
from devhost.kubelet.api.api_pb2 import ContainerAllocateResponse

_WRITER = "devhost kubelet simulator"


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices of one resource that one container of a pod has, with the plugin's answer for them.

    ``listed`` is whether podresources names them: not those of init containers that end.
    """

    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    response: ContainerAllocateResponse
    listed: bool = True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What survives: the names of known resources and every allocation of a pod that is not over."""

    resources: tuple[str, ...] = ()
    allocations: tuple[Allocation, ...] = ()


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint; a missing or damaged one counts as empty, as it does for a kubelet.

    Raises:
        EnvironmentFailure: the file is a real kubelet's, which would be lost.
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
        return Checkpoint(tuple(map(str, content["resources"])), tuple(map(_allocation, content["pods"])))
    except (KeyError, TypeError, ValueError, DecodeError):
        return Checkpoint()


def save(path: Path, resources: Iterable[str], allocations: Iterable[Allocation]) -> None:
    """Writes a checkpoint beside ``path`` and renames it into place, as the kubelet does.

    Raises:
        OSError: the directory does not allow it.
    """
    content = {
        "writer": _WRITER,
        "resources": sorted(resources),
        "pods": [
            {
                "pod": allocation.pod,
                "container": allocation.container,
                "resource": allocation.resource,
                "deviceIDs": allocation.device_ids,
                "response": base64.b64encode(allocation.response.SerializeToString()).decode(),
                "listed": allocation.listed,
            }
            for allocation in allocations
        ],
    }
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(content))
    draft.replace(path)


def _allocation(entry: dict[str, object]) -> Allocation:
    device_ids = entry["deviceIDs"]
    if not isinstance(device_ids, list):
        raise TypeError("deviceIDs is not a list")
    return Allocation(
        str(entry["pod"]),
        str(entry["container"]),
        str(entry["resource"]),
        tuple(map(str, device_ids)),
        ContainerAllocateResponse.FromString(base64.b64decode(str(entry["response"]))),
        bool(entry["listed"]),
    )
