"""Builds ``build/image/devhost-VERSION.oci.tar`` and tests it.

    PYTHONPATH=tools python -m image

BASE names the base image with its registry; without it one is made from Debian packages. FRESH=1 rebuilds
everything. The exit code is 77 if this machine or its network lacks a requirement, and 1 after an error.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import checkout
from running import UNAVAILABLE, Failed, Unavailable, leave_on_sigterm

from . import base, machine, memory
from .archive import Archive
from .build import Builder
from .contents import table
from .proof import prove
from .telling import say

INSIDE = "DEVHOST_IMAGE_INSIDE"
"""Set in the mount namespace in which this program restarts itself."""

INPUTS = (
    ".dockerignore",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "config/devhost.yaml",
    "deploy/Dockerfile",
)
TREES = ("src", "plugins/*/src", "tools/image")


def archive_path() -> Path:
    """The path of the image."""
    return checkout.ROOT / "build" / "image" / f"devhost-{checkout.version()}.oci.tar"


def fingerprint(parent: str) -> str:
    """A digest of all inputs of the image and of the tools that build it.

    Args:
        parent: the base.
    """
    root = checkout.ROOT
    files = [root / name for name in INPUTS]
    files += [
        *root.glob("deploy/requirements*.txt"),
        *root.glob("plugins/*/[!.]*.*"),
        *root.glob("plugins/*/LICENSE"),
    ]
    files += [file for tree in TREES for directory in root.glob(tree) for file in directory.rglob("*")]
    digest = hashlib.sha256(f"{parent}\n{checkout.epoch()}\n{checkout.revision()}\n".encode())
    for file in sorted(file for file in files if file.is_file() and "__pycache__" not in file.parts):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(root)} {content}\n".encode())
    return digest.hexdigest()


def make(work: Path, named: str, *, fresh: bool) -> None:
    """Builds the image unless an up-to-date one exists, and tests it."""
    archive, record = archive_path(), archive_path().with_suffix(".inputs")
    tar = None if named else base.make(work, fresh=fresh)
    wanted = fingerprint(named if tar is None else hashlib.sha256(tar.read_bytes()).hexdigest())
    known = record.read_text(encoding="ascii").strip() if record.exists() and archive.exists() else ""
    builder = Builder(work / "buildah")
    is_known = known == wanted and not fresh
    if is_known:
        say("up to date, its inputs have not changed")
    else:
        record.unlink(missing_ok=True)
        builder.build(named if tar is None else builder.import_base(tar), archive)
    image = Archive(archive)
    root = builder.unpack(archive)
    prove(root, image)
    if not is_known:
        memory.measure(root, image)
    record.write_text(f"{wanted}\n", encoding="ascii")
    for line in table(image):
        say(line)


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory for this run only, which is removed afterwards.

    Raises:
        Failed: another run is using it.
    """
    cache = machine.cache()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"another run is using {cache}") from None
        work = cache / "work"
        shutil.rmtree(work, ignore_errors=True)  # left by a run that was killed
        stores = work / "buildah"
        stores.mkdir(parents=True)
        subprocess.run(["mount", "--bind", stores, stores], check=True, timeout=60)
        try:
            yield work
        finally:
            # with everything that the storage driver mounted in it
            subprocess.run(["umount", "--recursive", "--lazy", stores], check=True, timeout=60)
            shutil.rmtree(work)


def go_inside() -> NoReturn:
    """Restarts in a separate mount namespace, so that nothing stays mounted after any kind of end."""
    command = ["unshare", "--mount", "--propagation=private", sys.executable, "-m", "image"]
    os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})


def main() -> int:
    """The exit code."""
    leave_on_sigterm()
    began, named = time.monotonic(), os.environ.get("BASE", "")
    try:
        if os.environ.get(INSIDE) != "1":
            machine.require(own_base=not named)
            go_inside()
        with workplace() as work:
            make(work, named, fresh=os.environ.get("FRESH") == "1")
    except Unavailable as error:
        say(f"skipped: no image can be built on this machine: {error}")
        return UNAVAILABLE
    except Failed as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    say(f"{archive_path().relative_to(checkout.ROOT)} after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
