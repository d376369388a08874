"""The recording as a whole: look, copy, rehearse, describe, and only then put the tree where it belongs."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devhost.errors import EnvironmentFailure, UsageError
from devhost.loading import Loaded
from devhost.survey import Survey, survey

from .capture import Capture
from .difference import differences
from .manifest import CONFIGURATION, MANIFEST, Recording
from .trace import Look, of_python, tracing
from .writer import Kind, Writer

_NEW = "give the name of a new directory"

REHEARSALS = 5
"""Looks at the tree at most. Each fetches what the one before did not get far enough to miss."""


def record(loaded: Loaded, directory: Path, root: Path, configuration: Path | None = None) -> Recording:
    """Records what the backends of a configuration read of the machine below ``root``.

    Args:
        loaded: the configuration with its backends; see :func:`devhost.loading.load_or_everything`.
        directory: where the tree is to be: a new directory in one that exists, or an empty one.
        root: directory that stands for ``/``.
        configuration: the file ``loaded`` comes from, if any; it is copied into the tree.

    Raises:
        UsageError: ``directory`` is neither new nor empty, or there is none to make it in.
        EnvironmentFailure: the tree cannot be written.
    """
    end = _destination(directory)
    with _becoming(end) as tree:
        writer = Writer(tree)
        capture = Capture(root, writer)
        machine = shown = _look(loaded, root, capture)
        for _ in range(REHEARSALS):
            revision = writer.revision
            shown = _look(loaded, tree, capture)
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


def _look(loaded: Loaded, root: Path, capture: Capture) -> Survey:
    """Lets the backends look below ``root``, and takes up whatever they looked at."""
    with tracing() as trace:
        found = asyncio.run(survey(loaded, root, everything=True))
    backends = {f"{name}-look": name for name in found.discoveries}
    # as backends may spell it: with its links resolved, and as it was given
    prefixes = [os.path.realpath(root), str(root if root.is_absolute() else Path.cwd() / root)]
    for thread, backend in backends.items():
        last = trace.last.get(thread)
        stuck = _below(prefixes, last) if last and found.discoveries[backend].source.hung else None
        if stuck is not None:
            capture.avoid(stuck, backend)
    for (look, path), thread in list(trace.looks.items()):
        place, backend = _below(prefixes, path), backends.get(thread, "")
        if place is not None:
            capture.take(look, place, backend)
        elif look is not Look.ASKED and not of_python(path):
            capture.omit(path, f"it is not below {root}", backend)
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
        if end.exists() and end.samefile("."):
            raise UsageError(f"{directory} is the directory you are in", _NEW)
    except OSError as error:
        raise _cannot_write(directory, error) from error
    return end


@contextmanager
def _becoming(end: Path) -> Iterator[Path]:
    """A directory to write into, which becomes ``end`` when all went well and vanishes otherwise."""
    try:
        made = Path(tempfile.mkdtemp(prefix=".devhost-record-", dir=end.parent))
    except OSError as error:
        raise _cannot_write(end, error) from error
    try:
        made.chmod(0o755)
        yield made
        made.rename(end)  # over an empty directory too (rename(2))
    except OSError as error:
        raise _cannot_write(end, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _cannot_write(path: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"cannot write {path}: {error.strerror or error}",
        "choose a directory on a file system with some room",
    )
