"""The image that `make image` leaves, and the tool that makes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from image.archive import Archive

from devhost import __version__

ROOT = Path(__file__).resolve().parents[2]
SWITCH = "DEVHOST_IMAGE"


@pytest.fixture(scope="session")
def archive() -> Archive:
    """The image of this version; the test skips where none has been made."""
    path = ROOT / "build" / "image" / f"devhost-{__version__}.oci.tar"
    if os.environ.get(SWITCH) != "1":
        if not path.exists():
            pytest.skip(f"there is no {path.relative_to(ROOT)}: run make image as root")
        if newest := [file.name for file in _recipe() if file.stat().st_mtime > path.stat().st_mtime]:
            pytest.skip(f"{path.name} is older than {newest[0]}: run make image as root")
    return Archive(path)


def _recipe() -> list[Path]:
    """What decides which files are in the image, sources aside."""
    deploy = [ROOT / "deploy" / "Dockerfile", *ROOT.glob("deploy/requirements*.txt")]
    return [*deploy, *ROOT.glob("plugins/*/pyproject.toml")]
