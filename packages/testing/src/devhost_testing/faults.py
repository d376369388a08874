"""Damages a tree of files, lists it in another order, and detects writes to it, for the contract."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import gcd
from pathlib import Path
from typing import Any
from unittest import mock

MOST_VICTIMS = 150
"""The maximum number of files that are damaged, one after another; in a larger tree they are evenly
spread."""

SAMPLE = 120
"""The maximum number of cases of damage in the sample."""

DAMAGES: Mapping[str, Callable[[Path], object]] = {
    "holds garbage": lambda path: path.write_bytes(b"\xff\xfe\0=\n" * 50),
    "is empty": lambda path: path.write_bytes(b""),
    "holds an absurd number": lambda path: path.write_text("9" * 5000),
    "is a directory": lambda path: path.mkdir(),
    "is a link to itself": lambda path: path.symlink_to(path.name),
    "is gone": lambda path: None,
}
"""Kinds of damage to a file, and how to cause them. Not even root can read a directory as a file."""


def victims(root: Path) -> Sequence[Path]:
    """Files and links below ``root`` to damage."""
    leaves = []
    for directory, names, files in os.walk(root):
        leaves += [Path(directory, name) for name in files]
        leaves += [Path(directory, name) for name in names if Path(directory, name).is_symlink()]
    return sorted(leaves)[:: -(-len(leaves) // MOST_VICTIMS) or 1]


def cases(root: Path) -> tuple[Sequence[tuple[Path, str]], Sequence[tuple[Path, str]]]:
    """Each victim with each damage: a sample of at most :data:`SAMPLE` cases, and the others.

    The sample has every kind of damage and files from the whole tree; of a small tree it has all cases.
    """
    every = [(path, what) for path in victims(root) for what in DAMAGES]
    step = -(-len(every) // SAMPLE) or 1
    while gcd(step, len(DAMAGES)) > 1:  # otherwise each file would get the same kinds
        step += 1
    return every[::step], [case for number, case in enumerate(every) if number % step]


@contextmanager
def damaged(path: Path, what: str, kept: Path) -> Iterator[None]:
    """Applies one of :data:`DAMAGES` to a file and reverts it; the file is at ``kept`` meanwhile."""
    path.rename(kept)
    try:
        DAMAGES[what](path)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        kept.rename(path)


def contents(root: Path) -> dict[str, object]:
    """Every path below ``root`` with values that change when it is written to."""
    found: dict[str, object] = {}
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(directory, name)
            status = path.lstat()
            text = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path.relative_to(root))] = (status.st_mode, status.st_mtime_ns, text)
    return found


class _Entries(list[Any]):
    """The result of :func:`os.scandir`: an iterator that can be closed, and a context manager."""

    def __next__(self) -> Any:
        if not self:
            raise StopIteration
        return self.pop(0)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_error: object) -> None:
        self.clear()

    def close(self) -> None:
        self.clear()


@contextmanager
def listing(*, backwards: bool) -> Iterator[None]:
    """Makes Python list every directory in the order of names, or in reverse order."""
    listdir, scandir = os.listdir, os.scandir

    def listed(path: Any = ".") -> list[Any]:
        return sorted(listdir(path), reverse=backwards)

    def scanned(path: Any = ".") -> _Entries:
        with scandir(path) as entries:
            return _Entries(sorted(entries, key=lambda entry: entry.name, reverse=backwards))

    with ExitStack() as patched:
        patched.enter_context(mock.patch.object(os, "listdir", listed))
        patched.enter_context(mock.patch.object(os, "scandir", scanned))
        for kind in vars(glob).values():
            # glob in Python 3.13 keeps a reference to the function
            if isinstance(kind, type) and getattr(kind, "scandir", None) is scandir:
                patched.enter_context(mock.patch.object(kind, "scandir", staticmethod(scanned)))
        yield
