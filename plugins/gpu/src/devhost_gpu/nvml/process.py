"""One run of the program that uses NVML (:mod:`.child`), and the requests to it.

NVML is never loaded into devhost's own process. So a hanging call can be killed with its process, a new
driver gets the matching library, the driver can be unloaded once the process has ended, and a crash of the
library is an ordinary error.

A request waits for some time and then fails because there is no answer *yet*. It stays open, is not sent
again, and its late answer is an event. A GPU whose call hangs is missing in the answer. The process is killed
only if a request or a GPU makes no progress for ``Timings.hung``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devhost.backend.errors import BackendError
from devhost.backend.frozen import frozen, mutable
from devhost.backend.process import Ended, LineProcess, ProcessError, kill_group, python
from devhost_gpu.environment import DEFAULT, STANDARD, Environment, Timings

LINE_LIMIT = 1 << 20
"""Bytes of one line; the longest line for 16 GPUs with seven instances each has less than 50 000."""

_NAME = "the program that uses NVML"

_PROGRAM = Path(__file__).with_name("child.py")

Message = Mapping[str, Any]
"""One line of the program."""


class NotAsked(BackendError):
    """The program that uses NVML did not get the request."""


class Unanswered(BackendError):
    """There is no answer yet."""


class ErrorReply(BackendError):
    """NVML answered with an error: its number (``NVML_ERROR_…``) and text."""

    def __init__(self, code: int, text: str, prefix: str = "NVML: ") -> None:
        super().__init__(prefix + text)
        self.code = code


@frozen
class Reply:
    """An answer, and when its request was sent (monotonic seconds): the answer is not older than that."""

    since: float
    content: Message


@mutable
class _NvmlRequest:
    number: int
    since: float
    answer: Message | None = None
    answered: float = 0.0
    is_late: bool = False


class NvmlProcess(LineProcess):
    """A process that uses NVML. Methods may be called from any thread, and wait only as long as documented.

    For ``command`` see :func:`program`; ``NotStarted`` is raised if it cannot be started. ``on_event`` is
    called on the thread of the process with each event, with ``{"event": "late"}`` when an answer arrives for
    which no caller waits any longer, and with ``{"event": "ended"}`` once.
    """

    def __init__(
        self,
        command: Sequence[str],
        on_event: Callable[[Message], None],
        environment: Environment = STANDARD,
    ) -> None:
        self._now = environment.clock
        self._on_event = on_event
        self._timings = environment.timings
        self._changed = threading.Condition()
        self._open: dict[tuple[str, ...], _NvmlRequest] = {}
        self._count = 0
        self._waiting_for = ""
        self._waiting_since = self._progress = self._now()
        self._hung_gpu = ""
        kill, grace = environment.kill or kill_group, self._timings.grace
        super().__init__(command, name=_NAME, limit=LINE_LIMIT, grace=grace, kill=kill)

    @property
    def waiting_for(self) -> str:
        """The GPU that has been asked for longest without an answer; empty if there is none."""
        return self._waiting_for

    @property
    def hung_gpu(self) -> str:
        """The GPU whose call hung, if the process was ended for that; else empty."""
        return self._hung_gpu

    def ask(self, do: str, gpus: Sequence[str], patience: float, arguments: Message | None = None) -> Reply:
        """Sends a request, or continues to wait for the answer to the same one if it is open.

        ``gpus`` are the PCI addresses that it is about. Waits ``patience`` seconds; not at all if an earlier
        request had no answer in time. Raises ``Unanswered``, ``ErrorReply`` if NVML answered with an error,
        and ``Ended`` if the process has ended, or was ended because it made no progress.
        """
        key = (do, *gpus)
        with self._changed:
            request = self._open.get(key)
            if request is None or self._is_outdated(request):
                request = self._open[key] = self._send(do, gpus, arguments)
            if not any(other.is_late for other in self._open.values()):
                self._changed.wait_for(lambda: self.is_over or request.answer is not None, patience)
            if request.answer is not None:
                if self._open.get(key) is request:
                    del self._open[key]
                return Reply(request.since, _content(request.answer))
            request.is_late = True
        self.kill_if_hung()
        if self.is_over:
            raise Ended(self.failure or "NVML is released")
        raise Unanswered("NVML does not answer")

    def kill_if_hung(self) -> None:
        """Kills the process if it makes no progress with a request, or a GPU does not answer.

        Inexpensive otherwise.
        """
        with self._changed:
            since = [request.since for request in self._open.values() if request.answer is None]
            starts = [max(self._progress, min(since))] if since else []
            if self._waiting_for:
                starts.append(self._waiting_since)
            if self.is_over or not starts:
                return
            stuck = self._now() - min(starts)
            if stuck < self._timings.hung:
                return
            self._hung_gpu = self._waiting_for
        self.kill(f"NVML did not answer within {stuck:.0f} s")

    def end(self) -> None:
        """Releases the driver, without waiting; after ``Timings.grace`` the process is killed."""
        if self.is_over:
            return
        super().end()
        self._notify()
        # not a daemon: devhost must not end before the process, however long the driver takes
        try:
            threading.Thread(target=self.wait, args=(2 * self._timings.grace,), name="nvml-end").start()
        except RuntimeError:  # no thread can be started, so nothing would wait for it
            super().kill()

    def kill(self, reason: str | None = None) -> None:
        """Kills the process. Does not wait."""
        super().kill(reason)
        self._notify()

    def received(self, line: bytes) -> None:
        """Handles a line of the program."""
        try:
            message = json.loads(line)
        except ValueError:
            return
        if "waitingFor" in message:
            self._waiting_for = str(message["waitingFor"])
            self._waiting_since = self._progress = self._now()
        elif "id" in message:
            self._take_answer(message)
        elif message.get("event") == "unusable":
            self.kill(str(message["text"]))
        else:
            self._on_event(message)

    def ended(self) -> None:
        """Handles the end of the program."""
        self._notify()
        self._on_event({"event": "ended"})

    def _is_outdated(self, request: _NvmlRequest) -> bool:
        return request.answer is not None and self._now() - request.answered > self._timings.fresh

    def _send(self, do: str, gpus: Sequence[str], arguments: Message | None) -> _NvmlRequest:
        self._count += 1
        more = {} if arguments is None else {"with": arguments}
        with suppress(ProcessError):  # it has ended, which the caller finds out
            self.send(json.dumps({"id": self._count, "do": do, "gpus": list(gpus), **more}).encode())
        return _NvmlRequest(self._count, self._now())

    def _take_answer(self, message: Message) -> None:
        with self._changed:
            self._progress = self._now()
            request = next((one for one in self._open.values() if one.number == message["id"]), None)
            if request is None:
                return
            was_late, request.is_late = request.is_late, False
            request.answer, request.answered = message, self._progress
            self._changed.notify_all()
        if was_late:
            self._on_event({"event": "late"})

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def program(pynvml: str, library: str, timings: Timings = DEFAULT) -> list[str]:
    """The command that runs the program.

    ``pynvml`` is the directory that has the module, ``library`` the path of ``libnvidia-ml.so.1``; empty for
    the one that the loader finds.
    """
    names = ("compare", "overtake", "silence", "fresh", "event_wait", "exit_grace")
    durations = json.dumps({name: value for name, value in asdict(timings).items() if name in names})
    # without the installed packages the process is small and starts fast
    return python(_PROGRAM, pynvml, library, durations, packages=False)


def _content(message: Message) -> Message:
    if "error" in message:
        error = message["error"]
        raise ErrorReply(int(error["code"]), str(error["text"]))
    content: Message = message["ok"]
    return content
