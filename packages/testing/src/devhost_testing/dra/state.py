"""The kubelet's own record of the claims for which it has still to call Unprepare."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

NAME = "dra_manager_state"


class DraState:
    """The record in a kubelet's root directory, as a kubelet 1.34 or newer writes it.

    A claim whose pod was force-deleted is in it, and in nothing else, until the pod's containers have ended.
    ``root`` is the parent of the directory with the drivers' sockets.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / NAME

    def write(self, *uids: str) -> Path:
        """Makes the record have exactly these claims, atomically; gives its path."""
        entries = [
            {"ClaimUID": uid, "ClaimName": "", "Namespace": "", "PodUIDs": {}, "DriverState": {}}
            for uid in uids
        ]
        text = json.dumps(
            {
                "kind": "DRACheckpoint",
                "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
                "ClaimInfoStateList": entries,
            }
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f".{NAME}.new")
        new.write_text(json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}))
        return new.replace(self.path)
