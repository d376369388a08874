"""Keeps one process that uses NVML running, and replaces it when the machine has changed.

A new driver, another library, a GPU that was bound or unbound, one that must be released: each means a fresh
process, because NVML looks for GPUs and for its files only when it is loaded.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from devhost.backend import Context
from devhost.backend.sysfs import prefix_of

from . import reports
from .session import Ended, Message, Refused, Reply, Session, Unanswered, program

LIBRARY = "libnvidia-ml.so.1"

_MACHINE = platform.machine()

DIRECTORIES = (
    "usr/lib64",
    f"usr/lib/{_MACHINE}-linux-gnu",
    f"lib/{_MACHINE}-linux-gnu",
    "lib64",
    f"usr/lib/{_MACHINE}-linux-gnu/nvidia/current",
    "usr/lib/nvidia/current",
    "usr/lib",
    "lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "home/kubernetes/bin/nvidia/lib64",
)
"""Where a driver puts its libraries, below its root; the distributions' own places first."""


def binding() -> str:
    """The directory with the module ``pynvml``, which is not imported; empty where it is not installed."""
    try:
        spec = find_spec("pynvml")
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.origin:
        return ""
    place = Path(spec.origin).parent
    return os.fspath(place.parent if spec.submodule_search_locations else place)


def find_library(root: Path, driver_root: str) -> str | None:
    """The library to load: a path, or empty for the one that the loader finds; ``None`` if there is none.

    Args:
        root: what stands for ``/``.
        driver_root: where the driver's files are below it, ``/run/nvidia/driver``.
    """
    prefix = prefix_of(root)
    base = f"{prefix}/{driver_root.strip('/')}".rstrip("/")
    for directory in DIRECTORIES:
        path = f"{base}/{directory}/{LIBRARY}"
        if os.path.isfile(path):  # noqa: PTH113 - a plain string path
            return path
    return "" if not base else None


def library_identity(path: str) -> tuple[int, int, int] | None:
    """What tells one installation of the library from the next; ``None`` for the loader's own."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a plain string path
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


FIRST_DELAY, LAST_DELAY = 1.0, 60.0
"""Seconds between tries to start what fails; they double."""

RELEASE = 10.0
"""Seconds after a GPU was asked to be unbound in which nothing is opened."""

MOST_STRAYS = 4
"""Processes that cannot be ended, for a call holds them in the kernel, beside which none is started."""

ALONE = 15.0
"""Seconds in which a GPU that is asked about alone must answer."""


@dataclass(frozen=True, slots=True)
class Footing:
    """What a process must be started anew for when it changes.

    ``gpus`` are PCI addresses of GPUs to open, each with the inode of its directory; ``driver`` is the
    version of the driver that is loaded.
    """

    gpus: tuple[tuple[str, int], ...] = ()
    driver: str = ""

    @property
    def addresses(self) -> list[str]:
        """The PCI addresses alone."""
        return [address for address, _ in self.gpus]


class Keeper:
    """Starts and ends the program. Methods may be called from any thread.

    Args:
        context: for ``root`` and the log.
        driver_root: where the driver's files are below the root.
        heard: called with every event of the program's, on other threads.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        context: Context,
        driver_root: str,
        heard: Callable[[Message], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._driver_root = driver_root
        self._heard = heard
        self._clock = clock
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._footing = Footing()
        self._library: tuple[str, object] | None = None
        self._left: list[Session] = []
        self._alone: dict[str, Session] = {}
        self._delay = 0.0
        self._not_before = 0.0
        self._problem = ""
        self._hung: list[str] = []
        self._is_closed = False

    @property
    def problem(self) -> str:
        """Why nothing can be asked, as a sentence; empty while it can, or while nothing is to be asked."""
        return self._problem

    @property
    def footing(self) -> Footing:
        """What the process is for."""
        return self._footing

    @property
    def is_due(self) -> bool:
        """Whether it is time to try again what has failed, or was let go for a while."""
        with self._lock:
            waits = self._session is None and bool(self._not_before)
            return waits and self._clock() >= self._not_before

    def fit(self, footing: Footing) -> bool:
        """Sees to it that a process runs that fits the machine, if that can be; whether it is a fresh one."""
        with self._lock:
            self._left = [session for session in self._left if not session.is_gone]
            if not footing.gpus:
                self._end()
                self._problem, self._not_before, self._delay = "", 0.0, 0.0
                self._footing = footing
                return False
            found = find_library(self._context.root, self._driver_root)
            fits = footing == self._footing and self._library == _known(found)
            if self._session is not None and self._session.is_over:
                self._give_up(self._session.why)
            if self._session is not None and not fits:
                self._end()
            if not fits:
                self._not_before = min(self._not_before, self._clock() + FIRST_DELAY)
            self._footing, self._library = footing, _known(found)
            if self._session is None and not self._is_closed and self._clock() >= self._not_before:
                self._start(found)
                return self._session is not None
            return False

    def ask(self, do: str, patience: float) -> Reply:
        """Asks about all GPUs of the footing.

        Raises:
            Unanswered: there is no answer yet.
            Refused: NVML cannot be used; :attr:`problem` says why, and the process is ended.
            Ended: there is no process.
        """
        session, footing = self._session, self._footing
        if session is None:
            raise Ended(self._problem or "NVML is let go")
        try:
            answer = session.ask(do, footing.addresses, patience)
        except (Refused, Ended) as error:
            with self._lock:
                if self._session is session:
                    self._give_up(error.message)
            raise
        with self._lock:
            if self._session is session:
                self._delay, self._not_before, self._problem = 0.0, 0.0, ""
        return answer

    def ask_alone(self, address: str) -> reports.Check | reports.Trouble | None:
        """Opens one GPU for a moment, in a process of its own, and asks how it is; blocks meanwhile.

        ``None``: that could not be found out.
        """
        with self._lock:
            command, before = self._command(), self._alone.get(address)
            if command is None or (before is not None and not before.is_gone):
                return None
            try:
                session = self._alone[address] = Session(command, _nobody)
            except OSError:
                return None
        try:
            found = reports.checks(session.ask("probe", [address], ALONE).content)[address]
        except Unanswered:
            session.kill()
            return reports.Trouble(-1, f"no answer within {ALONE:.0f} s")
        except (Refused, Ended):
            return None
        finally:
            session.end()
            session.wait_gone(ALONE)
        return found

    def take_hung(self) -> list[str]:
        """The GPUs at which calls hung so that the process had to be ended, each told once."""
        with self._lock:
            hung, self._hung = self._hung, []
        return hung

    def hurry(self) -> None:
        """Ends the process if a call hangs in it."""
        if (session := self._session) is not None:
            session.hurry()

    def release(self) -> None:
        """Lets the driver go now, for a while."""
        with self._lock:
            self._end()
            self._not_before = self._clock() + RELEASE

    def close(self) -> None:
        """Lets the driver go for good: a look that is still under way opens it no more."""
        with self._lock:
            self._is_closed = True
            self._end()

    def reopen(self) -> bool:
        """Takes back what :meth:`close` did; whether there was anything."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, False
        return was_closed

    def _start(self, found: str | None) -> None:
        command = self._command()
        if command is None:
            self._wait(
                f"{LIBRARY} is not below {self._driver_root}: is backends.gpu.driverRoot right?"
                if found is None
                else "nvidia-ml-py is not installed: pip install nvidia-ml-py"
            )
        elif self._has_strays():
            self._wait("earlier programs that used NVML still hang in the kernel")
        else:
            try:
                self._session = Session(command, self._heard)
            except OSError as error:
                self._wait(f"the program that uses NVML cannot be started: {error.strerror}")

    def _command(self) -> list[str] | None:
        found = find_library(self._context.root, self._driver_root)
        found_binding = binding()
        return program(found_binding, found) if found is not None and found_binding else None

    def _has_strays(self) -> bool:
        return sum(not session.is_gone for session in self._left) >= MOST_STRAYS

    def _end(self) -> None:
        if self._session is not None:
            self._session.end()
            self._left.append(self._session)
            self._session = None

    def _give_up(self, problem: str) -> None:
        if self._session is not None and self._session.hung_at:
            self._hung.append(self._session.hung_at)
        self._end()
        self._wait(problem)

    def _wait(self, problem: str) -> None:
        self._problem = problem
        self._delay = min(LAST_DELAY, self._delay * 2 or FIRST_DELAY)
        self._not_before = self._clock() + self._delay


def _known(found: str | None) -> tuple[str, object] | None:
    return None if found is None else (found, library_identity(found))


def _nobody(message: Message) -> None:
    """Nobody listens to a process that is asked once."""
