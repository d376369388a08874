"""An audit trail: a file with one line of JSON for each thing that happens to the devices of this node.

docs/audit.md describes the lines, the options and the limits.
"""

import errno
import fcntl
import json
import mmap
import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any

from devhost.backend.observe import (
    Allocated,
    Appeared,
    BackendChanged,
    ClaimPrepared,
    ClaimUnprepared,
    ConfigurationRead,
    DeviceNews,
    HealthChanged,
    Held,
    Released,
    VerdictChanged,
    hookimpl,
)

LINE = 32 * 1024
"""Bytes that no line exceeds: as many as a collector reads at once."""

TEXT = 400
"""Characters of a text in a line, and with six bytes each of the texts below together less than a line."""

COMPLAINTS = 10
"""Complaints about a configuration in a line."""

PODS = 50
"""Pods of a claim in a line."""

WAITING = 10_000
"""Lines that wait while the file cannot be written; the oldest are dropped first."""

NODE = os.environ.get("NODE_NAME") or socket.gethostname()


class Trail:
    """At most ``files`` files of ``size`` bytes each: ``path`` is the newest, ``path.1`` the one before."""

    def __init__(self, path: Path, size: int, files: int) -> None:
        if size < LINE:
            raise ValueError(f"DEVHOST_AUDIT_BYTES must be at least {LINE}")
        if files < 2:
            raise ValueError("DEVHOST_AUDIT_FILES must be at least 2")
        self._path = path
        self._size = size
        self._files = files
        self._begun = False
        self._waiting: deque[bytes] = deque()
        self._missed = 0

    def add(self, at: float, lines: Iterable[bytes], missed: int) -> None:
        """Writes these lines and those that still wait. After an ``OSError`` the rest waits for the next.

        ``at`` is the time of the first; ``missed`` is the number of lines that are missing before them.
        """
        if not self._begun:
            self._begun = True
            self._waiting.append(line(at, "started"))
        self._missed += missed
        self._waiting += lines
        while len(self._waiting) > WAITING:
            self._waiting.popleft()
            self._missed += 1
        with self._alone():
            if self._missed:
                self._append(line(at, "missed", count=self._missed))
                self._missed = 0
            while self._waiting:
                self._append(self._waiting[0])
                self._waiting.popleft()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Creates the directory, and keeps another process, such as the successor of this one, waiting."""
        self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)

    def _append(self, line: bytes) -> None:
        with self._opened() as file:
            end = _whole(file)
            if end + len(line) <= self._size:
                return _write(file, line, end)
        self._rotate()
        with self._opened() as file:
            return _write(file, line, 0)

    def _opened(self) -> FileIO:
        """The newest file, which neither its group can write to nor others can read."""
        file = FileIO(self._path, "a+", opener=lambda path, flags: os.open(path, flags, 0o640))
        mode = os.fstat(file.fileno()).st_mode & 0o7777
        if mode & ~0o640:
            os.fchmod(file.fileno(), mode & 0o640)
        return file

    def _rotate(self) -> None:
        for number in range(self._files - 1, 0, -1):
            with suppress(FileNotFoundError):
                self._numbered(number - 1).replace(self._numbered(number))
        with suppress(FileNotFoundError):
            for number in count(self._files):  # there were more before DEVHOST_AUDIT_FILES was lowered
                self._numbered(number).unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _whole(file: FileIO) -> int:
    """The size of a file, without the part of a line that a killed process has left: that is removed."""
    size = end = os.fstat(file.fileno()).st_size
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
            end = content.rfind(b"\n") + 1
        file.truncate(end)
    return end


def _write(file: FileIO, line: bytes, end: int) -> None:
    """Adds a line to a file of ``end`` bytes by one write, or nothing."""
    if file.write(line) != len(line):
        file.truncate(end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)


def rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line(at: float, event: str, **fields: Any) -> bytes:
    text = json.dumps(
        {"time": rfc3339(at), "node": NODE, "event": event, **fields},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    return text.encode("utf-8", "replace") + b"\n"


def about(news: DeviceNews) -> dict[str, str]:
    return {"resource": news.resource, "backend": news.backend, "device": news.device.id}


def holder(news: Held | Released) -> dict[str, str | None]:
    """The container; ``null`` if the kubelet never named it."""
    who = news.holder
    names = (who.namespace, who.pod, who.container) if who else (None, None, None)
    return dict(zip(("namespace", "pod", "container"), names, strict=True))


def claim(news: ClaimPrepared | ClaimUnprepared, event: str) -> bytes:
    namespace, name, uid = news.claim
    names = {"namespace": namespace, "claim": name, "uid": uid, "pods": news.pods[:PODS]}
    return line(news.at, event, **about(news), shares=news.shares, **names)


def health(news: Appeared | HealthChanged) -> bytes:
    return line(news.at, "health", **about(news), healthy=news.health.healthy, reason=cut(news.health.reason))


def cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= TEXT else f"{text[: TEXT - 1]}…"


def whole_number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{name} must be a whole number, not {text!r}")
    return int(text)


TRAIL = Trail(
    Path(os.environ.get("DEVHOST_AUDIT_FILE") or "/var/lib/devhost/audit/audit.jsonl"),
    whole_number("DEVHOST_AUDIT_BYTES", 10 * 1024 * 1024),
    whole_number("DEVHOST_AUDIT_FILES", 5),
)


# Another kind of news is another hook below, with a line in docs/audit.md.


@hookimpl
def devhost_appeared(news: tuple[Appeared, ...], missed: int) -> None:
    TRAIL.add(news[0].at, [health(one) for one in news if not one.health.healthy], missed)


@hookimpl
def devhost_health_changed(news: tuple[HealthChanged, ...], missed: int) -> None:
    TRAIL.add(news[0].at, [health(one) for one in news], missed)


@hookimpl
def devhost_allocated(news: tuple[Allocated, ...], missed: int) -> None:
    lines = [line(one.at, "allocated", **about(one), shares=len(one.tokens)) for one in news]
    TRAIL.add(news[0].at, lines, missed)


@hookimpl
def devhost_held(news: tuple[Held, ...], missed: int) -> None:
    lines = [line(one.at, "held", **about(one), shares=len(one.tokens), **holder(one)) for one in news]
    TRAIL.add(news[0].at, lines, missed)


@hookimpl
def devhost_released(news: tuple[Released, ...], missed: int) -> None:
    lines = [line(one.at, "released", **about(one), shares=len(one.tokens), **holder(one)) for one in news]
    TRAIL.add(news[0].at, lines, missed)


@hookimpl
def devhost_claim_prepared(news: tuple[ClaimPrepared, ...], missed: int) -> None:
    TRAIL.add(news[0].at, [claim(one, "prepared") for one in news], missed)


@hookimpl
def devhost_claim_unprepared(news: tuple[ClaimUnprepared, ...], missed: int) -> None:
    TRAIL.add(news[0].at, [claim(one, "unprepared") for one in news], missed)


@hookimpl
def devhost_verdict_changed(news: tuple[VerdictChanged, ...], missed: int) -> None:
    lines = [
        line(
            one.at,
            "verdict",
            file=one.file,
            kind=one.kind,
            ended=not one.in_force,
            devices=one.devices,
            by=one.by,
            reason=cut(one.reason),
            since=rfc3339(one.since),
            until=None if one.until is None else rfc3339(one.until),
        )
        for one in news
    ]
    TRAIL.add(news[0].at, lines, missed)


@hookimpl
def devhost_backend_changed(news: tuple[BackendChanged, ...], missed: int) -> None:
    lines = [
        line(one.at, "backend", backend=one.backend, degraded=one.degraded, reason=cut(one.reason))
        for one in news
    ]
    TRAIL.add(news[0].at, lines, missed)


@hookimpl
def devhost_configuration_read(news: tuple[ConfigurationRead, ...], missed: int) -> None:
    lines = [
        line(
            one.at,
            "configuration",
            file=cut(one.file),
            accepted=not one.complaints,
            generation=one.generation,
            complaints=[cut(text) for text in one.complaints[:COMPLAINTS]],
        )
        for one in news
    ]
    TRAIL.add(news[0].at, lines, missed)
