"""The kubelet's own record of claims: those for which it has still to call Unprepare.

The kubelet keeps it in ``dra_manager_state`` in its root directory (``pkg/kubelet/cm/dra``), the parent of
the directory with the drivers' sockets. A claim is in it from Prepare until its Unprepare has succeeded, also
while a pod that was force-deleted still ends: then neither the API server nor a list of pods names the claim.
The file is JSON:

* since Kubernetes 1.32 ``Data``, which is a text, and ``Checksum``, its CRC-32 (IEEE). The text is JSON with
  ``ClaimInfoStateList``, for a time ``Entries``: a list, or ``null``;
* before, ``entries`` beside ``version`` and a checksum over a dump of Go's data structures, which nothing
  else can compute.

Each entry has ``ClaimUID``. The kubelet replaces the file atomically. devhost only reads it, and does without
it: what is missing, damaged or too large names no claim and refuses nothing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from devhost.backend.errors import EnvironmentFailure
from devhost.backend.files import read_regular
from devhost.runtime.worker import FileWorker

NAME = "dra_manager_state"

MAX_BYTES = 16 << 20
"""A larger file is not read. A claim takes about 1 kB, and a node has some hundred."""


class KubeletClaims:
    """Reads the record, on a thread.

    ``plugins`` is the directory in which the kubelet calls drivers. It may be on a file system that hangs.
    """

    def __init__(self, plugins: Path) -> None:
        self._places = [directory / NAME for directory in (plugins.parent, plugins)]
        self._worker = FileWorker("kubelet's claims", "the kubelet's directory must be readable")

    async def uids(self) -> frozenset[str]:
        """The claims in the record; none if it cannot be used."""
        try:
            return await self._worker.file("read the kubelet's claims", _first, self._places)
        except EnvironmentFailure:
            return frozenset()


def _first(places: Sequence[Path]) -> frozenset[str]:
    """The claims in the first of these files that is a record. May block."""
    for path in places:
        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
            return recorded(read_regular(path, MAX_BYTES))
    return frozenset()


def recorded(data: bytes) -> frozenset[str]:
    """The uids in a record.

    Raises ``ValueError``, ``TypeError``, ``LookupError`` or ``RecursionError`` if it is damaged, or has
    another format.
    """
    found = json.loads(data)
    if "Data" not in found:
        return _uids(found["entries"])
    text = found["Data"]
    if not isinstance(text, str):
        raise TypeError("not text")
    if zlib.crc32(text.encode()) != found["Checksum"]:
        raise ValueError("wrong checksum")
    content: Mapping[str, Any] = json.loads(text)
    return _uids(content["ClaimInfoStateList"] if "ClaimInfoStateList" in content else content["Entries"])


def _uids(entries: Any) -> frozenset[str]:
    return frozenset(uid for entry in entries or () if isinstance(uid := entry["ClaimUID"], str))
