"""Runs :mod:`.child` and waits for its verdict, for so long and no longer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOODBYE = 2.0
"""Seconds for a process that was killed to end; a call into the kernel may hold it longer."""

_PROGRAM = Path(__file__).with_name("child.py")

# -I -S: nothing of this environment but the interpreter, which keeps it small and quick
COMMAND: Sequence[str] = (sys.executable, "-I", "-S", os.fspath(_PROGRAM))

Request = Mapping[str, Any]
"""What :mod:`.child` reads."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it went: ``step`` is the one that failed, empty when all is done.

    Beside those of the child there are ``start``, ``time`` and ``crash``, with ``text`` for the details.
    ``status`` has the driver's bits for an error of the hardware (OPAE only).
    """

    step: str = ""
    errno: int = 0
    status: int = 0
    text: str = ""


class Unkillable(Exception):
    """A call into the kernel holds the process, which was killed; ``is_gone`` tells whether it still does."""

    def __init__(self, is_gone: Callable[[], bool]) -> None:
        super().__init__("the process does not end")
        self.is_gone = is_gone


Run = Callable[[Request, Collection[int], float], Verdict]
"""Takes a request, the descriptors that the child needs, and seconds; see :func:`run`."""


def run(
    request: Request, descriptors: Collection[int], patience: float, command: Sequence[str] = COMMAND
) -> Verdict:
    """Has the child do something. Blocks for ``patience`` and :data:`GOODBYE` at most.

    Raises:
        Unkillable: it did not answer within ``patience`` seconds, and cannot be ended.
    """
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            pass_fds=tuple(descriptors),
            start_new_session=True,  # Ctrl-C is for devhost
        )
    except OSError as error:
        return Verdict("start", error.errno or 0)
    try:
        output, complaint = child.communicate(json.dumps(request).encode(), patience)
    except subprocess.TimeoutExpired:
        return _ended(child)
    if child.returncode:
        return Verdict("crash", text=_last_words(child.returncode, complaint))
    return judge(output)


def judge(output: bytes) -> Verdict:
    """The verdict in what the child wrote; anything but one line of JSON is a crash."""
    try:
        answer = json.loads(output)
        return Verdict(str(answer.get("step", "")), int(answer.get("errno", 0)), int(answer.get("status", 0)))
    except (ValueError, AttributeError, TypeError):
        return Verdict("crash", text="it answered nothing that can be read")


def _ended(child: subprocess.Popen[bytes]) -> Verdict:
    child.kill()
    try:
        child.wait(GOODBYE)
    except subprocess.TimeoutExpired:
        raise Unkillable(lambda: child.poll() is not None) from None
    finally:
        for stream in (child.stdin, child.stdout, child.stderr):
            assert stream is not None
            stream.close()
    return Verdict("time")


def _last_words(status: int, complaint: bytes) -> str:
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    lines = complaint.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else f"status {status}"
