"""The recording as a whole: look, copy, rehearse, describe, and only then put the tree where it belongs."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.backend.sysfs import OWN_MOUNTS
from devhost.config.loader import Loaded
from devhost.host.scan_once import ScanResult, scan_once

from .area import Bounds
from .capture import Capture
from .difference import differences
from .manifest import CONFIGURATION, MANIFEST, Recording
from .trace import Look, of_python, tracing
from .writer import Kind, Writer

_NEW = "give the name of a new directory"

_HINTS = {
    errno.EACCES: "choose a directory that you may write to",
    errno.EPERM: "choose a directory that you may write to",
    errno.EROFS: "choose a directory that you may write to",
    errno.ENOTEMPTY: "something else wrote there meanwhile",
}
"""How to mend it, where it is not a lack of room."""

REHEARSALS = 5
"""Looks at the tree at most. Each fetches what the one before did not get far enough to miss."""


def record(
    loaded: Loaded,
    directory: Path,
    root: Path,
    configuration: Path | None = None,
    bounds: Bounds | None = None,
) -> Recording:
    """Records what the backends of a configuration read of the machine below ``root``.

    Args:
        loaded: the configuration with its backends; see :func:`devhost.config.loader.load_or_everything`.
        directory: where the tree is to be: a new directory in one that exists, or an empty one.
        root: directory that stands for ``/``.
        configuration: the file ``loaded`` comes from, if any; it is copied into the tree.
        bounds: how large the tree may become.

    Raises:
        UsageError: ``directory`` is neither new nor empty, or there is none to make it in.
        EnvironmentFailure: the tree cannot be written.
    """
    end = _destination(directory)
    with _becoming(end) as tree:
        writer = Writer(tree, bounds or Bounds())
        capture = Capture(root, writer)
        machine = shown = _look(loaded, root, capture, f"it is not below {root}")
        for _ in range(REHEARSALS):
            revision = writer.revision
            shown = _look(loaded, tree, capture, "it is read of this machine, whatever --root says")
            if writer.revision == revision:
                break
        made = Recording(
            directory=end,
            root=root,
            configuration=configuration,
            loaded=loaded,
            machine=machine,
            files=writer.count(Kind.FILE, Kind.NAME),
            links=writer.count(Kind.LINK),
            bytes=writer.bytes,
            nodes=capture.nodes,
            omissions=capture.omissions,
            differences=tuple(differences(machine, shown)),
            full=capture.full,
        )
        (tree / MANIFEST).write_text(made.as_json(), encoding="utf-8")
        if configuration is not None:
            shutil.copyfile(configuration, tree / CONFIGURATION)
    return made


def _look(loaded: Loaded, root: Path, capture: Capture, beside: str) -> ScanResult:
    """Lets the backends look below ``root``, and takes up whatever they looked at.

    Args:
        beside: why something is left out that they read and that is not below ``root``.
    """
    with tracing() as trace:
        found = asyncio.run(scan_once(loaded, root, everything=True))
    backends = {f"{name}-{call}": name for name in found.scanners for call in ("discover", "probe")}
    # as backends may spell it: with its links resolved, and as it was given
    prefixes = [os.path.realpath(root), str(root if root.is_absolute() else Path.cwd() / root)]
    for thread, backend in backends.items():
        last = trace.last.get(thread)
        hung = thread in found.scanners[backend].runner.hung_threads
        stuck = _below(prefixes, last) if last and hung else None
        if stuck is not None:
            capture.avoid(stuck, backend)
    for (look, path), thread in list(trace.looks.items()):
        place, backend = _below(prefixes, path), backends.get(thread, "")
        if place is not None:
            capture.take(look, place, backend)
        elif look is not Look.ASKED and path != OWN_MOUNTS and not of_python(path):
            capture.omit(path, beside, backend)
    return found


def _below(prefixes: list[str], path: str) -> str | None:
    """A path as seen from the root, which has these ``prefixes``; ``None`` when it is not below it."""
    for prefix in [prefix.rstrip("/") for prefix in prefixes]:
        if path == prefix or path.startswith(f"{prefix}/"):
            return path[len(prefix) :] or "/"
    return None


def _destination(directory: Path) -> Path:
    """Where the tree will be, if it can be there."""
    try:
        end = Path(os.path.realpath(directory))
        if not end.parent.is_dir():
            raise UsageError(f"{end.parent} is no directory", "make it first")
        if end.exists() and not end.is_dir():
            raise UsageError(f"{directory} is no directory", _NEW)
        if end.exists() and any(end.iterdir()):
            raise UsageError(f"{directory} is not empty", _NEW)
    except OSError as error:
        raise _cannot_write(directory, error) from error
    return end


@contextmanager
def _becoming(end: Path) -> Iterator[Path]:
    """A directory to write into, whose content is that of ``end`` when all went well, and else vanishes.

    An ``end`` that is there stays what it is, with its owner and its mode: it may be somebody's private
    directory, or a volume's, which cannot be replaced.
    """
    there = end.exists()
    mode = 0o777 & ~_umask()
    try:
        made = Path(tempfile.mkdtemp(prefix=".devhost-record-", dir=end if there else end.parent))
    except OSError as error:
        raise _cannot_write(end, error) from error
    try:
        yield made
        if there:
            _move(made, end)
        else:
            made.chmod(mode)
            made.rename(end)  # over an empty directory too (rename(2))
    except OSError as error:
        raise _cannot_write(end, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _move(made: Path, end: Path) -> None:
    """Puts what is in ``made`` into ``end``, wherein it lies alone; where that fails, nothing of it."""
    if [*end.iterdir()] != [made]:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    moved: list[str] = []
    try:
        for entry in sorted(made.iterdir()):
            entry.rename(end / entry.name)
            moved.append(entry.name)
    except BaseException:
        for name in moved:
            (end / name).rename(made / name)
        raise


def _umask() -> int:
    """The process's own; it can only be asked for by setting it (umask(2))."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _cannot_write(path: Path, error: OSError) -> EnvironmentFailure:
    hint = _HINTS.get(error.errno or 0, "choose a directory on a file system with some room")
    return EnvironmentFailure(f"cannot write {path}: {error.strerror or error}", hint)
