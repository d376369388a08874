"""Runs programs in separate processes, with deadlines: once, or as workers that answer requests.

Vendor libraries hang, crash and take memory. In a separate process, a hanging call can be killed, a crash is
an ordinary error, and the memory is freed afterwards. There are three ways:

:func:`run`, :func:`run_async`
    run a program once and return what it wrote.
:class:`Worker`
    keeps a program running that answers requests, one JSON object per line. It starts with the first request,
    ends when it is idle, and starts again, with back-off, after it has failed.
:class:`LineProcess`
    is the base of a program with which lines are exchanged in both directions, for other protocols.

A program is killed with its process group, so the processes that it has started end with it. A process that a
call into the kernel holds cannot be killed. That is reported, and callers must not start more of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, NoReturn

from .backoff import Backoff
from .errors import BackendError, BackendTimeout
from .frozen import frozen
from .threads import NoThread, answered, start

OUTPUT_LIMIT = 1 << 20
"""Bytes of output that :func:`run` accepts, and of the longest line of a running program."""

ERROR_LIMIT = 16 * 1024
"""Bytes that are kept of the end of a program's standard error."""

GRACE = 2.0
"""Seconds for a killed process to end; a call into the kernel may hold it for longer."""

_POLL = 0.05
"""Seconds between checks of a process on systems without process descriptors (before Linux 5.3)."""

_CHUNK = 64 * 1024

_COMPILED = Path(__file__).parents[1] / "compiled.py"

Kill = Callable[["subprocess.Popen[bytes]"], None]
"""Kills a process; :func:`kill_group` unless a test wants one that survives."""

_Handler = Callable[[], bool | None]
"""Reads or writes what a pipe has now: true for something, ``None`` for nothing, false at the end."""


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process with its group, unless it was reaped: another process may have its id then."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


class ProcessError(BackendError):
    """A program in a separate process failed."""


class NotStarted(ProcessError):
    """The program cannot be started; ``errno`` is the system's number."""

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class OutputTooLarge(ProcessError):
    """The program wrote more than the limit, and was killed."""


class Ended(ProcessError):
    """The program has ended, so it does not answer."""


class TimedOut(ProcessError, BackendTimeout):
    """The program did not answer in time.

    ``output`` is what it had written. ``leftover`` is the process if it was killed and has not ended, else
    ``None``.
    """

    def __init__(self, message: str, output: bytes = b"", leftover: Leftover | None = None) -> None:
        super().__init__(message)
        self.output = output
        self.leftover = leftover


class Leftover:
    """A process that was killed and did not end, because a call into the kernel held it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended. Never blocks."""
        return self._process.poll() is not None


@frozen
class Result:
    """The output of a program that ended by itself, and its exit status.

    ``status`` is negative for a signal. ``errors`` is the end of its standard error.
    """

    status: int
    output: bytes = b""
    errors: bytes = b""

    @property
    def failure(self) -> str | None:
        """How it failed, as a clause; ``None`` for status 0."""
        return _ending(self.status, self.errors) if self.status else None


def python(program: Path | str, *arguments: str, packages: bool = True) -> list[str]:
    """The command that runs a Python file with the interpreter of this process.

    Compiled code is kept and used as that of modules is, which saves time and memory.

    Args:
        program: the file.
        arguments: its ``sys.argv[1:]``.
        packages: whether it can import installed packages. Without them it starts sooner and is smaller.
    """
    # -P: the directory of the file must not shadow modules. -I and -S: only the standard library.
    flags = ["-P"] if packages else ["-I", "-S"]
    # -I ignores PYTHONOPTIMIZE, and the image has only code that is compiled with it
    flags += ["-O"] * sys.flags.optimize
    return [sys.executable, *flags, os.fspath(_COMPILED), os.fspath(program), *arguments]


def run(
    command: Sequence[str],
    *,
    deadline: float,
    stdin: bytes = b"",
    descriptors: Collection[int] = (),
    name: str = "the program",
    limit: int = OUTPUT_LIMIT,
    grace: float = GRACE,
    kill: Kill = kill_group,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Runs a program to its end. Blocks for ``deadline`` and ``grace`` seconds at most.

    The program runs in ``/``, in a new process group, which is killed when the program has ended or the
    deadline has passed: nothing that it started in that group keeps running.

    Args:
        command: the program and its arguments, see :func:`python`.
        deadline: seconds that it may take.
        stdin: its standard input.
        descriptors: open files that it inherits, with the same numbers.
        name: the program's name in errors.
        limit: bytes that it may write to standard output.
        grace: seconds for it to end after it was killed.
        clock: monotonic seconds.

    Raises:
        NotStarted: it cannot be started.
        TimedOut: it did not end in time.
        OutputTooLarge: it wrote more than ``limit`` bytes.
    """
    return _Once(name, deadline, grace, kill, clock).run(command, stdin, descriptors, limit)


async def run_async(
    command: Sequence[str],
    *,
    deadline: float,
    name: str = "the program",
    limit: int = OUTPUT_LIMIT,
    grace: float = GRACE,
    kill: Kill = kill_group,
) -> Result:
    """:func:`run` for an event loop, which it does not block: the program is followed on a thread.

    If the caller is cancelled, the program is killed, and the cancellation takes effect once the program has
    ended, after ``grace`` seconds at the latest.

    Raises:
        NotStarted, TimedOut, OutputTooLarge: as :func:`run` does.
    """
    once = _Once(name, deadline, grace, kill, time.monotonic)
    try:
        future = answered(name, once.run, command, b"", (), limit)
    except NoThread as error:
        raise NotStarted(f"{name} cannot be started: {error}") from None
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        once.kill()
        with suppress(Exception):
            await future
        raise


class _Child:
    """A program, its pipes, and the times at which it is killed: what one run and a running program share.

    One thread follows it. Other methods may be called from any thread, also before it is started.
    """

    def __init__(self, name: str, grace: float, kill: Kill, clock: Callable[[], float]) -> None:
        self._name = name
        self._grace = grace
        self._kill_process = kill
        self._clock = clock
        self._lock = threading.Lock()
        self._is_over = False
        self._is_expected_to_end = False
        self._is_late = False
        self._rest_until: float | None = None
        self._kill_at: float | None = None
        self._reason: str | None = None
        self._finished = threading.Event()
        self._wake = -1

    def kill(self, reason: str | None = None) -> None:
        """Kills the program with its process group. Does not wait.

        Args:
            reason: becomes :attr:`LineProcess.failure`.
        """
        with self._lock:
            self._reason = self._reason or reason
            self._is_over = self._is_expected_to_end = True
            if self._wake >= 0:
                self._kill_process(self._process)
                self._kill_at = self._clock() + self._grace
            self._wake_up()

    def _start(self, command: Sequence[str], errors: int, descriptors: Collection[int] = ()) -> None:
        wake = -1
        try:
            wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                cwd="/",
                pass_fds=tuple(descriptors),
                start_new_session=True,  # a new process group, and Ctrl-C only reaches devhost
            )
        except BaseException as error:
            if wake >= 0:
                os.close(wake)
            if not isinstance(error, OSError):
                raise
            text = f"{self._name} cannot be started: {command[0]}: {error.strerror or type(error).__name__}"
            raise NotStarted(text, error.errno or 0) from error
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)
        self._wake = wake
        if self._is_over:
            self.kill()

    @property
    def _streams(self) -> list[IO[bytes]]:
        streams = self._process.stdin, self._process.stdout, self._process.stderr
        return [stream for stream in streams if stream is not None]

    def _pipes(self) -> Iterable[tuple[IO[bytes], int, _Handler]]:
        """What to do when a pipe can be written or read."""
        raise NotImplementedError

    def ended(self) -> None:
        """The program has ended, or the kernel holds it after it was killed. Called once, at the end."""

    def _follow(self) -> None:
        """Passes on what the program reads and writes until it has ended, and kills it when it is time."""
        exit_descriptor = _exit_descriptor(self._process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                for stream, event, handler in self._pipes():
                    selector.register(stream, event, handler)
                selector.register(self._wake, selectors.EVENT_READ, self._woken)
                if exit_descriptor is not None:
                    selector.register(exit_descriptor, selectors.EVENT_READ, _nothing)
                while not _has_exited(self._process.pid):
                    for key, _ in selector.select(self._time_left(poll=exit_descriptor is None)):
                        if key.data() is False:
                            selector.unregister(key.fileobj)
                    if not self._keep_time():
                        break
                self._kill_process(self._process)  # what it has started, too
                _reaped(self._process, self._grace)
                for key in selector.get_map().values():  # what it wrote just before its end
                    while key.events == selectors.EVENT_READ and key.data():
                        pass
        finally:
            if exit_descriptor is not None:
                os.close(exit_descriptor)
            self._finish()

    def _finish(self) -> None:
        if self._process.returncode is None:  # the kernel holds it, or the caller was interrupted
            self._kill_process(self._process)
        with self._lock:
            if self._process.returncode and not self._is_expected_to_end:
                self._reason = f"{self._name} {_ending(self._process.returncode)}"
            self._is_over = True
            self._close()
            self._finished.set()
        self.ended()

    def _close(self) -> None:
        for stream in self._streams:
            stream.close()
        os.close(self._wake)
        self._wake = -1

    def _wake_up(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._streams[0].close()
            self._kill_at = self._clock() + self._grace

    def _time_left(self, *, poll: bool) -> float | None:
        with self._lock:
            due = [at for at in (self._rest_until, self._kill_at) if at is not None]
        left = max(0.0, min(due) - self._clock()) if due else None
        return left if not poll else _POLL if left is None else min(left, _POLL)

    def _keep_time(self) -> bool:
        """Ends an idle program when it is time; false if it is time to kill it."""
        with self._lock:
            now = self._clock()
            if self._rest_until is not None and now >= self._rest_until:
                self._rest_until = None
                self._is_expected_to_end = True
                self._end()
            self._is_late = self._kill_at is not None and now >= self._kill_at
        return not self._is_late


class _Once(_Child):
    """One run of a program, whose output is kept."""

    def __init__(
        self, name: str, deadline: float, grace: float, kill: Kill, clock: Callable[[], float]
    ) -> None:
        super().__init__(name, grace, kill, clock)
        self._deadline = deadline
        self._kill_at = clock() + deadline
        self._output = bytearray()
        self._errors = bytearray()

    def run(self, command: Sequence[str], stdin: bytes, descriptors: Collection[int], limit: int) -> Result:
        """See the function :func:`run`."""
        self._left = memoryview(stdin)
        self._limit = limit
        self._start(command, subprocess.PIPE, descriptors)
        self._follow()
        output = bytes(self._output)
        if self._is_too_large:
            raise OutputTooLarge(f"{self._name} wrote more than {limit} bytes")
        if self._is_late:
            is_gone = self._process.returncode is not None
            held = "" if is_gone else " and cannot be killed: a call into the kernel holds it"
            text = f"{self._name} did not end within {self._deadline:g} s{held}"
            raise TimedOut(text, output, None if is_gone else Leftover(self._process))
        return Result(self._process.returncode, output, bytes(self._errors[-ERROR_LIMIT:]))

    def _pipes(self) -> Iterable[tuple[IO[bytes], int, _Handler]]:
        handlers = (self._write, self._read_output, self._read_errors)
        events = (selectors.EVENT_WRITE, selectors.EVENT_READ, selectors.EVENT_READ)
        return zip(self._streams, events, handlers, strict=True)

    @property
    def _is_too_large(self) -> bool:
        return len(self._output) > self._limit

    def _write(self) -> bool | None:
        assert self._process.stdin is not None
        try:
            self._left = self._left[os.write(self._process.stdin.fileno(), self._left[:_CHUNK]) :]
        except BlockingIOError:
            return None
        except OSError:
            self._left = self._left[:0]  # it has closed its input
        if not self._left:
            self._process.stdin.close()
        return bool(self._left)

    def _read_output(self) -> bool | None:
        if (data := _read(self._process.stdout)) is None:
            return None
        self._output += data
        if self._is_too_large:
            self.kill()
        return bool(data) and not self._is_too_large

    def _read_errors(self) -> bool | None:
        if (data := _read(self._process.stderr)) is None:
            return None
        self._errors += data
        del self._errors[: -2 * ERROR_LIMIT]
        return bool(data)


class LineProcess(_Child):
    """A running program that reads lines from standard input and writes lines to standard output.

    Its standard error is dropped. Methods may be called from any thread. Subclasses define :meth:`received`,
    and :meth:`ended` if they need it; both are called on the thread of the process.

    Args:
        command: the program and its arguments, see :func:`python`.
        name: the program's name in errors, and that of the thread.
        limit: bytes of its longest line; a program that writes a longer one is killed.
        grace: seconds for it to end after its input was closed, and after it was killed.
        clock: monotonic seconds.

    Raises:
        NotStarted: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str = "the program",
        limit: int = OUTPUT_LIMIT,
        grace: float = GRACE,
        kill: Kill = kill_group,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, grace, kill, clock)
        self._limit = limit
        self._rest = bytearray()
        self._writing = threading.Lock()
        self._start(command, subprocess.DEVNULL)
        try:
            start(name, self._follow)
        except NoThread as error:
            kill(self._process)
            self._close()
            raise NotStarted(f"{name} cannot be started: {error}") from None

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent to it any longer."""
        return self._is_over

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended; false while the kernel holds it after it was killed."""
        return self._finished.is_set() and self._process.poll() is not None

    @property
    def failure(self) -> str | None:
        """Why it ended, as one sentence, if it failed; ``None`` otherwise."""
        return self._reason

    def received(self, line: bytes) -> None:
        """The program wrote a line, passed without its line feed."""
        raise NotImplementedError

    def send(self, line: bytes, deadline: float = GRACE) -> None:
        """Writes a line and a line feed.

        Raises:
            Ended: the program has ended, or :meth:`end` was called.
            TimedOut: it did not read the line within ``deadline`` seconds, and was killed.
        """
        data = memoryview(line + b"\n")
        until = self._clock() + deadline
        with self._writing:
            while data:
                with self._lock:
                    if self._is_over:
                        raise Ended(self._reason or f"{self._name} has ended")
                    self._rest_until = None
                    descriptor = self._streams[0].fileno()
                    try:
                        data = data[os.write(descriptor, data) :]
                        continue
                    except BlockingIOError:
                        left = until - self._clock()
                    except OSError:
                        return  # it is ending, which the thread reports
                if left <= 0:
                    text = f"{self._name} did not take a question within {deadline:g} s"
                    self.kill(text)
                    raise TimedOut(text)
                _await_writable(descriptor, left)

    def rest(self, seconds: float) -> None:
        """Ends the program after this many seconds, unless something is sent before."""
        with self._lock:
            self._rest_until = self._clock() + seconds
            self._wake_up()

    def end(self) -> None:
        """Closes the input, so that the program ends; it is killed after ``grace``. Does not wait."""
        with self._lock:
            self._is_expected_to_end = True
            self._end()
            self._wake_up()

    def wait(self, patience: float) -> bool:
        """Waits for at most this many seconds until the process has ended; whether it has."""
        until = time.monotonic() + patience
        if not self._finished.wait(patience):
            return False
        return _reaped(self._process, max(0.0, until - time.monotonic()))  # it may have been left behind

    def _pipes(self) -> Iterable[tuple[IO[bytes], int, _Handler]]:
        assert self._process.stdout is not None
        return [(self._process.stdout, selectors.EVENT_READ, self._read_lines)]

    def _read_lines(self) -> bool | None:
        if (data := _read(self._process.stdout)) is None:
            return None
        *lines, last = (self._rest + data).split(b"\n")
        self._rest = last
        for line in lines:
            self.received(bytes(line))
        if len(last) > self._limit:
            self.kill(f"{self._name} wrote a line of more than {self._limit} bytes")
        elif data:
            return True
        with self._lock:
            self._end()  # it cannot answer any longer
        return False


class Worker:
    """A program that answers requests in order. A request and an answer are one JSON object in one line each.

    The program writes one line, with any content, when it is ready. Then it reads requests from standard
    input and writes answers to standard output, until its input ends. It is started by the first request.
    Methods may be called from any thread; requests are sent one at a time.

    Args:
        command: the program and its arguments, see :func:`python`.
        name: the program's name in errors.
        deadline: seconds that one answer may take. A program that takes longer is killed.
        start_deadline: seconds from its start for which a request waits until it is ready.
        longest_start: seconds from its start after which a program that is still not ready is killed.
        idle: seconds without a request after which it ends; ``None`` for never.
        idle_per_start: it stays idle for at least this many times the duration of its start, so that a slow
            machine does not start it again and again; five minutes at most.
        backoff: delays until the program is started again after a failure. Until then each request fails with
            the same reason.
        grace: seconds for it to end after its input was closed, and after it was killed.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str = "the program",
        deadline: float = 3.0,
        start_deadline: float = 15.0,
        longest_start: float = 180.0,
        idle: float | None = 5.0,
        idle_per_start: float = 30.0,
        backoff: Backoff | None = None,
        grace: float = GRACE,
        kill: Kill = kill_group,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = list(command)
        self._name = name
        self._deadline = deadline
        self._start_deadline = start_deadline
        self._longest_start = longest_start
        self._idle = idle
        self._idle_per_start = idle_per_start
        self._backoff = backoff or Backoff(1.0, 60.0)
        self._grace = grace
        self._kill = kill
        self._clock = clock
        self._turn = threading.Lock()
        self._run: _Run | None = None
        self._not_before = float("-inf")
        self._problem: ProcessError | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process that answers; ``None`` while there is none."""
        run = self._run
        return None if run is None or run.is_gone else run.pid

    def ask(self, question: Mapping[str, object], deadline: float | None = None) -> dict[str, Any]:
        """Sends a request, and blocks until its answer is there.

        Args:
            question: the request; it is written as a JSON object.
            deadline: seconds that this answer may take; ``None`` for those of the worker.

        Raises:
            NotStarted: the program cannot be started.
            TimedOut: it is not ready yet, or did not answer in time.
            Ended: it ended without an answer.
            ProcessError: its answer is not a JSON object, or it must not be started again yet.
        """
        line = json.dumps(question).encode()
        limit = self._deadline if deadline is None else deadline
        with self._turn:
            before = self._run
            if before is not None and not before.is_over:
                try:
                    return self._answer(before, line, limit)
                except Ended as error:
                    if before.failure is not None:
                        self._fail(error)
                    # it ended because it was idle, just before this request
            fresh = self._started()
            try:
                return self._answer(fresh, line, limit)
            except Ended as error:
                self._fail(error)

    def close(self) -> None:
        """Kills the program, if it runs. A later request starts it again."""
        with self._turn:
            if self._run is not None:
                self._run.kill()

    def _started(self) -> _Run:
        if self._problem is not None and self._clock() < self._not_before:
            raise self._problem.with_traceback(None)
        if self._run is not None and not self._run.wait(self._grace):
            self._fail(TimedOut(f"{self._name} cannot be killed: a call into the kernel holds it"))
        try:
            run = _Run(self._command, self._name, self._grace, self._kill, self._clock)
        except NotStarted as error:
            self._fail(error)
        self._run = run
        return run

    def _answer(self, run: _Run, line: bytes, deadline: float) -> dict[str, Any]:
        # wait until it is ready, which counts from its start
        age = self._clock() - run.began
        if not run.is_ready.wait(max(0.0, self._start_deadline - age)):
            text = f"{self._name} is not ready within {self._start_deadline:g} s"
            if age > self._longest_start:
                run.kill(text)
                self._fail(TimedOut(text))
            if self._idle is not None:
                run.rest(self._longest_start)  # there may be no further request
            raise TimedOut(text)
        try:
            run.send(line, deadline)
            written = run.answers.get(timeout=deadline)
        except Empty:
            text = f"{self._name} did not answer within {deadline:g} s"
            run.kill(text)
            self._fail(TimedOut(text))
        except TimedOut as error:
            self._fail(error)
        if written is None:
            raise Ended(run.failure or f"{self._name} ended without an answer")
        try:
            answer = json.loads(written)
            if not isinstance(answer, dict):
                raise ValueError
        except ValueError:
            text = f"{self._name} answered something that is no JSON object"
            run.kill(text)
            self._fail(ProcessError(text))
        # it works: no back-off, and it stays for further requests
        self._problem = None
        self._backoff.reset()
        if self._idle is not None:
            run.rest(max(self._idle, min(self._idle_per_start * run.start_took, 300.0)))
        return answer

    def _fail(self, problem: ProcessError) -> NoReturn:
        self._problem = problem
        self._not_before = self._clock() + self._backoff.delay()
        raise problem


class _Run(LineProcess):
    """One run of a worker's program, and what it has written."""

    def __init__(
        self, command: Sequence[str], name: str, grace: float, kill: Kill, clock: Callable[[], float]
    ) -> None:
        self.is_ready = threading.Event()
        self.answers: SimpleQueue[bytes | None] = SimpleQueue()
        self.began = clock()
        self.start_took = 0.0
        super().__init__(command, name=name, grace=grace, kill=kill, clock=clock)

    def received(self, line: bytes) -> None:
        if self.is_ready.is_set():
            self.answers.put(line)
        else:
            self.start_took = self._clock() - self.began
            self.is_ready.set()

    def ended(self) -> None:
        self.is_ready.set()
        self.answers.put(None)


def _reaped(process: subprocess.Popen[bytes], patience: float) -> bool:
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        return False
    return True


def _has_exited(pid: int) -> bool:
    """Whether a child has ended. It is not reaped, so no other process gets its id."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _exit_descriptor(pid: int) -> int | None:
    """A descriptor that is readable once a process has ended; ``None`` if the system has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _await_writable(descriptor: int, patience: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_WRITE)
        selector.select(patience)


def _ending(status: int, errors: bytes = b"") -> str:
    """How a program failed: ``was killed by SIGSEGV``, or its exit status and the last line it wrote."""
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    lines = errors.decode(errors="replace").strip().splitlines()
    last = f": {' '.join(lines[-1].split())[:200]}" if lines else ""
    return f"exited with status {status}{last}"


def _read(stream: IO[bytes] | None) -> bytes | None:
    """What can be read of a pipe now: nothing at its end; ``None`` if there may be something later."""
    assert stream is not None
    try:
        return os.read(stream.fileno(), _CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _nothing() -> None:
    """Does nothing: the caller checks after each wait whether the process has ended."""
