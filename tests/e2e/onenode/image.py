"""The only image of the cluster, made from a static busybox without a registry or builder."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

NAME = "local.test/busybox:1"
APPLETS = ("sh", "cat", "dd", "env", "id", "ls", "mknod", "sleep", "stat", "test", "true", "wc")
FOLDERS = ("bin", "dev", "etc", "proc", "sys", "tmp")
PAUSE = ["/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait $!; done"]
"""A container of it waits for a signal to end. It is also the pods' sandbox."""


def write(busybox: Path, target: Path) -> None:
    """Writes the image as an OCI archive."""
    layer = _layer(busybox)
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(data),
        }

    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": PAUSE},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(gzip.compress(layer, mtime=0), "layer.v1.tar+gzip")],
    }
    described = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    described["annotations"] = {"io.containerd.image.name": NAME}
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [described]}).encode()
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    with tarfile.open(target, "w") as archive:
        for name, data in sorted(blobs.items()):
            _add(archive, name, data=data, mode=0o644)


def _layer(busybox: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for folder in FOLDERS:
            _add(archive, folder, tarfile.DIRTYPE)
        _add(archive, "bin/busybox", data=busybox.read_bytes())
        for applet in APPLETS:
            _add(archive, f"bin/{applet}", tarfile.SYMTYPE, link="busybox")
    return out.getvalue()


def _add(
    archive: tarfile.TarFile,
    name: str,
    kind: bytes = tarfile.REGTYPE,
    *,
    data: bytes = b"",
    link: str = "",
    mode: int = 0o755,
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode, entry.size = kind, link, mode, len(data)
    archive.addfile(entry, io.BytesIO(data))


def rename(archive: Path, target: Path, *names: str) -> None:
    """Copies the OCI archive of an image, so that it is imported only under these names."""
    with tarfile.open(archive) as old, tarfile.open(target, "w") as new:
        for entry in old:
            data = old.extractfile(entry)
            if entry.name == "index.json" and data is not None:
                index = json.load(data)
                (described,) = index["manifests"]
                index["manifests"] = [
                    {**described, "annotations": {"io.containerd.image.name": name}} for name in names
                ]
                _add(new, entry.name, data=json.dumps(index).encode(), mode=0o644)
            else:
                new.addfile(entry, data)
