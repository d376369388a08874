"""The verbs probe: opens each device through libibverbs (pyverbs), asks it, and closes it at once.

Sysfs says what the driver believes; opening a device shows that a program can really use it. pyverbs is
optional (Debian and Ubuntu package it as python3-pyverbs). It keeps Python's global lock during each call, so
a device whose firmware hangs would stop the whole process: the probe runs in a process of its own, which also
keeps 10 MB out of this one, and which is killed when it does not answer. Nothing stays open: an open context
blocks the kernel's removal of the device.
"""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from devhost.backend import HEALTHY, Device, Health, unhealthy

from .options import VerbsProbe

DEADLINE = 5.0
"""Seconds in which all devices of one probe must have answered; the core gives a whole probe 10."""

HUNG = 2.0
"""Seconds without an answer after which a device counts as hung, and not only as the last in a long row."""

_PROGRAM = Path(__file__).with_name("verbs_child.py")

_GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.EBUSY})
"""What opening says while the driver takes the device away: whether it is there is for sysfs to tell."""

_FORBIDDEN = frozenset({errno.EPERM, errno.EACCES})

_hung: list[subprocess.Popen[str]] = []
"""Probes that could not be killed because a call into the kernel holds them; no further one is started."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the probe found of one device.

    ``health`` is ``None`` when it found nothing that speaks for or against the device: it went away, this
    process may not open it, libibverbs does not know it; ``note`` then says which.
    """

    health: Health | None
    note: str = ""


def available() -> bool:
    """Whether pyverbs is installed for the Python that runs; it is not imported."""
    return find_spec("pyverbs") is not None


def probe(names: Sequence[str], deadline: float = DEADLINE) -> Mapping[str, Verdict]:
    """Opens, asks and closes each RDMA device (``mlx5_0``). Never raises; blocks at most ``deadline`` + 1 s.

    A device that its turn did not come to, because one before it hung, is not in the answer.
    """
    if not names:
        return {}
    _hung[:] = [child for child in _hung if child.poll() is None]
    if _hung:
        return _all(names, "an earlier probe still hangs in the kernel")
    # -P: this package's own directory must not shadow modules
    command = [sys.executable, "-P", str(_PROGRAM), *names]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            text=True,
            errors="replace",
        )
    except OSError as error:
        return _all(names, f"the probe cannot be started: {error.strerror}")
    try:
        output, complaint = child.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        now = time.monotonic()
        return judge(_end(child), now)
    verdicts = judge(output)
    if child.returncode:
        return _all(names, f"pyverbs cannot be used: {_last_words(complaint, child.returncode)}") | verdicts
    return verdicts


def judge(output: str, now: float = 0.0) -> dict[str, Verdict]:
    """The verdicts in what the probing process wrote, one JSON object per line; other lines are left out.

    Args:
        now: the monotonic clock when it was given up: a device that it then waited for has hung.
    """
    verdicts: dict[str, Verdict] = {}
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
            verdicts[name] = Verdict(unhealthy(f"verbs did not answer within {now - since:.0f} s"))
    return verdicts


def _verdict(answer: Mapping[str, Any]) -> Verdict:
    if "error" in answer:
        code = answer.get("errno")
        text = " ".join(str(answer["error"]).split())[:200]
        if code in _GONE:
            return Verdict(None, note=f"it is going away: {text}")
        if code in _FORBIDDEN:
            return Verdict(None, note=f"devhost may not open it: {text}")
        what = "cannot be opened" if answer.get("step") == "open" else "does not answer"
        return Verdict(unhealthy(f"{what}: {text}"))
    if "ports" not in answer:
        return Verdict(None, note="libibverbs does not know it")
    return Verdict(HEALTHY)


def _all(names: Sequence[str], note: str) -> dict[str, Verdict]:
    return dict.fromkeys(names, Verdict(None, note=note))


def _last_words(complaint: str, status: int) -> str:
    """Why a probe failed: the last line it wrote, else the signal or the status it ended with."""
    lines = complaint.strip().splitlines()
    if lines:
        return lines[-1][:200]
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _end(child: subprocess.Popen[str]) -> str:
    """Kills a probe and gives back what it wrote; one that the kernel holds is left behind."""
    child.kill()
    try:
        return child.communicate(timeout=1.0)[0]
    except subprocess.TimeoutExpired as expired:
        _hung.append(child)
        return _so_far(expired.stdout)


def _so_far(output: object) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else str(output or "")


class DeepProbe:
    """Asks devices through pyverbs, if the options want it and it is there. Used by one thread."""

    def __init__(self, wish: VerbsProbe, log: logging.Logger) -> None:
        self._wish = wish
        self._log = log
        self._available: bool | None = None
        self._notes: dict[str, str] = {}

    def probe(self, devices: Sequence[Device], names: Mapping[str, str]) -> Mapping[str, Health]:
        """What opening each device showed, by id; nothing of those that it showed nothing of.

        Args:
            names: the main RDMA device of each device that is here, by id.
        """
        asked = {names[device.id]: device.id for device in devices if device.id in names}
        if not asked or not self._is_available():
            return {}
        found = {}
        for name, verdict in probe(list(asked)).items():
            if verdict.note and self._notes.get(name) != verdict.note:
                self._log.info("%s is judged by sysfs alone: %s", name, verdict.note)
            self._notes[name] = verdict.note
            if verdict.health is not None and name in asked:
                found[asked[name]] = verdict.health
        self._notes = {name: note for name, note in self._notes.items() if name in asked}
        return found

    def _is_available(self) -> bool:
        if self._available is None:
            self._available = self._wish is not VerbsProbe.NEVER and available()
            if self._wish is VerbsProbe.ALWAYS and not self._available:
                self._log.warning(
                    "pyverbs is not installed: ports are judged by sysfs alone, "
                    "and an adapter whose firmware no longer answers counts as healthy"
                )
        return self._available
