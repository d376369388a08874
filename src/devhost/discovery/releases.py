"""Backends that were asked to release their drivers (``devhost release``), and until when.

A release ends on request, when a driver of the backend was loaded again, or when its time is over. It is
recorded in a file of the runtime directory, which a reboot clears, so that a restart of devhost does not end
it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, field
from datetime import UTC, datetime
from pathlib import Path

from devhost.backend.files import replace_file
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import read_bytes, read_line
from devhost.runtime.log import get

log = get(__name__)

LONGEST = 86400.0
"""The longest release in seconds: a forgotten one must not last for ever."""

_LIMIT = 65536
"""Bytes of the record that are read; one backend takes about 100."""


@frozen
class Release:
    """One release.

    ``ends`` is in seconds since the boot, ``until`` the same as wall-clock seconds, for people. ``modules``
    are the backend's kernel modules that are loaded, each with its identity.
    """

    ends: float
    until: float
    modules: Mapping[str, str] = field(default_factory=dict)


class Releases:
    """The releases of all backends, recorded in ``file``.

    ``clock`` returns seconds since the boot, also those in which the machine was suspended.
    """

    def __init__(
        self, root: Path, file: Path | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self._root = root
        self._file = file
        self._clock = clock or _since_boot
        self._found = self._read()

    def __contains__(self, backend: str) -> bool:
        return backend in self._found

    def reason(self, backend: str) -> str:
        """Why the devices of a backend are not offered; empty if its driver is not released."""
        if backend not in self._found:
            return ""
        return f"its driver is released until {self.until(backend)} (to end that: devhost resume {backend})"

    def until(self, backend: str) -> str:
        """When the release of a backend ends at the latest, as RFC 3339 in UTC."""
        at = datetime.fromtimestamp(self._found[backend].until, UTC)
        return f"{at:%Y-%m-%dT%H:%M:%SZ}"

    def begin(self, backend: str, seconds: float, modules: Collection[str]) -> None:
        """Begins a release, or changes when it ends. Reads and writes files."""
        seconds = min(seconds, LONGEST)
        loaded = dict(self._loaded(modules))
        self._found[backend] = Release(self._clock() + seconds, time.time() + seconds, loaded)
        self._write()

    def end(self, backend: str) -> bool:
        """Ends a release; whether there was one. Writes the file."""
        was_there = self._found.pop(backend, None) is not None
        if was_there:
            self._write()
        return was_there

    def over(self, modules: Mapping[str, Collection[str]]) -> dict[str, str]:
        """The releases that are over, each with the reason. Reads and writes files.

        ``modules`` are the kernel modules of each backend.
        """
        over, now = {}, self._clock()
        for backend, release in list(self._found.items()):
            loaded = dict(self._loaded(modules.get(backend, ())))
            if any(release.modules.get(name) != found for name, found in loaded.items()):
                over[backend] = "a driver was loaded"
            elif now >= release.ends:
                over[backend] = "its time is over"
            elif loaded != release.modules:  # unloaded: a directory of the same number is another driver
                self._found[backend] = Release(release.ends, release.until, loaded)
                self._write()
        return over

    def _loaded(self, modules: Collection[str]) -> Iterator[tuple[str, str]]:
        """The modules that are loaded, each with what identifies this loading of it."""
        for name in modules:
            directory = self._root / "sys/module" / name
            with suppress(OSError):  # sysfs never reuses an inode
                yield name, f"{directory.stat().st_ino} {read_line(os.fspath(directory / 'version'))}"

    def _read(self) -> dict[str, Release]:
        """The releases of an earlier process in this boot; none if the record is damaged."""
        data = read_bytes(os.fspath(self._file), _LIMIT) if self._file else None
        try:
            document = json.loads(data or b"{}")
            if document.get("boot") != self._boot():
                return {}
            found = {name: Release(**fields) for name, fields in document["released"].items()}
            return {name: one for name, one in found.items() if one.ends <= self._clock() + LONGEST}
        except (ValueError, TypeError, AttributeError, KeyError):
            return {}

    def _write(self) -> None:
        if self._file is None:
            return
        released = {name: asdict(one) for name, one in self._found.items()}
        try:
            if not released:
                self._file.unlink(missing_ok=True)
                return
            text = json.dumps({"boot": self._boot(), "released": released})
            replace_file(self._file, text.encode(), mode=0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            log.warning("releases are not recorded", file=str(self._file), reason=reason)

    @staticmethod
    def _boot() -> str:
        return (read_bytes("/proc/sys/kernel/random/boot_id") or b"").decode(errors="replace").strip()


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
