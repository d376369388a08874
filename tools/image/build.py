"""Builds the image with buildah in a temporary store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import checkout
from running import Failed, run

from . import access
from .base import MARKED
from .telling import say

IMPORTED = "localhost/devhost-base:latest"
"""The name of the base in the store."""

LIMIT = 1200.0
STEP_LIMIT = 300.0


class Builder:
    """buildah, without a daemon, which writes only below one directory.

    Args:
        work: an empty directory, in a mount namespace that ends with the run, because the storage driver
            mounts there.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        (work / "tmp").mkdir()
        self._driver = self._working_driver()

    def import_base(self, tar: Path) -> str:
        """Makes an image from a file tree, and returns its name."""
        container = self._buildah("from", "scratch")
        self._buildah("add", "--quiet", container, str(tar), "/")
        self._buildah("commit", "--quiet", f"--timestamp={MARKED}", container, IMPORTED)
        self._buildah("rm", container)
        return IMPORTED

    def build(self, base: str, archive: Path) -> None:
        """Builds ``deploy/Dockerfile`` on a base, and puts the image into an OCI archive.

        Raises:
            Unavailable: a mirror, an index or a registry does not answer.
            Failed: it does not build.
        """
        name, epoch = f"devhost:{checkout.version()}", checkout.epoch()
        say(f"building {name} with the storage driver {self._driver}")
        arguments = {
            "BASE": base,
            "REVISION": checkout.revision(),
            "SOURCE_DATE_EPOCH": str(epoch),
            "VERSION": checkout.version(),
        }
        self._buildah(
            "build",
            "--isolation=chroot",  # this needs no runtime, and works in containers that allow mounts
            "--layers=false",
            "--identity-label=false",
            "--format=oci",
            f"--timestamp={epoch}",
            *access.secrets(self._work / "secrets"),
            *(f"--build-arg={key}={value}" for key, value in arguments.items()),
            f"--file={checkout.ROOT / 'deploy' / 'Dockerfile'}",
            f"--tag={name}",
            str(checkout.ROOT),
            limit=LIMIT,
        )
        archive.parent.mkdir(parents=True, exist_ok=True)
        new = archive.with_name(f"{archive.name}.new")
        new.unlink(missing_ok=True)
        self._buildah("push", "--quiet", "--format=oci", name, f"oci-archive:{new}:{name}")
        new.replace(archive)

    def unpack(self, archive: Path) -> Path:
        """The files of an archived image, in a directory mounted below the work directory."""
        container = self._buildah("from", "--pull-never", f"oci-archive:{archive}")
        return Path(self._buildah("mount", container))

    def _working_driver(self) -> str:
        """The storage driver: overlay is fast, but cannot be nested, so a container may need vfs."""
        reasons = []
        for self._driver in ("overlay", "vfs"):
            try:
                self._buildah("from", "scratch")
            except Failed as error:
                reasons.append(f"{self._driver}: {str(error).splitlines()[-1]}")
            else:
                return self._driver
        raise Failed(f"buildah has no usable storage driver in {self._work}: {'; '.join(reasons)}")

    def _buildah(self, *arguments: str, limit: float = STEP_LIMIT) -> str:
        stores: Sequence[str] = (
            f"--root={self._work / 'store' / self._driver}",
            f"--runroot={self._work / 'run' / self._driver}",
            f"--storage-driver={self._driver}",
        )
        environment = {**os.environ, "TMPDIR": str(self._work / "tmp")}
        return run(["buildah", *stores, *arguments], limit=limit, environment=environment).strip()
