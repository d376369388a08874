"""Keeps one process that uses NVML running, and replaces it when the machine has changed.

A new driver, another library, a GPU that was bound or unbound, or one that must be released needs a new
process, because NVML looks for GPUs and for its files only when it is loaded.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from devhost.backend import Context
from devhost.backend.backoff import Backoff
from devhost.backend.errors import BackendError
from devhost.backend.frozen import frozen
from devhost.backend.process import Ended, NotStarted
from devhost_gpu.environment import STANDARD, Environment

from . import reports
from .library import find_library, missing_reason
from .process import ErrorReply, Message, NotAsked, NvmlProcess, Reply, Unanswered, program


def binding() -> str:
    """The directory with the module ``pynvml``, which is not imported; empty if it is not installed."""
    try:
        spec = find_spec("pynvml")
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.origin:
        return ""
    place = Path(spec.origin).parent
    return os.fspath(place.parent if spec.submodule_search_locations else place)


def library_identity(path: str) -> tuple[int, int, int] | None:
    """Identifies one installation of the library; ``None`` for the loader's own."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a plain string path
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


LIBRARY_NOT_FOUND = 12
"""``NVML_ERROR_LIBRARY_NOT_FOUND``."""

_UNUSABLE = "NVML cannot be used now"

MOST_STRAYS = 4
"""The number of processes that cannot be killed, because the kernel holds them, at which no other is
started."""


@frozen
class Scope:
    """The driver and the GPUs that a process is for. When they change, the process is replaced.

    ``gpus`` are PCI addresses of GPUs to open, each with the inode of its directory; ``driver`` is the
    version of the driver that is loaded.
    """

    gpus: tuple[tuple[str, int], ...] = ()
    driver: str = ""

    @property
    def addresses(self) -> list[str]:
        """The PCI addresses alone."""
        return [address for address, _ in self.gpus]


class NvmlClient:
    """Starts, asks and ends the program that uses NVML. Methods may be called from any thread.

    ``driver_root`` is where the driver's files are below the root of ``context``. ``on_event`` is called with
    every event of the program, on other threads. ``find_binding`` returns the directory that has ``pynvml``,
    empty if there is none.
    """

    def __init__(
        self,
        context: Context,
        driver_root: str,
        on_event: Callable[[Message], None],
        environment: Environment = STANDARD,
    ) -> None:
        self._context = context
        self._driver_root = driver_root
        self._on_event = on_event
        self._environment = environment
        self._timings, self._clock = environment.timings, environment.clock
        self._lock = threading.RLock()
        self._process: NvmlProcess | None = None
        self._scope = Scope()
        self._library: tuple[str, object] | None = None
        self._ending: list[NvmlProcess] = []
        self._alone: dict[str, NvmlProcess] = {}
        self._series: dict[str, NvmlProcess | None] = {}
        self._backoff = Backoff(self._timings.first_delay, self._timings.last_delay)
        self._not_before = 0.0
        self._problem = ""
        self._hung: list[str] = []
        self._is_closed = self._is_released = False

    @property
    def problem(self) -> str:
        """Why no request is possible, as a sentence; empty while requests are possible or not needed."""
        return self._problem

    @property
    def scope(self) -> Scope:
        """The scope of the process."""
        return self._scope

    @property
    def process(self) -> NvmlProcess | None:
        """The process that answers; ``None`` while there is none."""
        return self._process

    @property
    def processes(self) -> list[NvmlProcess]:
        """All processes that have not ended: the one that answers, those that end, and those for one GPU."""
        with self._lock:
            found = [*([self._process] if self._process else []), *self._ending, *self._alone.values()]
        return [process for process in found if not process.is_gone]

    @property
    def is_due(self) -> bool:
        """Whether it is time to retry after a failure, or after the driver was released for a while."""
        with self._lock:
            waits = self._process is None and bool(self._not_before)
            return waits and self._clock() >= self._not_before

    def ensure(self, scope: Scope) -> bool:
        """Makes sure that a process for this scope runs, if possible; whether it is a new one."""
        with self._lock:
            self._ending = [process for process in self._ending if not process.is_gone]
            self._is_released = not scope.gpus
            if not scope.gpus:
                self._end()
                self._succeeded()
                self._scope = scope
                return False
            found = find_library(self._context.root, self._driver_root)
            fits = scope == self._scope and self._library == _identified(found)
            if self._process is not None and self._process.is_over:
                self._give_up(self._process.failure or "")
            if self._process is not None and not fits:
                self._end()
            if not fits:
                self._not_before = min(self._not_before, self._clock() + self._timings.first_delay)
            self._scope, self._library = scope, _identified(found)
            if self._process is None and not self._is_closed and self._clock() >= self._not_before:
                self._start(found)
                return self._process is not None
            return False

    def ask(self, do: str, patience: float, arguments: Message | None = None) -> Reply:
        """Asks about all GPUs of the scope; a request about MIG instances has arguments.

        Raises ``Unanswered`` if there is no answer yet, ``Ended`` if there is no process, and ``ErrorReply``
        if NVML cannot be used; :attr:`problem` has the reason, and the process is ended.
        """
        process, scope = self._process, self._scope
        if process is None:
            raise Ended(self._problem or "NVML is released")
        try:
            answer = process.ask(do, scope.addresses, patience, arguments)
        except (ErrorReply, Ended) as error:
            failure: BackendError = error
            if isinstance(error, ErrorReply) and error.code == LIBRARY_NOT_FOUND:
                failure = Ended(missing_reason(self._context.root, self._driver_root))
            with self._lock:
                if self._process is process:
                    self._give_up(failure.message)
            raise failure from None
        with self._lock:
            if self._process is process:
                self._succeeded()
        return answer

    def ask_alone(self, address: str) -> reports.Check | reports.NvmlError | None:
        """Opens one GPU briefly, in a separate process, and checks its health; blocks during that.

        ``None`` if that failed.
        """
        patience = self._timings.alone
        try:
            answer = self._run_alone("probe", address, patience)
        except Unanswered:
            return reports.NvmlError(-1, f"no answer within {patience:.0f} s")
        except (ErrorReply, Ended):
            return None
        return None if answer is None else reports.checks(answer)[address]

    @contextmanager
    def series(self, address: str, patience: float) -> Iterator[None]:
        """One process answers all requests below about a GPU meanwhile: NVML takes time to start."""
        self._series[address] = None
        try:
            yield
        finally:
            if (process := self._series.pop(address)) is not None:
                process.end()
                process.wait(patience)

    def placements(self, address: str, patience: float) -> reports.Partitions:
        """The MIG profiles of a GPU, where their instances can be, and its GPU instances; blocks.

        Raises ``BackendError`` with the reason in one line, as the methods below.
        """
        return reports.partitions(self._change("placements", address, {}, patience))

    def create(
        self,
        address: str,
        placement: reports.Placement,
        patience: float,
        *,
        resume: bool = False,
        uuid: str = "",
    ) -> reports.Made:
        """Creates the GPU instance at a placement, and a compute instance that fills it; blocks.

        Args:
            address: the PCI address of the GPU.
            placement: where, and of which profile.
            patience: seconds that it may take. It is undecided afterwards whether the instance exists.
            resume: whether to complete an instance that is there, which is an error otherwise.
            uuid: that of the MIG device in it, if it is known; another one is neither completed nor created.

        Raises:
            BackendError: the reason, in one line; an ``ErrorReply`` with ``reports.UNMADE`` if nothing that
                is there was created by devhost, ``NotAsked`` if NVML was not asked.
        """
        wanted = {**asdict(placement), "resume": resume, "uuid": uuid}
        return reports.Made(**self._change("create", address, wanted, patience))

    def destroy(self, address: str, placement: reports.Placement, patience: float, *, uuid: str = "") -> bool:
        """Destroys the GPU instance at exactly a placement, and its compute instances; blocks.

        With ``uuid``, only an instance that has a MIG device with this UUID, or none. Returns whether there
        was one.

        Raises:
            BackendError: the reason, in one line.
        """
        wanted = {**asdict(placement), "uuid": uuid}
        return bool(self._change("destroy", address, wanted, patience)["destroyed"])

    def _change(self, do: str, address: str, arguments: Message, patience: float) -> Message:
        """The answer to a request about MIG instances, of a process for this request or :meth:`series` only.

        So it delays no check of health, and what hangs is killed.
        """
        try:
            found = self._run_alone(do, address, patience, arguments)
            if found is None:
                raise NotAsked(self._problem or _UNUSABLE)
            answer = found.get(address, {})
        except Unanswered:
            raise BackendError(f"NVML did not answer within {patience:.0f} s") from None
        if self._is_closed:  # the backend's next object may have read the record, and finds out what was done
            raise BackendError("NVML is released")
        if not answer:
            raise BackendError(self._problem or _UNUSABLE)
        if error := answer.get("error"):
            raise ErrorReply(int(error["code"]), str(error["text"]), prefix="")
        return dict(answer)

    def _run_alone(
        self, do: str, address: str, patience: float, arguments: Message | None = None
    ) -> Message | None:
        """The answer of a process for one request about one GPU.

        ``None`` if it cannot be started, or one of before still runs.
        """
        with self._lock:
            if arguments is not None and (self._is_closed or self._is_released):
                raise NotAsked("NVML is released")  # the driver may be about to be unloaded
            is_kept = arguments is not None and address in self._series
            process = self._series[address] if is_kept else None
            if process is None:
                command, before = self._command(), self._alone.get(address)
                if command is None or (before is not None and not before.is_gone):
                    return None
                try:
                    process = self._alone[address] = NvmlProcess(command, _ignore, self._environment)
                except NotStarted:
                    return None
                if is_kept:
                    self._series[address] = process
        try:
            return process.ask(do, [address], patience, arguments).content
        except Unanswered:
            process.kill()
            if is_kept:  # the next request of the series needs another process
                self._series[address], is_kept = None, False
            raise
        finally:
            if not is_kept:
                process.end()
                process.wait(patience)

    def pop_hung(self) -> list[str]:
        """The GPUs whose calls hung, so that the process was killed; each is returned once."""
        with self._lock:
            hung, self._hung = self._hung, []
        return hung

    def kill_if_hung(self) -> None:
        """Kills the process if a call hangs in it."""
        if (process := self._process) is not None:
            process.kill_if_hung()

    def release(self) -> None:
        """Releases the driver now, for a while."""
        with self._lock:
            self._end()
            self._not_before = self._clock() + self._timings.release

    def wait_released(self, patience: float) -> list[int]:
        """Waits until all processes have ended after :meth:`ensure` without GPUs; those that have not."""
        end = time.monotonic() + patience
        processes = self.processes
        for process in processes:
            process.end()
        return [one.pid for one in processes if not one.wait(max(0.0, end - time.monotonic()))]

    def close(self) -> None:
        """Releases the driver until :meth:`reopen`: a scan that is still running does not open it again."""
        with self._lock:
            self._is_closed = True
            self._end()

    def reopen(self) -> bool:
        """Undoes :meth:`close`; whether it was closed."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, False
        return was_closed

    def _start(self, found: str | None) -> None:
        command = self._command()
        if command is None:
            self._fail(
                missing_reason(self._context.root, self._driver_root)
                if found is None
                else "nvidia-ml-py is not installed: pip install nvidia-ml-py"
            )
        elif sum(not process.is_gone for process in self._ending) >= MOST_STRAYS:
            self._fail("earlier programs that used NVML still hang in the kernel")
        else:
            try:
                self._process = NvmlProcess(command, self._on_event, self._environment)
            except NotStarted as error:
                self._fail(error.message)

    def _command(self) -> list[str] | None:
        found = find_library(self._context.root, self._driver_root)
        directory = (self._environment.find_binding or binding)()
        return program(directory, found, self._timings) if found is not None and directory else None

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._ending.append(self._process)
            self._process = None

    def _give_up(self, problem: str) -> None:
        if self._process is not None and self._process.hung_gpu:
            self._hung.append(self._process.hung_gpu)
        self._end()
        self._fail(problem)

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._not_before = self._clock() + self._backoff.delay()

    def _succeeded(self) -> None:
        self._problem, self._not_before = "", 0.0
        self._backoff.reset()


def _identified(found: str | None) -> tuple[str, object] | None:
    return None if found is None else (found, library_identity(found))


def _ignore(message: Message) -> None:
    """Ignores an event: those of a process for a single request do not matter."""
