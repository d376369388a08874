"""A copy of the last accepted configuration: what ``devhost run`` starts from when the file is refused.

There is one copy for each path of a configuration: two comment lines, then the bytes that were accepted. The
second line is JSON: the path, when and by which version of devhost it was accepted, and a hash of the bytes.
A new copy replaces the file, so that a reader sees either the old or the new one, also after a crash.

A copy is a convenience. If it cannot be written, that is logged once, and devhost serves as usual.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from devhost import __version__
from devhost.backend.errors import DAMAGED, DevhostError, EnvironmentFailure
from devhost.backend.files import make_directory, replace_file
from devhost.backend.frozen import frozen
from devhost.runtime.log import get, utc
from devhost.runtime.reconciler import FailureLog, Reconciler
from devhost.runtime.worker import FileWorker

from .root_directory import OVERRIDE

log = get(__name__)

AGAIN = 60.0
"""Seconds after which a copy that could not be written, or was removed, is written again."""

HEADER = (
    b"# devhost accepted this configuration last, and starts from this copy of it when the file is refused.\n"
)

HEADER_LINES = 2
"""Lines of a copy before the first line of the configuration."""

_ABOUT = b"# devhost: "

_STALE_PART = 60.0
"""Seconds after which an unfinished file is a leftover of a process that was killed."""

_HINT = f"--state-dir and ${OVERRIDE} name another directory"


@frozen
class Accepted:
    """The content of a configuration file that was accepted, and the file's permission bits."""

    data: bytes
    mode: int


@frozen
class Copy:
    """What is in a copy: the file's name, the configuration, and when (RFC 3339, UTC) it was accepted."""

    file: Path
    data: bytes
    at: str
    version: str


class Unusable(DevhostError):
    """There is a copy, but it cannot be used; the message is the reason."""


class LastGood:
    """The copy of the configuration at one path.

    The copy of one path is never used for another. ``directory`` is where copies are, made when first needed;
    ``None`` for no copy. ``again`` is seconds between two looks whether it is right.
    """

    def __init__(self, config: Path, directory: Path | None, again: float = AGAIN) -> None:
        self._config = os.path.abspath(config)  # noqa: PTH100 - a ConfigMap's links lead elsewhere each time
        # a path that names an open file changes each time: `--config <(generate)`
        passing = self._config.startswith(("/dev/fd/", "/dev/stdin", "/proc/"))
        name = hashlib.sha256(os.fsencode(self._config)).hexdigest()[:12]
        self.file = None if directory is None or passing else directory.absolute() / f"config-{name}.yaml"
        self.outdated = ""
        """Why the copy is still of an earlier configuration; empty if it is not."""
        self.since = 0.0
        self._again = again
        self._wanted: Accepted | None = None
        self._old = False
        self._failures = FailureLog(
            log, "the configuration is not copied", "the configuration is copied again", file=self._config
        )
        self._worker = _worker()

    def read(self) -> Copy | None:
        """The copy, if there is one. Raises ``Unusable`` if it is damaged, or others can change it."""
        try:
            return self._read() if self.file else None
        except OSError as error:
            raise Unusable(f"it cannot be read: {error.strerror or error}") from None

    async def keep(self, accepted: Accepted | None) -> None:
        """Makes the copy hold a configuration that came from a file. Never fails, only logs."""
        if accepted is not None:
            self._wanted = accepted
            await self._write()

    async def run(self, changed: Callable[[], None]) -> None:
        """Writes again what could not be written, or was removed; never returns.

        Calls back when :attr:`outdated` changed.
        """

        async def write() -> float:
            before = self.outdated
            await self._write()
            if self.outdated != before:
                changed()
            return self._again

        await Reconciler(write, first=self._again).run()

    def close(self) -> None:
        self._worker.close()

    async def _write(self) -> None:
        wanted, file = self._wanted, self.file
        if wanted is None or file is None:
            return
        try:
            await self._worker.file(f"keep a copy of the configuration in {file.parent}", self._store, wanted)
        except EnvironmentFailure as error:
            old = f"{file} is the copy of an earlier configuration: " if self._old else ""
            reason = f"{old}{error}"
            if self._failures.failed(reason):
                self.since = time.time()
            self.outdated = reason if old else ""
        else:
            self.outdated = ""
            self._failures.succeeded()
        finally:
            if not self._worker.abandoned:  # edits are rare: the thread need not wait for the next
                self._worker.close()
                self._worker = _worker()

    def _store(self, wanted: Accepted) -> None:
        assert self.file is not None
        mode = wanted.mode & 0o644 | 0o600
        try:
            found = self.read()
        except Unusable:
            found = None
        if found is not None:
            same = (found.data, found.version) == (wanted.data, __version__)
            if same and stat.S_IMODE(self.file.stat().st_mode) == mode:
                return
        self._old = found is not None and found.data != wanted.data
        directory = self.file.parent
        make_directory(directory, 0o700)
        part = f".{self.file.stem}-"
        for left in directory.glob(f"{part}*.part"):
            if left.lstat().st_mtime < time.time() - _STALE_PART:
                left.unlink(missing_ok=True)
        replace_file(self.file, self._text(wanted.data), part, mode)
        _sync(directory)

    def _text(self, data: bytes) -> bytes:
        about = {
            "config": self._config,
            "accepted": utc(time.time()),
            "version": __version__,
            "sha256": _digest(data),
        }
        return HEADER + _ABOUT + json.dumps(about).encode() + b"\n" + data

    def _read(self) -> Copy | None:
        assert self.file is not None
        try:
            text = _own(self.file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        rest = text.removeprefix(HEADER)
        about, newline, data = rest.partition(b"\n")
        damaged = Unusable("it is damaged", f"remove it: `rm {self.file}`")
        if len(rest) == len(text) or not about.startswith(_ABOUT) or not newline:
            raise damaged
        try:
            header = json.loads(about.removeprefix(_ABOUT))
            config, at, version = (str(header[key]) for key in ("config", "accepted", "version"))
            whole = header["sha256"] == _digest(data)
        except DAMAGED:
            raise damaged from None
        if not whole:
            raise damaged
        if config != self._config:
            raise Unusable(f"it is a copy of {config}")
        return Copy(self.file, data, at, version)


def _worker() -> FileWorker:
    return FileWorker("configuration copy", _HINT)


def _own(path: Path) -> bytes:
    """What is in a file that only this user, or root, can have written."""
    with open(path, "rb", opener=_opened_itself) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise Unusable("it is not a regular file")
        if found.st_uid not in (0, os.geteuid()):
            raise Unusable(f"it belongs to uid {found.st_uid}", f"remove it: `rm {path}`")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unusable("other users can change it", f"run `chmod go-w {path}` if it is yours")
        return file.read()


def _opened_itself(path: str, flags: int) -> int:
    """An opener for ``open`` that follows no link and does not wait for a writer."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sync(directory: Path) -> None:
    """Makes a renamed file survive a power failure (fsync(2): the directory needs its own call)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
