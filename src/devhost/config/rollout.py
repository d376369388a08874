"""Whether a new file has left entries without devices that had some before: ``devhost run --patience``.

Then the node is not ready, so that a rollout which replaces pods together with their file stops at this node:
until the entries have devices, the time is over, or ``devhost accept``. The entries that had devices are in a
record in the state directory, because the process that served them is gone.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from devhost.backend import trusted
from devhost.backend.errors import DAMAGED, DevhostError, EnvironmentFailure, few
from devhost.backend.files import make_directory, replace_file
from devhost.backend.frozen import frozen
from devhost.planning.settings import Identity
from devhost.runtime.log import get, utc
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler
from devhost.runtime.tasks import Failing
from devhost.runtime.worker import STATE_HINT, FileWorker

log = get(__name__)

MAX_BYTES = 1 << 20
"""A larger record is neither written nor read. A file of the largest size makes about half of it."""

AGAIN = 60.0
"""Seconds after which a record that could not be written is written again."""

_VERSION = 1


@frozen
class Found:
    """An entry of the file in force: the number of its devices, and whether its backend has listed them."""

    identity: Identity
    devices: int
    known: bool


@frozen
class Good:
    """The last file that left no entry without devices, by its SHA-256, and the entries that had devices."""

    sha256: str
    entries: frozenset[Identity]


@frozen
class Trial:
    """A later file, and since when it is in force, in wall-clock seconds."""

    sha256: str
    since: float


@frozen
class Recorded:
    """What a record has."""

    good: Good | None = None
    trial: Trial | None = None


class RolloutRecord:
    """The record for one path of a configuration. Every method may block.

    ``directory`` is for the state of devhost, and made when first needed; ``None`` for no record.
    """

    def __init__(self, directory: Path | None, config: Path) -> None:
        path = os.fsencode(os.path.abspath(config))  # noqa: PTH100 - a ConfigMap's links lead elsewhere each time
        name = hashlib.sha256(path).hexdigest()[:12]
        self.file = None if directory is None else directory.absolute() / f"rollout-{name}.json"

    def read(self) -> Recorded:
        """What is in the file; nothing if there is none.

        Raises ``OSError`` if it cannot be read, ``DevhostError`` if it is damaged, too large, of another
        version, or others can change it.
        """
        if self.file is None:
            return Recorded()
        try:
            data = trusted.content(self.file, MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return Recorded()
        try:
            content = json.loads(data)
            if content["version"] != _VERSION:
                raise DevhostError(f"{self.file} is of another version of devhost")
            return _recorded(content)
        except DAMAGED:
            raise DevhostError(f"{self.file} is damaged") from None

    def write(self, recorded: Recorded) -> None:
        """Makes the file hold this, atomically. Raises ``OSError``."""
        if self.file is not None:
            make_directory(self.file.parent, 0o700)
            replace_file(self.file, _text(recorded), f".{self.file.stem}-", 0o600)


def _recorded(content: Mapping[str, Any]) -> Recorded:
    good, trial = content["good"], content["trial"]
    entries = frozenset((str(backend), str(name), int(n)) for backend, name, n in good["entries"])
    return Recorded(
        Good(str(good["sha256"]), entries),
        Trial(str(trial["sha256"]), float(trial["since"])) if trial else None,
    )


def _text(recorded: Recorded) -> bytes:
    good, trial = recorded.good, recorded.trial
    assert good is not None
    content = {
        "version": _VERSION,
        "good": {"sha256": good.sha256, "entries": sorted(good.entries)},
        "trial": {"sha256": trial.sha256, "since": trial.since} if trial else None,
    }
    return json.dumps(content, indent=1).encode()


class Rollout:
    """Follows the plans of one host. ``patience`` is in seconds; ``now`` returns wall-clock seconds."""

    def __init__(
        self,
        record: RolloutRecord,
        patience: float,
        changed: Callable[[], None],
        clock: Clock = LOOP_CLOCK,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.since = 0.0
        """When the file took effect that left entries without devices, in wall-clock seconds."""
        self._record = record
        self._patience = patience
        self._changed = changed
        self._now = now
        self._recorded = self._written = Recorded()
        self._latest: tuple[str, Sequence[Found]] = ("", ())
        self._losses: Sequence[str] = []
        self._read = False
        self._failures = FailureLog(
            log, "the rollout is not recorded", "the rollout is recorded again", file=record.file
        )
        self._worker = FileWorker("rollout", STATE_HINT)
        self._loop = Reconciler(self._pass, first=0.0, clock=clock)
        self.run = self._loop.run
        """Keeps the record, and ends the waiting when its time is over."""

    @property
    def file(self) -> Path | None:
        """The record of the entries that had devices."""
        return self._record.file

    @property
    def unrecorded(self) -> Failing | None:
        """Why the record cannot be written."""
        return self._failures.failing

    @property
    def reason(self) -> str:
        """Which entries have no devices since the new file, and until when that counts; else empty."""
        if not self._losses:
            return ""
        until = utc(self.since + self._patience)
        names = few(self._losses)
        return f"no devices since the new file: {names} (until {until}, or `devhost accept`)"

    async def read(self) -> None:
        """Reads once what an earlier process recorded. Call it before :meth:`follow`. Never fails."""
        if self._read:
            return
        self._read = True
        try:
            self._recorded = self._written = await self._worker.file("read the record", self._record.read)
        except DevhostError as error:
            self._failures.failed(str(error))

    def follow(self, sha256: str, entries: Sequence[Found]) -> None:
        """A plan was made for the file with this SHA-256, which is empty if it has none."""
        self._latest = sha256, entries
        self._judge()
        if self._recorded != self._written or self._losses:
            self._loop.wake()

    def accept(self) -> Sequence[str]:
        """Stops waiting for the entries without devices; their names."""
        names = self._losses
        if names:
            self._judge(accepted=True)
            self._loop.wake()
        return names

    def close(self) -> None:
        self._worker.close()

    def _judge(self, *, accepted: bool = False) -> None:
        before = self._losses
        sha256, entries = self._latest
        self._losses = self._lost(sha256, entries, accepted) if sha256 else []
        if self._losses != before:
            self._report(accepted)
            self._changed()

    def _lost(self, sha256: str, entries: Sequence[Found], accepted: bool) -> Sequence[str]:
        """The names of the entries without devices since the new file; records what is known now."""
        having = frozenset(one.identity for one in entries if one.devices)
        unknown = frozenset(one.identity for one in entries if not one.known)
        good, trial = self._recorded.good, self._recorded.trial
        if good is None or good.sha256 == sha256:
            kept = good.entries & unknown if good else frozenset()
            self._recorded = Recorded(Good(sha256, having | kept))
            return []
        now = self._now()
        if trial is None or trial.sha256 != sha256:
            trial = Trial(sha256, now)
        elif trial.since > now:  # the clock was set back
            trial = replace(trial, since=now)
        lost = [one for one in entries if one.identity in good.entries - having]
        if not lost or accepted or now >= trial.since + self._patience:
            self._recorded = Recorded(Good(sha256, having))
            return []
        self._recorded = Recorded(good, trial)
        self.since = trial.since
        return [one.identity[1] for one in lost if one.known]

    def _report(self, accepted: bool) -> None:
        if self._losses:
            log.warning("entries have no devices since the new file", reason=self.reason)
        elif self._recorded.trial is None:
            log.info("the new file is accepted", accepted=accepted)

    async def _pass(self) -> float | None:
        self._judge()
        if (recorded := self._recorded) != self._written and recorded.good is not None:
            try:
                await self._worker.file(f"write {self._record.file}", self._record.write, recorded)
            except EnvironmentFailure as error:
                self._failures.failed(str(error))
                return AGAIN
            self._written = recorded
            self._failures.succeeded()
        return self.since + self._patience - self._now() if self._losses else None
