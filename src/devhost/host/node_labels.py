"""Node labels: asks backends for labels and writes them to files that Node Feature Discovery reads.

The worker of Node Feature Discovery reads every file of a directory whose name does not begin with a dot, up
to 64 KiB, as lines ``name=value`` and comments that begin with ``#`` (its customization guide, "Local feature
source"). It adds the prefix ``feature.node.kubernetes.io/`` to a name without a domain. Kubernetes defines
valid labels ("Labels and Selectors").

A backend with ``labels`` is asked when its devices, or their resources, have changed, but never while a
kubelet waits. The files stay when devhost stops, because the hardware stays. A backend that fails, or has not
listed its devices yet, changes nothing: labels that come and go would move pods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from devhost.allocation.owned_files import OwnedDirectory, OwnedFiles
from devhost.backend import Offered
from devhost.backend.backoff import Backoff
from devhost.backend.errors import BackendError, EnvironmentFailure
from devhost.backend.frozen import frozen
from devhost.backend.incident import Incident
from devhost.backend.model import Device
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import Scanner
from devhost.planning.plan import Plan
from devhost.planning.timing import Timing
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, FailureLog, Reconciler, Retry
from devhost.telemetry.metrics import Metrics

log = get(__name__)

HINT = (
    "labels.directory must be a directory that devhost may write to; "
    "set labels: {write: false} if no program reads it"
)

MAX_PART = 63
"""Most characters of a label's value, and of its name after the slash."""

MAX_PREFIX = 253
"""Most characters of the domain in a label's name."""

MAX_FILE = 65536
"""Most bytes of a feature file; a larger one is not read at all."""

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_ILLEGAL = re.compile(r"[^-A-Za-z0-9_. ]")
_ENDS = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$")
_OPEN = ("feature.node.kubernetes.io", "profile.node.kubernetes.io")
"""The domains of kubernetes.io, with their subdomains, in which Node Feature Discovery sets labels."""

HEADER = "# Written by devhost, which replaces and removes this file as devices come and go.\n"


def legal(text: str) -> str:
    """A text as a label's value: illegal characters are removed, spaces become hyphens.

    ``NVIDIA A100-SXM4-40GB (rev a1)`` → ``NVIDIA-A100-SXM4-40GB-rev-a1``, as GPU feature discovery writes it.
    The result may be empty, which is a legal value.
    """
    return _ENDS.sub("", "-".join(_ILLEGAL.sub("", text).split())[:MAX_PART])


def problem(name: str) -> str:
    """Why a label cannot have this name; empty if it can."""
    domain, slash, rest = name.rpartition("/")
    if slash and not (len(domain) <= MAX_PREFIX and _DOMAIN.fullmatch(domain)):
        return "the part before its slash is not a domain"
    if len(rest) > MAX_PART:
        return f"its name is longer than {MAX_PART} characters"
    if not _PART.fullmatch(rest):
        return "its name is not made of letters, digits, '-', '_' and '.', alphanumeric at both ends"
    if f".{domain}".endswith(".kubernetes.io") and not f".{domain}".endswith(tuple(f".{d}" for d in _OPEN)):
        return f"{domain} belongs to Kubernetes itself"
    return ""


def sorted_out(found: Iterable[tuple[object, object]]) -> tuple[dict[str, str], list[str]]:
    """The valid labels among names with values, in order, and why the others are invalid."""
    good: dict[str, str] = {}
    wrong: list[str] = []
    for name, value in sorted(found, key=lambda pair: str(pair[0])):
        if not isinstance(name, str) or not isinstance(value, (str, int)):
            wrong.append(f"{name!r}: names must be text; values must be text, integers, true or false")
        elif reason := problem(name):
            wrong.append(f"{name!r}: {reason}")
        else:
            good[name] = str(value).lower() if isinstance(value, bool) else legal(str(value))
    return good, wrong


def render(labels: Mapping[str, str]) -> bytes:
    """The content of a feature file."""
    return (HEADER + "".join(f"{name}={value}\n" for name, value in labels.items())).encode()


class FeatureDirectory(OwnedDirectory):
    """The feature files of one devhost, one for each backend, in a directory shared with other writers."""

    def path(self, backend: str) -> Path:
        """The file for one backend's labels."""
        return self.directory / f"{self.prefix}{backend}"  # backends' names have no underscore

    def write(self, backend: str, labels: Mapping[str, str]) -> bool:
        """Writes these labels to a backend's file, or removes it if there are none. True if it changed.

        Raises ``ValueError`` if the file would be too large for Node Feature Discovery.
        """
        name = self.path(backend).name
        if not labels:
            return self.remove_file(name)
        data = render(labels)
        if len(data) > MAX_FILE:
            raise ValueError(f"{len(data)} bytes of labels are more than the {MAX_FILE} that are read")
        return self.write_file(name, data)

    def sweep(self, keep: Collection[str]) -> None:
        """Removes the own files of all but some backends, and unfinished files of an earlier run."""
        for name in self.names():
            if name.removeprefix(self.prefix) not in keep:
                self.remove_file(name)
        self.remove_unfinished()


_Basis = tuple[FeatureDirectory, BackendRunner, list[Device], Offered, Collection[object]]
"""The inputs of a file and its directory; while they are the same, there is nothing to do."""


@frozen
class LabelFile:
    """The labels of one backend: the file, their number, and what is wrong, or an empty text."""

    file: Path
    count: int = 0
    reason: str = ""


class NodeLabels:
    """Writes the files of the backends that run, and removes those of others.

    With ``write`` false, files written before are removed. For ``tag`` see
    :func:`devhost.allocation.owned_files.owner`.
    """

    def __init__(
        self,
        directory: Path,
        write: bool,
        scanners: Mapping[str, Scanner],
        changed: Callable[[], None],
        tag: str,
        metrics: Metrics,
        *,
        timing: Timing,
    ) -> None:
        self.files: dict[str, LabelFile | None] = {}
        """By backend, of those with labels, while files are wanted; ``None`` until there was one."""
        self._scanners = scanners
        self._plan = Plan()
        self._changed = changed
        self._metrics = metrics
        self._files = OwnedFiles(FeatureDirectory, directory, "labels", HINT, tag)
        self._place = self._files.of(directory)
        self._write = write
        self._timing = timing
        self._resync_at = 0.0
        self._written: dict[str, _Basis] = {}
        self._missing: dict[str, Incident] = {}
        self.removal = FailureLog(
            log, "cannot remove a file with labels", "files with labels can be removed again"
        )
        """Why a file stays that nothing needs, so that the node has its labels."""
        loop = Reconciler(self.refresh, backoff=Backoff(2.0, 60.0), settle=timing.labels_settle)
        self.run, self.wake = loop.run, loop.wake
        """Brings all files up to date soon after it is woken, and at a slow interval, until cancelled."""

    def follow(self, directory: Path, write: bool) -> None:
        """Writes files to ``directory`` from now on, or none; files written before are removed."""
        self._files.move(directory)
        self._place = self._files.of(directory)
        self._write = write
        self._written.clear()
        self.wake()

    def offer(self, plan: Plan) -> None:
        """Devices, or the resources that have them, may have changed."""
        self._plan = plan
        self.wake()

    async def refresh(self) -> float:
        """Brings all files up to date; returns the seconds until the next time.

        Raises ``Retry`` if a file could not be written or removed, which has been logged.
        """
        if (now := LOOP_CLOCK.time()) >= self._resync_at:
            self._resync_at = now + self._timing.labels_resync
            self._written.clear()
        named = {
            name: scanner
            for name, scanner in self._scanners.items()
            if self._write and scanner.runner.abilities.labels
        }
        for name in named.keys() - self.files.keys():
            self._metrics.begin("labels", name)
            self.files[name] = None
        for name in self.files.keys() - named.keys():
            self._metrics.end("labels", name)
            del self.files[name]
            self._written.pop(name, None)
            self._missing.pop(name, None)
            self._changed()
        succeeded = await self._sweep(frozenset(named))
        offered = _offered(self._plan) if named else {}  # it reads every device
        settled = True
        for name, scanner in named.items():
            if scanner.condition.last_scan is None:
                settled = False  # labels from before devhost started, or before other options, stay
            else:
                succeeded &= await self._label(name, scanner, offered.get(name, {}))
        if not succeeded:
            raise Retry
        return self._timing.labels_resync if settled else self._timing.labels_pending

    def close(self) -> None:
        """Lets the thread end, without waiting for it; removes no file."""
        self._files.close()

    async def _label(self, name: str, scanner: Scanner, offered: Offered) -> bool:
        """Writes the labels of one backend; false if that failed."""
        place, devices, runner = self._place, list(scanner.devices.values()), scanner.runner
        basis = (place, runner, devices, offered, runner.context.entries)
        if self._written.get(name) == basis:
            return True
        try:
            found = await runner.call("links", None, runner.labels, devices, offered)
            labels, wrong = sorted_out(found.items())
            changed = await self._files.run(f"write {place.path(name)}", place.write, name, labels)
        except (BackendError, EnvironmentFailure, ValueError) as error:
            self._metrics.add("label_failures_total", name)
            before = self.files.get(name)
            self._show(name, LabelFile(place.path(name), before.count if before else 0, str(error)))
            return False
        self._metrics.add("label_files_total", name, by=changed)
        self._written[name] = basis
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        reason = f"no label: {'; '.join(wrong[:3])}{more}" if wrong else ""
        self._show(name, LabelFile(place.path(name), len(labels), reason))
        return True

    def _show(self, name: str, file: LabelFile) -> None:
        before = self.files.get(name)
        if file == before:
            return
        self.files[name] = file
        missing = self._missing.setdefault(name, Incident())
        if file.reason:
            if missing.news(file.reason):
                log.warning("labels are missing", backend=name, reason=file.reason)
        else:
            missing.over()
            log.info("labels written", backend=name, file=str(file.file), labels=file.count)
        self._changed()

    async def _sweep(self, keep: frozenset[str]) -> bool:
        """Removes files that are no longer wanted; false if that failed."""
        try:
            for place in self._files.former:
                await self._files.run(f"remove files from {place.directory}", place.sweep, frozenset())
                self._files.forget(place)
            place = self._place
            await self._files.run(f"remove files from {place.directory}", place.sweep, keep)
        except EnvironmentFailure as error:
            self.removal.failed(str(error))
            return False
        self.removal.succeeded()
        return True


def _offered(plan: Plan) -> dict[str, dict[str, dict[str, int]]]:
    """The number of replicas of each device in each resource, by backend."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for resource in plan.resources.values():
        devices = found.setdefault(resource.entry.backend, {})
        for device, replicas, _ in resource.offers:
            devices.setdefault(device.id, {})[resource.name] = replicas
    return found
