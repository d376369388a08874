"""Asks the kernel through netlink, in a process of its own (:mod:`.netlink_child`).

Numbers are those of include/uapi/linux/devlink.h of the Linux kernel.

pyroute2 would add 12 MB to devhost's own process for good. The other process starts with the first question,
answers the following ones as well, and ends after :data:`IDLE` seconds without one: one process serves a
whole burst of events. A process that does not answer is killed. One that is slow to start is not: the
questions fail until it is ready.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from .in_use import DefaultRoute, Traffic

CHANGES = frozenset({3, 4, 7, 8})
"""Commands of notifications after which switches may be others: a device or a port is new, changed or gone
(``DEVLINK_CMD_NEW``, ``_DEL``, ``_PORT_NEW``, ``_PORT_DEL``)."""

MODES: Mapping[int | None, str] = {0: "legacy", 1: "switchdev"}
"""Words for the modes of an embedded switch (``enum devlink_eswitch_mode``)."""

BUS_NAME, DEV_NAME = 1, 2
"""Numbers of the attributes that name the device: ``pci`` and its address."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One devlink device. Interfaces by the number of the virtual or scalable function they stand for."""

    mode: str = ""
    profile: str = ""
    virtual: Mapping[int, str] = field(default_factory=dict)
    scalable: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Devlink:
    """All devices by the name of what they are on: a PCI address, a name on the auxiliary bus.

    ``group`` is the number of the multicast group of notifications, ``None`` without devlink.
    """

    switches: Mapping[str, Switch] = field(default_factory=dict)
    group: int | None = None


DEADLINE = 3.0
"""Seconds that all answers to one question may take."""

START = 15.0
"""Seconds from the start of a process for which questions wait until it is ready: starting Python and
importing pyroute2 takes 0.4 s on an idle machine, and much longer on a node that boots."""

LONGEST_START = 180.0
"""Seconds after which a process that is still not ready is killed."""

IDLE = 5.0
"""Seconds without a question after which the process ends."""

WORTH = 30.0
"""It stays at least so many times as long as its start took: on a slow machine a start costs more."""

PAUSE = 5.0
"""Seconds for which no other process is started after one did not answer: a look asks up to three questions,
and must not wait for three processes."""

GOODBYE = 1.0
"""Seconds that a killed process may take to be gone. A call into the kernel may hold it for longer."""

_PROGRAM = Path(__file__).with_name("netlink_child.py")

SILENT = "the kernel does not answer"

VfMacs = Mapping[str, Mapping[int, str]]
"""The address set for a virtual function, by its number, by the physical function's interface."""


class Kernel:
    """Questions about this process's network namespace. Each blocks until it is answered.

    Args:
        idle: seconds without a question after which the process ends.
        worth: it stays at least so many times as long as its start took.
        deadline: seconds that the answer to one question may take.
        start: seconds from the start of a process for which questions wait until it is ready.
        longest_start: seconds after which a process that is still not ready is killed.
        pause: seconds after one that did not answer for which no other is started.
        program: what answers, for tests.
    """

    def __init__(
        self,
        *,
        idle: float = IDLE,
        worth: float = WORTH,
        deadline: float = DEADLINE,
        start: float = START,
        longest_start: float = LONGEST_START,
        pause: float = PAUSE,
        program: Path = _PROGRAM,
    ) -> None:
        # -P: this package's own directory must not shadow modules
        self._command = [sys.executable, "-P", os.fspath(program), str(idle), str(worth)]
        self._deadline = deadline
        self._start = start
        self._longest_start = longest_start
        self._pause = pause
        self._turn = threading.Lock()
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """The process that answers; ``None`` while there is none."""
        child = self._child
        return None if child is None or child.is_gone.is_set() else child.pid

    def traffic(self, names: Mapping[int, str]) -> Traffic:
        """The node's default routes of all tables, and all its addresses.

        Args:
            names: the interfaces of this network namespace by index.

        Raises:
            TimeoutError: there is no answer in time.
            OSError: the kernel refuses, a default route cannot be resolved, or the process cannot be used.
        """
        found = self._ask("traffic")
        routes = (
            DefaultRoute(family, names[index], table)
            for family, index, table in found["routes"]
            if index in names
        )
        addresses = ((address, names[index]) for address, index in found["addresses"] if index in names)
        return Traffic(frozenset(routes), frozenset(addresses))

    def vf_macs(self) -> VfMacs:
        """What the physical functions have set for their virtual ones.

        Raises:
            TimeoutError: there is no answer in time.
            OSError: the kernel refuses, or the process cannot be used.
        """
        found: dict[str, dict[int, str]] = {}
        for interface, number, mac in self._ask("vf_macs"):
            found.setdefault(interface, {})[number] = mac
        return found

    def devlink(self, *, profiles: bool) -> Devlink:
        """All devices of devlink; empty where the kernel has no devlink, or no device of it.

        Args:
            profiles: whether to ask for the firmware's profile, which may take the driver to the firmware.

        Raises:
            TimeoutError: there is no answer in time.
            OSError: the kernel refuses, or the process cannot be used.
        """
        found = self._ask("devlink", profiles=profiles)
        switches = {
            name: Switch(
                MODES.get(one["mode"], ""), one["profile"], dict(one["virtual"]), dict(one["scalable"])
            )
            for name, one in found["switches"].items()
        }
        return Devlink(switches, found["group"])

    def close(self) -> None:
        """Ends the process, if there is one. A later question starts another."""
        with self._turn:
            if self._child is not None:
                self._child.kill()

    def _ask(self, do: str, **details: object) -> Any:
        question = json.dumps({"do": do, **details}).encode() + b"\n"
        with self._turn:
            answer = self._answer(question)
        if "ok" in answer:
            return answer["ok"]
        code = answer["errno"]
        raise OSError(code, os.strerror(code)) if code else OSError(answer["error"])

    def _answer(self, question: bytes) -> Mapping[str, Any]:
        if self._child is not None and not self._child.is_over:
            answer = self._asked(self._child, question)
            if answer is not None:
                return answer
            if self._child.status:
                raise OSError(self._child.ending)
            # it ended for want of questions, just before this one
        self._child = self._started()
        answer = self._asked(self._child, question)
        if answer is None:
            raise OSError(self._child.ending)
        return answer

    def _asked(self, child: _Child, question: bytes) -> Mapping[str, Any] | None:
        child.await_start(self._start, self._longest_start)
        return child.ask(question, self._deadline)

    def _started(self) -> _Child:
        """A process, if none before it is in the way."""
        if (before := self._child) is not None:
            is_pause = time.monotonic() < before.hung_at + self._pause
            if is_pause or not before.is_gone.wait(GOODBYE):
                raise TimeoutError(SILENT)
        try:
            return _Child(self._command)
        except OSError as error:
            raise OSError(f"cannot start {sys.executable}: {error.strerror}") from None


class _Child:
    """One run of the program.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for devhost, whose end closes the input
        )
        self.pid = self._process.pid
        self._began = time.monotonic()
        self._is_ready = threading.Event()
        self.is_gone = threading.Event()
        self.is_over = False
        """Whether no further question can be asked."""
        self.hung_at = -math.inf
        """When it was killed because it did not answer, by the monotonic clock."""
        self._answers: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._read, name="netlink-answers", daemon=True).start()

    @property
    def status(self) -> int:
        """The exit status, negative for a signal; 0 while it runs."""
        return self._process.returncode or 0

    @property
    def ending(self) -> str:
        """How it ended."""
        how = (
            f"was killed by signal {-self.status}" if self.status < 0 else f"exited with status {self.status}"
        )
        return f"the process that asks netlink {how}"

    def await_start(self, patience: float, longest: float) -> None:
        """Waits until it is ready for questions, or has ended.

        Args:
            patience: seconds to wait, from its start.
            longest: seconds from its start after which it is killed if it is still not ready.

        Raises:
            TimeoutError: it is not ready in time.
        """
        age = time.monotonic() - self._began
        if self._is_ready.wait(max(patience - age, 0)):
            return
        if age > longest:
            self.hung_at = time.monotonic()
            self.kill()
        raise TimeoutError(SILENT)

    def ask(self, question: bytes, patience: float) -> Mapping[str, Any] | None:
        """The answer; ``None`` if the process ends without one.

        Raises:
            TimeoutError: there is none in time. The process is killed.
        """
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, and its answer is None
            self._process.stdin.write(question)
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=patience)
        except Empty:
            self.hung_at = time.monotonic()
            self.kill()
            raise TimeoutError(SILENT) from None
        if line is None:
            self.is_over = True
            return None
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """Ends the process. Does not wait."""
        self.is_over = True
        self._process.kill()

    def _read(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._process.stdout as answers:
            answers.readline()
            self._is_ready.set()
            for line in answers:
                self._answers.put(line)
        self._process.wait()
        with suppress(OSError):  # what could not be written
            self._process.stdin.close()
        self.is_gone.set()
        self._answers.put(None)
