"""What the machine is made of, kept between runs: each part is made again only when its recipe changes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOM = 3 << 30
"""Bytes that must be free before anything is made: the parts take 1 GiB, making them another for a while."""


class CannotMake(Exception):
    """Which part cannot be had, and why; one line, and perhaps the end of a log."""


class Unavailable(CannotMake):
    """The same, where the reason is this computer or its network and not the recipe."""


@dataclass(frozen=True, slots=True)
class Part:
    """A finished part."""

    path: Path
    fingerprint: str
    """Of its recipe, and of every part that it was made of."""

    @property
    def versions(self) -> dict[str, str]:
        """Versions of what was downloaded for it, by name."""
        file = self.path / "versions"
        lines = file.read_text().splitlines() if file.exists() else []
        return dict(sorted(tuple(line.split("\t", 1)) for line in lines))  # type: ignore[misc]


def cache() -> Path:
    """Where parts, logs and the running machine's files lie; outside the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "devhost-vm"


@contextmanager
def alone() -> Iterator[None]:
    """One user of the cache at a time.

    Raises:
        CannotMake: another one is at work.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CannotMake(f"process {lock.read().strip() or '?'} uses {cache()} already") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


class Store:
    """The parts below a directory.

    Args:
        say: is told what is being made.
    """

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        (directory / "log").mkdir(parents=True, exist_ok=True)

    def part(self, name: str, make: Callable[[Path, Path], None], *ingredients: str | Path | Part) -> Part:
        """A part, made if there is none yet of exactly these ingredients.

        Args:
            make: fills the directory it is given; the second argument is the file for its log.
            ingredients: everything the result depends on. A path stands for the file's content.

        Raises:
            Unavailable: there is too little room for it.
            CannotMake: it cannot be had.
        """
        fingerprint = _fingerprint(ingredients)
        part = Part(self._directory / name, fingerprint)
        stamp = self._directory / f"{name}.made"
        if part.path.exists() and stamp.exists() and stamp.read_text() == fingerprint:
            return part
        free = shutil.disk_usage(self._directory).free
        if free < ROOM:
            raise Unavailable(
                f"{self._directory} has {free >> 20} MiB left, {ROOM >> 20} are needed: "
                "free some, or set XDG_CACHE_HOME"
            )
        self._say(f"making {name}")
        began = time.monotonic()
        new = self._directory / f"{name}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        log = self._directory / "log" / f"{name}.log"
        log.unlink(missing_ok=True)
        make(new, log)
        stamp.unlink(missing_ok=True)
        shutil.rmtree(part.path, ignore_errors=True)
        new.rename(part.path)
        stamp.write_text(fingerprint)
        self._say(f"made {name} in {time.monotonic() - began:.0f} s")
        if part.versions:
            versions = ", ".join(f"{one} {version}" for one, version in part.versions.items())
            self._say(f"downloaded for it: {versions}")
        return part


def _fingerprint(ingredients: tuple[str | Path | Part, ...]) -> str:
    total = hashlib.sha256()
    for ingredient in ingredients:
        if isinstance(ingredient, Part):
            content = ingredient.fingerprint.encode()
        elif isinstance(ingredient, Path):
            content = ingredient.read_bytes()
        else:
            content = ingredient.encode()
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()
