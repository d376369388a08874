"""One run of the program that uses NVML (:mod:`.child`), and the questions put to it.

NVML is never loaded into devhost's own process: a call that hangs can then be ended with its process, a new
driver meets a fresh library, a driver can be unloaded once the process has ended, and a crash of the library
is an error like any other.

Whoever asks waits for a while and is then told that there is no answer *yet*; the question stays put, is not
put a second time, and its late answer is an event. A GPU whose call hangs is missing in the answer. Only a
question that has been open for :data:`LIMIT`, or such a GPU's, ends the process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devhost.backend.errors import BackendError

LIMIT = 20.0
"""Seconds without progress until a question, or a GPU, ends the process: without persistence mode a driver
may take many of them to wake up a GPU."""

FRESH = 5.0
"""Seconds for which an answer that came too late for whoever asked is still good for the next one."""

GOODBYE = 3.0
"""Seconds the process may take to let the driver go before it is killed."""

LINE_LIMIT = 1 << 20
"""Bytes of one line; the longest told of 16 GPUs with seven instances each is below 50 000."""

_PROGRAM = Path(__file__).with_name("child.py")

Message = Mapping[str, Any]
"""One line of the program's."""


class Unanswered(BackendError):
    """There is no answer yet."""


class Ended(BackendError):
    """The process has ended, or there is none."""


class Refused(BackendError):
    """NVML answered with an error: its number (``NVML_ERROR_…``) and words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"NVML: {text}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and when its question was put (monotonic seconds): what it says is no older."""

    since: float
    content: Message


@dataclass(slots=True)
class _Question:
    number: int
    since: float
    answer: Message | None = None
    answered: float = 0.0
    is_late: bool = False


class Session:
    """A process that uses NVML. Every method may be called from any thread, and none waits for the driver
    longer than it says.

    Args:
        command: what to run.
        heard: called, on a thread of its own, with each event, and with ``{"event": "late"}`` when an answer
            has come that somebody has stopped waiting for, and ``{"event": "ended"}`` once.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, command: Sequence[str], heard: Callable[[Message], None]) -> None:
        self._heard = heard
        self._news = threading.Condition()
        self._open: dict[tuple[str, ...], _Question] = {}
        self._count = 0
        self._at = ""
        self._at_since = self._moved = time.monotonic()
        self.why = ""
        """Why the process has ended without being asked to."""
        self.hung_at = ""
        """The GPU whose call hung, where that is why."""
        self._is_over = False
        self._socket, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                list(command),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # Ctrl-C is for devhost, which ends it in its turn
            )
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._thread = threading.Thread(target=self._read, name="nvml-answers", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._is_over

    @property
    def is_gone(self) -> bool:
        """Whether the process does not exist any more. One that the kernel holds stays until it lets go."""
        return self.process.poll() is not None

    def ask(self, do: str, gpus: Sequence[str], patience: float) -> Reply:
        """Puts a question, or waits on for the answer to the same one that was put before.

        Args:
            do: a request of the program's.
            gpus: the PCI addresses it is about.
            patience: seconds to wait. Where an earlier asker's have passed without an answer, none are.

        Raises:
            Unanswered: not yet.
            Refused: NVML answered with an error.
            Ended: the process has ended, or was ended because it made no progress.
        """
        key = (do, *gpus)
        with self._news:
            question = self._open.get(key)
            if question is None or (question.answer and time.monotonic() - question.answered > FRESH):
                question = self._open[key] = self._put(do, gpus)
            if not any(other.is_late for other in self._open.values()):
                self._news.wait_for(lambda: self._is_over or question.answer is not None, patience)
            if question.answer is not None:
                if self._open.get(key) is question:
                    del self._open[key]
                return Reply(question.since, _content(question.answer))
            question.is_late = True
        self.hurry()
        if self._is_over:
            raise Ended(self.why or "NVML is let go")
        raise Unanswered("NVML does not answer")

    def hurry(self) -> None:
        """Kills the process if it makes no progress with a question, or a GPU does not answer.

        Costs nothing otherwise.
        """
        with self._news:
            since = [question.since for question in self._open.values() if question.answer is None]
            starts = [max(self._moved, min(since))] if since else []
            if self._at:
                starts.append(self._at_since)
            if self._is_over or not starts:
                return
            stuck = time.monotonic() - min(starts)
            if stuck < LIMIT:
                return
            self.why, self.hung_at = f"NVML did not answer within {stuck:.0f} s", self._at
        self.kill()

    def end(self) -> None:
        """Lets the driver go, without waiting; after :data:`GOODBYE` the process is killed."""
        with self._news:
            if self._is_over:
                return
            self._is_over = True
            self._news.notify_all()
        _shut(self._socket, socket.SHUT_WR)
        # no daemon: devhost does not end before it, however much the driver takes its time
        threading.Thread(target=self._see_off, name="nvml-goodbye").start()

    def wait_gone(self, patience: float) -> bool:
        """Waits until the process does not exist any more."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _put(self, do: str, gpus: Sequence[str]) -> _Question:
        self._count += 1
        line = json.dumps({"id": self._count, "do": do, "gpus": list(gpus)}).encode() + b"\n"
        with suppress(OSError):  # then the other end has gone, which the reader finds out
            self._socket.sendall(line)  # a few hundred bytes: they always fit
        return _Question(self._count, time.monotonic())

    def kill(self) -> None:
        """Ends the process, whatever it does. Does not wait."""
        if not self.is_gone:
            self.process.send_signal(signal.SIGKILL)
        _shut(self._socket, socket.SHUT_RDWR)
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def _see_off(self) -> None:
        if not self.wait_gone(GOODBYE):
            self.kill()
            self.wait_gone(GOODBYE)

    def _read(self) -> None:
        rest = b""
        while True:
            try:
                data = self._socket.recv(65536)
            except OSError:
                data = b""
            if not data or len(rest) > LINE_LIMIT:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(line)
        self._finish()

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return
        if "at" in message:
            self._at = str(message["at"])
            self._at_since = self._moved = time.monotonic()
        elif "id" in message:
            self._take_answer(message)
        elif message.get("event") == "unusable":
            self.why = str(message["text"])
        else:
            self._heard(message)

    def _take_answer(self, message: Message) -> None:
        with self._news:
            self._moved = time.monotonic()
            question = next((one for one in self._open.values() if one.number == message["id"]), None)
            if question is None:
                return
            was_late, question.is_late = question.is_late, False
            question.answer, question.answered = message, self._moved
            self._news.notify_all()
        if was_late:
            self._heard({"event": "late"})

    def _finish(self) -> None:
        """The other end is closed: the process has ended, or will at once."""
        if not self.wait_gone(GOODBYE):
            self.kill()
        self._socket.close()
        with self._news:
            status = self.process.poll()
            if not self.why and not self._is_over:
                how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
                self.why = f"the program that uses NVML ended with {how}"
            self._is_over = True
            self._news.notify_all()
        self._heard({"event": "ended"})


def program(pynvml: str, library: str) -> list[str]:
    """The command that runs the program.

    Args:
        pynvml: the directory that has the module.
        library: path of ``libnvidia-ml.so.1``; empty for the one that the loader finds.
    """
    # -I -S: nothing of this environment but the interpreter, which keeps it small and quick
    command = [sys.executable, "-I", "-S", os.fspath(_PROGRAM), pynvml]
    return [*command, library] if library else command


def _content(message: Message) -> Message:
    if "error" in message:
        error = message["error"]
        raise Refused(int(error["code"]), str(error["text"]))
    content: Message = message["ok"]
    return content


def _shut(end: socket.socket, how: int) -> None:
    with suppress(OSError):  # it may be closed already
        end.shutdown(how)
