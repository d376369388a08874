"""The kubelet's checkpoint: what its containers were given through device plugins.

The kubelet keeps the answer of each Allocate in ``kubelet_internal_checkpoint`` beside the plugins' sockets,
and repeats it whenever a container starts (``pkg/kubelet/cm/devicemanager/checkpoint``). The file is JSON:

* ``Data.PodDeviceEntries``, a list or ``null``; each entry has ``PodUID``, ``ContainerName``,
  ``ResourceName``, ``DeviceIDs`` and ``AllocResp``;
* ``DeviceIDs`` has lists by NUMA node; up to Kubernetes 1.19 it was one list, which kubelets up to 1.26 still
  read;
* ``AllocResp`` is a serialized ``ContainerAllocateResponse`` in base64, or ``null``;
* beside ``Data`` a checksum over a dump of Go's data structures, which nothing else can compute, and in newer
  kubelets the id of the boot.

The kubelet replaces the file atomically. It has entries of pods that have ended, until the next admission.
devhost only reads it, and does without it.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from devhost.allocation.given import Gift, Node, Token, may_be_node
from devhost.backend.errors import DevhostError
from devhost.backend.files import read_regular

from .api.api_pb2 import ContainerAllocateResponse

MAX_BYTES = 16 << 20
"""A larger file is not read: reading would hold up the event loop. Most have a few kB."""

Signature = tuple[int, int, int]
"""Differs once the file has been replaced."""


class Unusable(DevhostError):
    """The checkpoint cannot be used; the message is the reason."""


def signature(path: Path) -> Signature | None:
    """Identifies the content; ``None`` if there is no file. May block."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read(path: Path) -> dict[Token, list[Gift]]:
    """What containers were given by each token; nothing if there is no file. Raises ``Unusable``. May block.

    A gift has the paths of nodes, given or mounted, or CDI names if there are no paths.
    """
    try:
        data = read_regular(path, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise Unusable(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise Unusable(str(error)) from None
    try:
        return _gifts(json.loads(data)["Data"]["PodDeviceEntries"] or ())
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, DecodeError):
        raise Unusable(f"{path} is not a kubelet's checkpoint, or damaged") from None


def _gifts(entries: Any) -> dict[Token, list[Gift]]:
    found: dict[Token, list[Gift]] = {}
    for entry in entries:
        ids = entry["DeviceIDs"] or ()
        lists = ids.values() if isinstance(ids, dict) else (ids,)
        answer = ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"] or ""))
        paths = [device.host_path for device in answer.devices]
        paths += [mount.host_path for mount in answer.mounts if may_be_node(mount.host_path)]
        names = () if paths else (device.name for device in answer.cdi_devices)
        gift = Gift(tuple(map(Node, paths)), frozenset(names), _text(entry["ContainerName"]))
        resource = _text(entry["ResourceName"])
        for token in (token for some in lists for token in some or ()):
            found.setdefault((resource, _text(token)), []).append(gift)
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value
