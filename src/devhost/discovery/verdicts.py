"""Verdicts on devices: the files in their directory, which of them are in force, and on which devices.

A verdict is a JSON object. ``devices`` are names as for ``devhost explain``, or :data:`ALL`; ``kind`` is
``cordon`` or ``unhealthy``; ``reason`` and ``by`` are text; ``until``, if there is one, is RFC 3339. What is
wrong with one file, or is too large, has no effect on any other.

Imported only where there are any.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from devhost.backend import trusted
from devhost.backend.errors import MAX_REASON, DevhostError, EnvironmentFailure, cut, few, printable
from devhost.backend.files import make_directory, replace_file
from devhost.backend.frozen import frozen
from devhost.backend.model import HEALTHY, Cause, Device, Health, sound_health, unhealthy
from devhost.runtime.log import NAMED, first, get, utc
from devhost.runtime.worker import FileWorker

from .health import ALL, HealthTracker, worst
from .named import Match, Parts, named, whole
from .scanner import BackendNow, Scanner
from .unserved import resolved

log = get(__name__)

MAX_FILES = 1000
"""The most files that are read: those of ``devhost cordon``, then the first by name. Others are a problem."""

MAX_BYTES = 16384
"""The most bytes of a file; one with 300 UUIDs has as many."""

MAX_NAMES = 10_000
"""The most names of devices in all files; a file that would exceed it is a problem."""

MAX_BY = 64
"""The most characters of ``by``, which is a label of metrics."""

SETTLE = 1.0
"""Seconds for which a bad file may be one that is being written, and has no effect."""

FRESH = 1.0
"""Seconds in which a file may change again without another time: kernels before 6.13 count in ticks."""

_OWN = "cordon-"
"""What the files of ``devhost cordon`` begin with."""

_OWN_NAME = re.compile(rf"{_OWN}(?:node|[0-9a-f]{{12}})\.json")

_KEYS = ("devices", "kind", "reason", "by", "until")


class VerdictKind(StrEnum):
    """The kind of a verdict."""

    CORDON = "cordon"
    """A person, or a program, takes a device out of service. This is no problem."""
    UNHEALTHY = "unhealthy"
    """A program has found out that a device cannot be used."""


@frozen(slots=True)
class Verdict:
    """The content of a file, written at ``since`` and in force ``until``, in wall-clock seconds."""

    file: str
    kind: VerdictKind
    names: tuple[str, ...]
    reason: str
    by: str
    since: float
    until: float | None = None

    @property
    def text(self) -> str:
        """Why a device is unhealthy."""
        if self.kind is VerdictKind.CORDON:
            return f"cordoned by {self.by}: {self.reason}"
        return f"{self.reason} ({self.by})"

    def holds(self, now: float) -> bool:
        """Whether it is in force at this time."""
        return self.until is None or now < self.until


@frozen
class Reading:
    """What a directory has.

    ``flaws`` is why something cannot be used, by its path; ``ends`` where names lead to that are symbolic
    links or short PCI addresses; ``again`` the seconds after which a file must be read again that cannot be
    used now.
    """

    verdicts: tuple[Verdict, ...] = ()
    flaws: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)
    again: float | None = None


class Flawed(DevhostError):
    """A file is no verdict; the message is the reason."""


@frozen(slots=True)
class _FileRecord:
    """What is known of a file: the last ``verdict`` in it, and what is wrong with it ``since`` some time.

    ``kept`` is whether that only hides the verdict, as an error of the file system does.
    """

    signature: int | None
    verdict: Verdict | None
    flaw: str = ""
    since: float = 0.0
    kept: bool = False


class VerdictDirectory:
    """The verdicts in a directory. Names lead to devices of the machine whose ``/`` is ``root``."""

    def __init__(self, directory: Path, root: Path) -> None:
        self.directory = directory
        self._root = root
        self._files: dict[str, _FileRecord] = {}

    def read(self, now: float) -> Reading:
        """What the directory has at this time, in monotonic seconds. May block.

        Raises ``OSError`` if it exists and cannot be read.
        """
        names: list[str] = []
        try:
            with trusted.entered(self.directory) as here:
                names = sorted((name for name in os.listdir(here) if not name.startswith(".")), key=_order)
                read = [(name, self._file(here, name, now)) for name in names[:MAX_FILES]]
        except FileNotFoundError:
            read = []
        except trusted.Untrusted as error:
            self._files = {}
            return Reading(flaws={str(self.directory): str(error)})
        self._files = {name: one for name, one in read if one is not None}
        flaws: dict[str, str] = {}
        if (more := len(names) - MAX_FILES) > 0:
            flaws[str(self.directory)] = f"{more} of its {len(names)} files are not read (remove some)"
        verdicts: list[Verdict] = []
        waits: list[float] = []
        left = MAX_NAMES
        for name, one in self._files.items():
            verdict, path = one.verdict, str(self.directory / name)
            if one.flaw and (wait := one.since + SETTLE - now) > 0:
                waits.append(wait)
            elif one.flaw:
                flaws[path] = one.flaw
                verdict = verdict if one.kept else None
            if verdict is None:
                continue
            if len(verdict.names) > left:
                flaws[path] = f"all files together name more than {MAX_NAMES} devices (remove some)"
                continue
            left -= len(verdict.names)
            verdicts.append(verdict)
        ends = {name: end for one in verdicts for name in one.names if (end := self._end(name)) != name}
        return Reading(tuple(verdicts), flaws, ends, min(waits, default=None))

    def _file(self, here: int, name: str, now: float) -> _FileRecord | None:
        """A file of the open directory as it is now; ``None`` if it has gone."""
        before, path = self._files.get(name), self.directory / name
        last = before.verdict if before else None
        since = before.since if before and before.flaw else now
        try:
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            signature = signature_of(found, time.time())
            if before is not None and signature is not None and signature == before.signature:
                return before
            verdict = read_verdict(here, path, found)
            return _FileRecord(
                signature, last if verdict == last else verdict
            )  # one object takes less memory
        except FileNotFoundError:
            return None
        except (Flawed, trusted.Untrusted, IsADirectoryError) as error:
            flaw = "it is a directory (remove it)" if isinstance(error, IsADirectoryError) else str(error)
            return _FileRecord(None, last, flaw, since)
        except OSError as error:
            return _FileRecord(None, last, f"it cannot be read: {error.strerror or error}", since, kept=True)

    def _end(self, name: str) -> str:
        return name if name == ALL else resolved(self._root, name)


def signature_of(found: os.stat_result, now: float) -> int | None:
    """What changes with a file; ``None`` while another change might not be seen, at this wall-clock time."""
    if max(found.st_mtime, found.st_ctime) > now - FRESH:
        return None
    return hash((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


def _order(name: str) -> tuple[bool, str]:
    """The order of reading: so many files of other programs hide no cordon of a person."""
    return _OWN_NAME.fullmatch(name) is None, name


def read_verdict(here: int, path: Path, found: os.stat_result) -> Verdict:
    """The verdict in a file of the open directory that ``lstat`` describes.

    Raises ``Flawed`` if it is none, ``Untrusted`` if others can change it, ``OSError`` if it cannot be read.
    """
    if stat.S_ISLNK(found.st_mode):
        raise Flawed("it is a symbolic link", "write the file itself into this directory")
    if path.suffix != ".json":
        raise Flawed(
            "its name does not end in .json", "rename it, or let names of unfinished files begin with a dot"
        )
    with trusted.opened_in(here, path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        data = file.read(MAX_BYTES + 1)
        since = os.fstat(descriptor).st_mtime
    if len(data) > MAX_BYTES:
        raise Flawed(f"it is larger than {MAX_BYTES} bytes", "write several files")
    return parsed(path.name, data, since)


def parsed(file: str, data: bytes, since: float) -> Verdict:
    """The verdict in the content of a file. Raises ``Flawed``."""
    try:
        content = json.loads(data) if data.strip() else None
    except (ValueError, RecursionError) as error:
        raise Flawed(f"it is not JSON: {error}", "write it to another name, then rename it") from None
    if content is None:
        raise Flawed("it is empty", "write it to another name, then rename it")
    if not isinstance(content, dict):
        raise Flawed("it is no JSON object", f"its keys are {', '.join(_KEYS)}")
    for key in content:
        if key not in _KEYS:
            close = get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"its keys are {', '.join(_KEYS)}"
            raise Flawed(f"it has an unknown key, {key[:80]!r}", hint)
    if missing := [key for key in _KEYS[:-1] if key not in content]:
        raise Flawed(f"it has no {missing[0]}", f"it needs {', '.join(_KEYS[:-1])}")
    try:
        _shown(since)
    except (ValueError, OverflowError, OSError):
        raise Flawed(f"it was changed {since:g} s after 1970, which is no time", "write it again") from None
    return Verdict(
        file,
        _kind(content["kind"]),
        _names(content["devices"]),
        _text("reason", content["reason"], MAX_REASON),
        sys.intern(_text("by", content["by"], MAX_BY)),
        since,
        _until(content.get("until")),
    )


def _kind(value: Any) -> VerdictKind:
    try:
        return VerdictKind(value)
    except ValueError:
        raise Flawed(cut(f"its kind is {value!r}", 120), f"use {' or '.join(VerdictKind)}") from None


def _names(value: Any) -> tuple[str, ...]:
    if not (isinstance(value, list) and value and all(isinstance(one, str) and one for one in value)):
        raise Flawed("its devices are no list of names", 'such as ["0000:3b:00.0"]')
    return tuple(dict.fromkeys(value))


def _text(key: str, value: Any, most: int) -> str:
    if not (isinstance(value, str) and value.strip()):
        raise Flawed(f"its {key} is no text", f"write a {key}")
    text = printable(" ".join(value.split()))
    if len(text) > most:
        raise Flawed(f"its {key} has more than {most} characters", "shorten it")
    return text


def _shown(seconds: float) -> float:
    """The same wall-clock seconds. Raises ``ValueError``, ``OverflowError`` or ``OSError`` without a date."""
    datetime.fromtimestamp(seconds, UTC)
    return seconds


def _until(value: Any) -> float | None:
    if value is None:
        return None
    hint = "write a time with its zone, such as 2026-11-26T10:00:00Z"
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is not None:
            return _shown(found.timestamp())
    except (TypeError, ValueError, OverflowError, OSError):
        pass
    raise Flawed(cut(f"its until is {value!r}", 120), hint)


def own_file(directory: Path, name: str) -> Path:
    """The file in which ``devhost cordon`` keeps its verdict on a device: ``BACKEND/ID``, or :data:`ALL`."""
    number = hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
    return directory / f"{_OWN}{'node' if name == ALL else number}.json"


def is_own(verdict: Verdict) -> bool:
    """Whether a verdict is one of ``devhost cordon``."""
    names = verdict.names
    return len(names) == 1 and own_file(Path(), names[0]).name == verdict.file


def write(directory: Path, name: str, by: str, reason: str, until: float | None) -> Verdict:
    """Cordons a device. Raises ``Flawed`` or ``OSError``."""
    content: dict[str, object] = {"devices": [name], "kind": VerdictKind.CORDON, "reason": reason, "by": by}
    if until is not None:
        content["until"] = utc(until)
    data = json.dumps(content).encode() + b"\n"
    path = own_file(directory, name)
    verdict = parsed(path.name, data, time.time())
    make_directory(directory.parent, 0o700)
    make_directory(directory)
    replace_file(path, data, f".{_OWN}")
    return verdict


def settled(directory: Path, root: Path) -> Reading:
    """What a directory has, for a command, which cannot wait: an unfinished file is a wrong one."""
    source, now = VerdictDirectory(directory, root), time.monotonic()
    source.read(now - SETTLE)
    return source.read(now)


OLD = 7 * 86400.0
"""Seconds after which a cordon is a problem: it may have been forgotten."""


@frozen
class Applied:
    """A verdict in force, and the devices that it applies to now: backend and id."""

    verdict: Verdict
    devices: tuple[tuple[str, str], ...]


@frozen
class Flaw:
    """Why a file, or one of its names, has no effect."""

    file: str
    reason: str


Wrong = Callable[[Verdict, str, Sequence[Match]], None]


def _nothing(verdict: Verdict, name: str, matches: Sequence[Match]) -> None:
    """What is wrong was reported before."""


class Judge:
    """Follows a directory that exists, and the devices of one machine.

    ``wall`` gives wall-clock seconds. The clock may be set at any time: what is in force is decided again at
    each reading.
    """

    def __init__(
        self,
        directory: Path,
        root: Path,
        scanners: Mapping[str, Scanner],
        worker: FileWorker,
        wall: Callable[[], float],
    ) -> None:
        self.flaws: Sequence[Flaw] = ()
        """What has no effect."""
        self.in_force: tuple[Verdict, ...] = ()
        """The verdicts in force, also those without a device that exists."""
        self._directory = directory
        self._scanners = scanners
        self._wall = wall
        self._source = VerdictDirectory(directory, root)
        self._reading = Reading()
        self._unread = ""
        """Why the directory cannot be read; what it had stays in force."""
        self._basis: object = None
        self._devices: Mapping[str, tuple[Mapping[str, Device], HealthTracker]] = {}
        self._worker = worker

    async def read(self, now: float) -> tuple[bool, bool, float | None]:
        """Reads the directory, at this time in monotonic seconds.

        Returns whether others are in force, whether something else has no effect, and the seconds until
        something changes without a change of a file.
        """
        try:
            reading = await self._worker.file(f"read {self._directory}", self._source.read, now)
            unread = ""
        except EnvironmentFailure as error:
            reading, unread = self._reading, str(error)
        wall, last = self._wall(), self._reading
        in_force = tuple(one for one in reading.verdicts if one.holds(wall))
        others = in_force != self.in_force or last.ends != reading.ends
        flawed = unread != self._unread or last.flaws != reading.flaws
        self._reading, self.in_force, self._unread = reading, in_force, unread
        waits = [one.until - wall for one in in_force if one.until is not None]
        waits += [] if reading.again is None else [reading.again]
        return others, flawed, min(waits, default=None)

    def apply(self) -> None:
        """Applies what is in force to the devices that exist now."""
        devices = {name: (one.devices, one.health) for name, one in self._scanners.items()}
        complete = all(scanner.listed for scanner in self._scanners.values())
        basis = self.in_force, self._reading.ends, self._reading.flaws, self._unread, complete
        if basis == self._basis and _same(devices, self._devices):
            return
        self._basis, self._devices = basis, devices
        flaws = [Flaw(path, reason) for path, reason in self._reading.flaws.items()]
        if self._unread:
            flaws.append(Flaw(str(self._directory), self._unread))

        def wrong(verdict: Verdict, name: str, matches: Sequence[Match]) -> None:
            if matches or complete:  # a backend may not have listed it yet
                flaws.append(Flaw(str(self._directory / verdict.file), _why(name, matches)))

        backends = {name: one.now() for name, one in self._scanners.items()}
        overrule(self._scanners, matched(backends, self.in_force, self.ends, wrong))
        self._report(flaws)

    @property
    def ends(self) -> Mapping[str, str]:
        """See :class:`Reading`."""
        return self._reading.ends

    def forgotten(self) -> Sequence[Verdict]:
        """The cordons that are so old that they may have been forgotten."""
        now = self._wall()
        return [one for one in self.in_force if one.kind is VerdictKind.CORDON and one.since < now - OLD]

    def _report(self, flaws: Sequence[Flaw]) -> None:
        """Logs what has no effect now and did before, or the reverse."""
        before, self.flaws = self.flaws, flaws
        new = [one for one in flaws if one not in before]
        for one in first(new, log.warning, "more verdicts have no effect", "files"):
            log.warning("a verdict has no effect", file=one.file, reason=one.reason)
        bad = {one.file for one in flaws}
        over = sorted({one.file for one in before} - bad)
        for file in over[:NAMED]:
            log.info("a verdict is no longer without effect", file=file)


def matched(
    backends: Mapping[str, BackendNow],
    verdicts: Sequence[Verdict],
    ends: Mapping[str, str],
    wrong: Wrong = _nothing,
) -> Iterator[Applied]:
    """Verdicts with the devices that they apply to, and their parts; for ``ends`` see :class:`.Reading`.

    It is called for each status document: a thousand verdicts take a few milliseconds.

    Calls ``wrong`` with each name that means no device, and the devices that have it.
    """
    names = {name for one in verdicts for name in one.names} - {ALL}
    found = named(backends, names | {ends[name] for name in names if name in ends})
    parts = Parts(backends) if found else None
    for verdict in verdicts:
        devices: dict[tuple[str, str], None] = {}
        for name in verdict.names:
            matches = found.get(name) or found.get(ends.get(name, name), [])
            if name == ALL:
                devices[ALL, ALL] = None
            elif parts and (one := whole(matches)):
                devices.update(((backend, device.id), None) for backend, device in (*one, *parts.of(one)))
            else:
                wrong(verdict, name, matches)
        yield Applied(verdict, tuple(devices))


def overrule(scanners: Mapping[str, Scanner], applied: Iterable[Applied]) -> None:
    """Gives the health of each backend's devices what is in force, and nothing else."""
    cordons: dict[str, dict[str, Health]] = defaultdict(dict)
    reported: dict[str, dict[str, Health]] = defaultdict(dict)
    for one in applied:
        cordoned = one.verdict.kind is VerdictKind.CORDON
        into = cordons if cordoned else reported
        cause = Cause.CORDONED if cordoned else Cause.REPORTED
        health = sound_health(unhealthy(one.verdict.text, cause))
        for backend, device in one.devices:
            for name in scanners if backend == ALL else (backend,):
                into[name][device] = worst(into[name].get(device, HEALTHY), health)
    for name, scanner in scanners.items():
        scanner.health.cordons, scanner.health.reported = cordons[name], reported[name]


def _why(name: str, matches: Sequence[Match]) -> str:
    if not matches:
        return f"no device is called {name} (correct the name, or remove the file)"
    ids = few([f"{backend}/{device.id}" for backend, device in matches])
    return f"{name} is a name of {ids} (write the one that is meant)"


def _same(one: Mapping[str, tuple[object, object]], other: Mapping[str, tuple[object, object]]) -> bool:
    return one.keys() == other.keys() and all(
        mine is other[name][0] and health is other[name][1] for name, (mine, health) in one.items()
    )
