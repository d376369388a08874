"""Builds reproducible wheels and source archives of the host and of every package in plugins/."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import checkout
from running import Failed, run

SUMS = "SHA256SUMS"

LOCK = checkout.ROOT / "deploy" / "requirements-build.txt"
"""The build backend with exact versions and hashes: others may write a different wheel from the same
sources."""

INSTALL_LIMIT = 600.0
BUILD_LIMIT = 120.0


def backend(directory: Path) -> Path:
    """The Python of an environment below ``directory`` with only the build backend.

    Raises:
        Unavailable: the index does not answer.
        Failed: it cannot be created.
    """
    environment, record = directory / "backend", directory / "backend" / "made-of"
    wanted = f"{sys.version} {hashlib.sha256(LOCK.read_bytes()).hexdigest()}"
    if not record.exists() or record.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(environment, ignore_errors=True)
        run([sys.executable, "-m", "venv", environment], limit=INSTALL_LIMIT)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run(
            [*pip, "install", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)],
            limit=INSTALL_LIMIT,
        )
        record.write_text(wanted, encoding="utf-8")
    return environment / "bin" / "python"


def build(python: Path, package: Path, into: Path, kinds: Sequence[str] = ("sdist", "wheel")) -> None:
    """Builds one package.

    Raises:
        Failed: it does not build.
    """
    run(
        [python, "-m", "hatchling", "build", *(f"--target={kind}" for kind in kinds), f"--directory={into}"],
        limit=BUILD_LIMIT,
        directory=package,
        environment={**os.environ, "SOURCE_DATE_EPOCH": str(checkout.epoch())},
    )


def rebuild(python: Path, archives: Path, work: Path) -> None:
    """Rebuilds everything from the source archives, and compares.

    Raises:
        Failed: a source archive is incomplete, or the result differs.
    """
    again, sources = work / "again", work / "sources"
    sources.mkdir()
    for archive in sorted(archives.glob("*.tar.gz")):
        run(["tar", "-xf", archive, "-C", sources], limit=BUILD_LIMIT)
        build(python, sources / archive.name.removesuffix(".tar.gz"), again)
    for file in distributions(archives):
        other = again / file.name
        if not other.exists() or other.read_bytes() != file.read_bytes():
            raise Failed(f"{file.name} differs when it is built from the source archive")


def distributions(directory: Path) -> list[Path]:
    """The wheels and source archives in a directory, by name."""
    return sorted([*directory.glob("*.whl"), *directory.glob("*.tar.gz")])


def write_sums(directory: Path) -> None:
    """Writes a file for ``sha256sum --check``."""
    lines = (
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in distributions(directory)
    )
    (directory / SUMS).write_text("".join(lines), encoding="ascii")
