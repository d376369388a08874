"""Makes a recording: scan, copy, verify, describe, and then move the tree to its place."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

from devhost import __version__
from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.backend.frozen import frozen
from devhost.backend.model import Device
from devhost.backend.sysfs import OWN_MOUNTS
from devhost.backend.where import show
from devhost.cli.scan_once import ScanResult, scan_once
from devhost.config.loader import Loaded
from devhost.discovery.scanner import BackendCondition
from devhost.runtime.log import utc

from .capture import Bounds, Capture, FileType, Omission, Writer
from .trace import Access, of_python, tracing

MANIFEST = "devhost-record.json"
"""Name of the description, at the top of the tree."""

CONFIGURATION = "devhost.yaml"
"""Name of the copy of the configuration, beside it."""

FORMAT = 1
"""Version of the description's format. It increases with each incompatible change."""

MAX_LISTED = 1000
"""The maximum number of entries of each list in the description."""


@frozen
class Recording:
    """A finished tree.

    ``directory`` is its place, ``machine`` what the backends found on the machine below ``root``. ``nodes``
    maps device nodes to their numbers (``c10:229``). ``differences`` describes what the backends find
    differently in the tree, ``full`` which limit was reached (empty: none). ``configuration`` is the file
    that was used; the tree has a copy.
    """

    directory: Path
    root: Path
    configuration: Path | None
    loaded: Loaded
    machine: ScanResult
    files: int
    links: int
    bytes: int
    nodes: Mapping[str, str]
    omissions: tuple[Omission, ...]
    differences: tuple[str, ...]
    full: str

    def as_json(self) -> str:
        document = {
            "format": FORMAT,
            "devhost": __version__,
            "time": utc(time.time()),
            "root": str(self.root),
            "configuration": str(self.configuration) if self.configuration else None,
            "system": _system(self.root),
            "backends": [self._backend(name) for name in self.machine.scanners],
            "refusedPlugins": [
                {"origin": one.origin, "version": one.version, "reason": one.reason}
                for one in self.loaded.catalog.refused
            ],
            "files": self.files,
            "links": self.links,
            "bytes": self.bytes,
            "incomplete": self.full,
            "nodes": dict(sorted(self.nodes.items())),
            "notRecorded": [asdict(one) for one in self.omissions[:MAX_LISTED]],
            "differences": self.differences[:MAX_LISTED],
        }
        return json.dumps(document, indent=2) + "\n"

    def _backend(self, name: str) -> dict[str, object]:
        installed = self.loaded.catalog.installed[name]
        scanner = self.machine.scanners[name]
        return {
            "name": name,
            "origin": installed.origin,
            "version": installed.version,
            "state": scanner.condition.state.value,
            "reason": scanner.condition.reason,
            "devices": len(scanner.devices),
            "refusedDevices": [asdict(flawed) for flawed in scanner.condition.refused],
        }


def _system(root: Path) -> dict[str, object]:
    """The kernel and the distribution, without the host name."""
    kernel, distribution = os.uname(), _os_release(root)
    return {
        "kernel": kernel.release,
        "architecture": kernel.machine,
        "distribution": distribution.get("ID", ""),
        "version": distribution.get("VERSION_ID", ""),
        "asRoot": os.geteuid() == 0,
    }


def _os_release(root: Path) -> dict[str, str]:
    """The fields of os-release(5); empty if it cannot be read."""
    try:
        text = (root / "etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(_assignments(text.splitlines()))


def _assignments(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            try:
                yield name, "".join(shlex.split(value))
            except ValueError:
                continue  # an unterminated quotation


_NEW = "give the name of a new directory"

_HINTS = {
    errno.EACCES: "choose a directory that you may write to",
    errno.EPERM: "choose a directory that you may write to",
    errno.EROFS: "choose a directory that you may write to",
    errno.ENOTEMPTY: "something else wrote there meanwhile",
}
"""Hints for errors other than a full file system."""

REHEARSALS = 5
"""The maximum number of scans of the tree. Each scan can reveal files that the previous one did not reach."""


def record(
    loaded: Loaded,
    directory: Path,
    root: Path,
    configuration: Path | None = None,
    bounds: Bounds | None = None,
) -> Recording:
    """Records what the backends of a configuration read on the machine below ``root``.

    ``directory`` is a new directory whose parent exists, or an empty one. ``configuration`` is the file of
    ``loaded``, if any; it is copied into the tree. Raises ``UsageError`` for another directory, and
    ``EnvironmentFailure`` if the tree cannot be written.
    """
    end = _destination(directory)
    with _becoming(end) as tree:
        writer = Writer(tree, bounds or Bounds())
        capture = Capture(root, writer)
        machine = shown = _scan(loaded, root, capture, f"it is not below {root}")
        for _ in range(REHEARSALS):
            revision = writer.revision
            shown = _scan(loaded, tree, capture, "it is read from this machine even with --root")
            if writer.revision == revision:
                break
        made = Recording(
            directory=end,
            root=root,
            configuration=configuration,
            loaded=loaded,
            machine=machine,
            files=writer.count(FileType.FILE, FileType.NAME),
            links=writer.count(FileType.LINK),
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


def _scan(loaded: Loaded, root: Path, capture: Capture, outside: str) -> ScanResult:
    """Runs the backends below ``root``, and records every path that they accessed.

    ``outside`` is the reason for omitting paths outside ``root``.
    """
    with tracing() as trace:
        found = asyncio.run(scan_once(loaded, root, everything=True))
    backends = {f"{name}-{call}": name for name in found.scanners for call in ("discover", "probe")}
    # backends may use the path as given, or with its links resolved
    prefixes = [os.path.realpath(root), str(root if root.is_absolute() else Path.cwd() / root)]
    for thread, backend in backends.items():
        last = trace.last.get(thread)
        hung = thread in found.scanners[backend].runner.hung_threads
        stuck = _below(prefixes, last) if last and hung else None
        if stuck is not None:
            capture.avoid(stuck, backend)
    for (access, path), thread in list(trace.accesses.items()):
        place, backend = _below(prefixes, path), backends.get(thread, "")
        if place is not None:
            capture.take(access, place, backend)
        elif access is not Access.ASKED and path != OWN_MOUNTS and not of_python(path):
            capture.omit(path, outside, backend)
    return found


def differences(machine: ScanResult, tree: ScanResult) -> Iterator[str]:
    """Each difference in one clause; empty if ``discover`` shows the same for both."""
    for name, scanner in machine.scanners.items():
        here, there = scanner.condition, tree.scanners[name].condition
        if (here.state, here.reason) != (there.state, there.reason):
            yield f"backend {name} is {_state(here)}, with the tree {_state(there)}"
    real = {(name, device.id): device for name, device in machine.devices()}
    shown = {(name, device.id): device for name, device in tree.devices()}
    for key in sorted(real.keys() | shown.keys()):
        label = f"{key[0]}: {key[1]}"
        if key not in shown:
            yield f"{label} is not in the tree"
        elif key not in real:
            yield f"{label} is only in the tree"
        else:
            yield from (f"{label}: {text}" for text in _apart(real[key], shown[key]))


def _state(condition: BackendCondition) -> str:
    return f"{condition.state} ({condition.reason})" if condition.reason else condition.state


def _apart(real: Device, shown: Device) -> Iterator[str]:
    for name in sorted(real.attributes.keys() | shown.attributes.keys()):
        here, there = real.attributes.get(name), shown.attributes.get(name)
        if here != there:
            texts = ("absent" if value is None else show(value) for value in (here, there))
            yield f"{name} is {', in the tree '.join(texts)}"
    for field in fields(Device):
        if field.name != "attributes" and getattr(real, field.name) != getattr(shown, field.name):
            yield f"{field.name.replace('_', ' ')} differs"


def _below(prefixes: list[str], path: str) -> str | None:
    """A path as seen from the root, which has these ``prefixes``; ``None`` if it is not below it."""
    for prefix in [prefix.rstrip("/") for prefix in prefixes]:
        if path == prefix or path.startswith(f"{prefix}/"):
            return path[len(prefix) :] or "/"
    return None


def _destination(directory: Path) -> Path:
    """The final place of the tree, if it can be used."""
    try:
        end = Path(os.path.realpath(directory))
        if not end.parent.is_dir():
            raise UsageError(f"{end.parent} is not a directory", "create it first")
        if end.exists() and not end.is_dir():
            raise UsageError(f"{directory} is not a directory", _NEW)
        if end.exists() and any(end.iterdir()):
            raise UsageError(f"{directory} is not empty", _NEW)
    except OSError as error:
        raise _cannot_write(directory, error) from error
    return end


@contextmanager
def _becoming(end: Path) -> Iterator[Path]:
    """A directory to write into. Its content moves to ``end`` on success, and is removed otherwise.

    If ``end`` exists, it is kept with its owner and mode: it may be a private directory, or the root of a
    volume, which cannot be replaced.
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
            made.rename(end)  # this also replaces an empty directory (rename(2))
    except OSError as error:
        raise _cannot_write(end, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _move(made: Path, end: Path) -> None:
    """Moves the content of ``made``, which is in ``end``, up into ``end``: all or nothing."""
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
    """The umask of the process, which can be read only by setting it (umask(2))."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _cannot_write(path: Path, error: OSError) -> EnvironmentFailure:
    hint = _HINTS.get(error.errno or 0, "choose a directory on a file system with free space")
    return EnvironmentFailure(f"cannot write {path}: {error.strerror or error}", hint)
