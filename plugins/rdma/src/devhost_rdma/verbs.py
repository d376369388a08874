"""The verbs probe: opens each device through libibverbs (pyverbs), queries it, and closes it at once.

sysfs shows the driver's view; opening a device shows that programs can use it. pyverbs is optional (Debian
and Ubuntu package it as python3-pyverbs). It keeps Python's global lock during each call, so a device with
hanging firmware would stop the whole process. The probe therefore runs in a separate process, which is killed
if it does not answer, and which saves 10 MB in this one. No device stays open: an open context blocks its
removal.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from devhost.backend import HEALTHY, Device, Health, process, unhealthy
from devhost.backend.frozen import frozen

HUNG = 2.0
"""Seconds without an answer after which a device counts as hung; before, its turn came too late."""

GRACE = 1.0
"""Seconds for a killed probe to end."""

_PROGRAM = Path(__file__).with_name("verbs_child.py")

_GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.EBUSY})
"""Errors of opening while the driver removes the device: sysfs shows whether it exists."""

_FORBIDDEN = frozenset({errno.EPERM, errno.EACCES})

_LEFTOVERS: list[process.Leftover] = []
"""Probes that hang in a system call; while there is one, no other is started."""


class VerbsProbe(StrEnum):
    """When devices are opened through pyverbs."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@frozen
class ProbeResult:
    """The result of probing one device.

    ``health`` is ``None`` if the result is inconclusive: the device disappeared, permission was denied, or
    libibverbs does not know it. ``note`` then has the reason.
    """

    health: Health | None
    note: str = ""


class Verbs:
    """Opens devices through pyverbs, in a process for each probe.

    All devices of one probe must answer within ``deadline`` seconds; the core gives a probe 10. ``python`` is
    the command of the probing program, which ``run`` runs (see :func:`devhost.backend.process.run`).
    ``leftovers`` are the processes that could not be killed, ``clock`` is the monotonic clock of the probing
    process.
    """

    def __init__(
        self,
        *,
        deadline: float = 5.0,
        python: Sequence[str] = tuple(process.python(_PROGRAM)),
        leftovers: list[process.Leftover] = _LEFTOVERS,
        run: Callable[..., process.Result] = process.run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline = deadline
        self._command = python
        self._leftovers = leftovers
        self._run = run
        self._clock = clock

    @property
    def is_installed(self) -> bool:
        """Whether pyverbs is installed for the Python that runs; it is not imported."""
        return find_spec("pyverbs") is not None

    def probe(self, names: Sequence[str]) -> Mapping[str, ProbeResult]:
        """Opens, queries and closes each RDMA device (``mlx5_0``). Never raises.

        Blocks at most for the deadline and the grace. Devices after one that hangs are not in the answer.
        """
        if not names:
            return {}
        self._leftovers[:] = [child for child in self._leftovers if not child.is_gone]
        if self._leftovers:
            return _all(names, "an earlier probe still hangs in the kernel")
        try:
            result = self._run(
                [*self._command, *names], deadline=self._deadline, grace=GRACE, name="the verbs probe"
            )
        except process.NotStarted as error:
            return _all(names, f"the probe cannot be started: {os.strerror(error.errno)}")
        except process.TimedOut as error:
            now = self._clock()
            if error.leftover is not None:
                self._leftovers.append(error.leftover)
                now -= GRACE
            return judge(error.output.decode(errors="replace"), now)
        except process.ProcessError as error:
            return _all(names, error.message)
        verdicts = judge(result.output.decode(errors="replace"))
        if result.failure:
            return _all(names, f"pyverbs cannot be used: the probe {result.failure}") | verdicts
        return verdicts


def judge(output: str, now: float = 0.0) -> dict[str, ProbeResult]:
    """The verdicts in the output of the probing process, one JSON object per line; other lines are ignored.

    ``now`` is when the process was killed, in monotonic seconds.
    """
    verdicts: dict[str, ProbeResult] = {}
    asked: dict[str, float] = {}
    for line in output.splitlines():
        try:
            answer: dict[str, Any] = json.loads(line)
            name = str(answer["name"])
            if "since" in answer:
                asked[name] = float(answer["since"])
            else:
                verdicts[name] = _verdict(answer)
        except (ValueError, TypeError, KeyError):
            continue  # the last line of a process that was killed
    for name, since in asked.items():
        if name not in verdicts and now - since >= HUNG:
            verdicts[name] = ProbeResult(unhealthy(f"verbs did not answer within {now - since:.0f} s"))
    return verdicts


def _verdict(answer: Mapping[str, Any]) -> ProbeResult:
    if "error" in answer:
        code = answer.get("errno")
        text = " ".join(str(answer["error"]).split())[:200]
        if code in _GONE:
            return ProbeResult(None, note=f"it is going away: {text}")
        if code in _FORBIDDEN:
            return ProbeResult(None, note=f"permission denied: {text}")
        what = "cannot be opened" if answer.get("step") == "open" else "does not answer"
        return ProbeResult(unhealthy(f"{what}: {text}"))
    if "ports" not in answer:
        return ProbeResult(None, note="libibverbs does not know it")
    return ProbeResult(HEALTHY)


def _all(names: Sequence[str], note: str) -> dict[str, ProbeResult]:
    return dict.fromkeys(names, ProbeResult(None, note=note))


class VerbsHealth:
    """Probes devices through pyverbs, if enabled and installed. Used by one thread."""

    def __init__(self, mode: VerbsProbe, log: logging.Logger, verbs: Verbs | None = None) -> None:
        self._mode = mode
        self._verbs = verbs or Verbs()
        self._log = log
        self._available: bool | None = None
        self._notes: dict[str, str] = {}

    def probe(self, devices: Sequence[Device], names: Mapping[str, str]) -> Mapping[str, Health]:
        """The health of each device by id, without inconclusive results.

        ``names`` are the main RDMA devices by id.
        """
        asked = {names[device.id]: device.id for device in devices if device.id in names}
        if not asked or not self._is_available():
            return {}
        found = {}
        for name, verdict in self._verbs.probe(list(asked)).items():
            if verdict.note and self._notes.get(name) != verdict.note:
                self._log.info("only sysfs shows the health of %s: %s", name, verdict.note)
            self._notes[name] = verdict.note
            if verdict.health is not None and name in asked:
                found[asked[name]] = verdict.health
        self._notes = {name: note for name, note in self._notes.items() if name in asked}
        return found

    def _is_available(self) -> bool:
        if self._available is None:
            self._available = self._mode is not VerbsProbe.NEVER and self._verbs.is_installed
            if self._mode is VerbsProbe.ALWAYS and not self._available:
                self._log.warning(
                    "pyverbs is not installed: adapters whose firmware hangs count as healthy "
                    "(only sysfs shows the health of ports)"
                )
        return self._available
