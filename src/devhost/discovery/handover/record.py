"""The record of devices that containers have, so that a restart does not offer them unprepared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devhost.backend import trusted
from devhost.backend.errors import BackendError, BackendTimeout, EnvironmentFailure, one_line
from devhost.backend.files import make_directory, replace_file
from devhost.backend.frozen import frozen
from devhost.backend.incident import Incident
from devhost.backend.model import DeviceNode, Edits, Mount
from devhost.discovery.runner import check_edits
from devhost.runtime.log import get
from devhost.runtime.worker import FILE_DEADLINE, WorkerThread

log = get(__name__)

MAX_BYTES = 8 << 20
"""A larger record is not read."""


@frozen
class Given:
    """What a container, or a request of a claim, was given.

    ``tokens`` are empty for a claim; ``at`` is in monotonic seconds.
    """

    backend: str
    devices: frozenset[str]
    resource: str
    tokens: tuple[str, ...] = ()
    additions: Edits = Edits()
    at: float = -math.inf


@frozen
class HandedOver:
    """The ``used`` devices of those that were given together; ``released`` is whether hooks are due."""

    given: Given
    used: Sequence[str]
    released: bool


class HandoverRecord:
    """Reads and writes the record on a thread. ``file`` is ``None`` for no record."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._worker = WorkerThread("handover-record", "the record of used devices")
        self._failure = Incident()

    async def read(self) -> Sequence[HandedOver]:
        """The record of an earlier run; none if it cannot be read, which is logged."""
        if self._file is None:
            return ()
        try:
            return await self._worker.call(FILE_DEADLINE, _read, self._file)
        except FileNotFoundError:
            return ()
        except (BackendTimeout, EnvironmentFailure, OSError) as error:
            reason = one_line(error)
        except (BackendError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            reason = "it is damaged"
        log.error("the record of used devices is not read", file=str(self._file), reason=reason)
        return ()

    async def write(self, rows: Sequence[HandedOver]) -> None:
        """Replaces the record; each failure is logged once."""
        if self._file is None:
            return
        try:
            await self._worker.call(FILE_DEADLINE, _write, self._file, rows)
        except (BackendTimeout, OSError) as error:
            if self._failure.news(one_line(error)):
                log.error("used devices are not recorded", file=str(self._file), reason=one_line(error))
        else:
            self._failure.over()

    def close(self) -> None:
        """Ends the thread; does not wait for it."""
        self._worker.close()


def _read(file: Path) -> list[HandedOver]:
    rows = json.loads(trusted.content(file, MAX_BYTES))["given"]
    return [HandedOver(_given(row), _texts(row["used"]), bool(row["released"])) for row in rows]


def _write(file: Path, rows: Sequence[HandedOver]) -> None:
    content = [{"used": one.used, "released": one.released, **_row(one.given)} for one in rows]
    make_directory(file.parent, 0o700)
    replace_file(file, json.dumps({"given": content}).encode(), f".{file.stem}-", 0o600)


def _row(given: Given) -> dict[str, Any]:
    added = given.additions
    return {
        "backend": given.backend,
        "devices": sorted(given.devices),
        "resource": given.resource,
        "tokens": given.tokens,
        "nodes": [asdict(node) for node in added.nodes],
        "mounts": [asdict(mount) for mount in added.mounts],
        "env": dict(added.env),
        "annotations": dict(added.annotations),
        "cdiDevices": added.cdi_devices,
    }


def _given(row: Mapping[str, Any]) -> Given:
    additions = Edits(
        nodes=tuple(DeviceNode(**one) for one in row["nodes"]),
        mounts=tuple(Mount(**one) for one in row["mounts"]),
        env=_pairs(row["env"]),
        annotations=_pairs(row["annotations"]),
        cdi_devices=_texts(row["cdiDevices"]),
    )
    check_edits(additions, "it")
    backend, resource = _texts((row["backend"], row["resource"]))
    return Given(backend, frozenset(_texts(row["devices"])), resource, _texts(row["tokens"]), additions)


def _pairs(values: Mapping[Any, Any]) -> dict[str, str]:
    return dict(zip(_texts(values), _texts(values.values()), strict=True))


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    """These texts. Raises ``TypeError`` if one is something else."""
    found = tuple(values)
    if isinstance(values, str) or not all(isinstance(one, str) for one in found):
        raise TypeError("not texts")
    return found
