"""Loads one image into one slot through a separate process, and explains failures.

An engine programs a slot: a management engine or an fpga_manager, identified by its directory in sysfs. The
state of engines outlives the backend object, which is replaced when its options change, even during
programming.
"""

from __future__ import annotations

import errno
import json
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

from devhost.backend import AllocationError, process
from devhost.backend.frozen import frozen, mutable
from devhost_fpga.allocation import numbered
from devhost_fpga.manager_state import OPERATING, Manager, identity, manager, manager_of
from devhost_fpga.model import FpgaSysfs, Interface, Reading, Slot
from devhost_fpga.options import Program

from .bitstream import Bitstream, identity_at, name_of

Loaded = tuple[object, ...]
"""What an fpga_manager was loaded with, and the identity of the manager."""


@mutable
class Engine:
    """The state of an engine. What is not its ``lock`` is only used by a thread that holds it.

    ``leftover`` is a process that could not be killed, ``loaded`` what each device was last loaded with.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    leftover: process.Leftover | None = None
    loaded: dict[str, Loaded] = field(default_factory=dict)


class Engines:
    """The engines that were ever programmed. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[str, Engine] = {}

    def of(self, engine: str) -> Engine:
        with self._lock:
            return self._engines.setdefault(engine, Engine())

    @contextmanager
    def locked(self, engine: str, patience: float) -> Iterator[None]:
        """Locks an engine, so that no other thread or process programs through it.

        Raises ``AllocationError`` if it stays locked for ``patience`` seconds, or a killed process still uses
        it.
        """
        mine = self.of(engine)
        if not mine.lock.acquire(timeout=max(0.0, patience)):
            raise AllocationError("its FPGA is being programmed for another container")
        try:
            if mine.leftover is not None and not mine.leftover.is_gone:
                raise AllocationError("an earlier programming hangs in the kernel, and must end first")
            yield
        finally:
            mine.lock.release()


ENGINES: Engines = Engines()
"""The engines of this process."""


COMMAND: Sequence[str] = tuple(process.python(Path(__file__).with_name("child.py"), packages=False))
"""The program that opens the device nodes."""

NAME = "the programming process"

Request = Mapping[str, Any]
"""The request that :mod:`.child` reads."""


@frozen
class ProgrammingResult:
    """The result of programming: ``step`` is the step that failed, empty on success.

    In addition to the steps of the child there are ``start``, ``time`` and ``crash``; what happened then is
    the clause ``text``. ``status`` has the driver's bits for a hardware error (OPAE only).
    """

    step: str = ""
    errno: int = 0
    status: int = 0
    text: str = ""


Run = Callable[[Request, Collection[int], float], ProgrammingResult]
"""Runs the program that programs: :func:`run`."""


def run(
    request: Request,
    descriptors: Collection[int],
    patience: float,
    command: Sequence[str] = COMMAND,
    grace: float = process.GRACE,
    kill: process.Kill = process.kill_group,
) -> ProgrammingResult:
    """Runs the program with one request. Blocks at most for ``patience`` and ``grace`` seconds.

    ``descriptors`` are open files to pass on. Raises ``TimedOut`` if it did not answer within ``patience``
    seconds, and does not end within ``grace`` seconds after it was killed.
    """
    try:
        result = process.run(
            command,
            deadline=patience,
            stdin=json.dumps(request).encode(),
            descriptors=descriptors,
            name=NAME,
            grace=grace,
            kill=kill,
        )
    except process.NotStarted as error:
        return ProgrammingResult("start", error.errno)
    except process.TimedOut as error:
        if error.leftover is not None:
            raise
        return ProgrammingResult("time")
    except process.ProcessError as error:
        return ProgrammingResult("crash", text=error.message.removeprefix(f"{NAME} "))
    return ProgrammingResult("crash", text=result.failure) if result.failure else judge(result.output)


def judge(output: bytes) -> ProgrammingResult:
    """The verdict in the output of the child; invalid output counts as a crash."""
    try:
        answer = json.loads(output)
        return ProgrammingResult(
            str(answer.get("step", "")), int(answer.get("errno", 0)), int(answer.get("status", 0))
        )
    except (ValueError, AttributeError, TypeError):
        return ProgrammingResult("crash", text="gave an answer that cannot be parsed")


_PRIVILEGED = "the container of devhost must be privileged"

_NODE = {
    errno.EBUSY: "another program has its management engine open",
    errno.EPERM: f"cannot open its management engine: permission denied ({_PRIVILEGED})",
    errno.EACCES: f"cannot open its management engine: permission denied ({_PRIVILEGED})",
    errno.ENOENT: "its management engine is gone",
    errno.ENODEV: "its management engine is gone",
    errno.ENXIO: "its management engine is gone",
}

_PROGRAM_ERRORS = {
    errno.EBUSY: "the FPGA is busy: another process programs it or uses the region",
    errno.EINVAL: "the driver refuses the request: the port does not exist, or the image does not fit",
    errno.ETIMEDOUT: "the FPGA did not finish in time",
    errno.EIO: "the FPGA reports an error",
    errno.EPERM: f"the driver refuses the request: permission denied ({_PRIVILEGED})",
    errno.EACCES: f"the driver refuses the request: permission denied ({_PRIVILEGED})",
    errno.ENOENT: "the device is gone",
    errno.ENODEV: "the device is gone, or its driver cannot program",
    errno.ENXIO: "the device is gone",
    errno.ENOTTY: "the driver does not know the request",
    errno.EFAULT: "the file became shorter while it was read",
    errno.ENOMEM: "the kernel has not enough memory for the image",
}

_WRITE = _PROGRAM_ERRORS | {
    errno.ENOENT: "the kernel's firmware loader did not find the file, or the device is gone",
    errno.EROFS: "/sys is mounted read-only for devhost",
    errno.EPERM: f"cannot write to /sys: permission denied ({_PRIVILEGED})",
    errno.EACCES: f"cannot write to /sys: permission denied ({_PRIVILEGED})",
    errno.EINVAL: "the driver refuses the image",
}

_BITS = (
    "PR operation error",
    "CRC error",
    "incompatible image",
    "IP protocol error",
    "FIFO overflow",
    "",
    "secure load error",
)
"""The bits of ``status`` after EIO (``DEFINE_FPGA_PR_ERR_MSG`` in intel-fpga.h)."""


def why(verdict: ProgrammingResult, detail: str = "") -> str:
    """Why programming failed, as the end of a sentence.

    ``detail`` is what the FPGA manager reports about the last error.
    """
    match verdict.step:
        case "file":
            return _system(verdict.errno, {}) if verdict.errno else "the file changed meanwhile"
        case "node":
            return (
                _system(verdict.errno, _NODE) if verdict.errno else "its node now belongs to another device"
            )
        case "program":
            return _with(_system(verdict.errno, _PROGRAM_ERRORS), bits(verdict.status) or detail)
        case "flags" | "firmware":
            return _with(_system(verdict.errno, _WRITE), detail)
        case "start":
            return f"{NAME} cannot be started: {os.strerror(verdict.errno)}"
        case "time":
            return f"it took too long, and {NAME} was killed"
    if verdict.text == "was killed by SIGBUS":
        return _PROGRAM_ERRORS[errno.EFAULT]
    return f"{NAME} {verdict.text}"


def bits(status: int) -> str:
    """The errors in the OPAE driver's status, separated by commas; empty for none."""
    return ", ".join(text for bit, text in enumerate(_BITS) if text and status >> bit & 1)


def _system(number: int, known: dict[int, str]) -> str:
    return known.get(number) or os.strerror(number)


def _with(text: str, detail: str) -> str:
    return f"{text} ({detail})" if detail else text


FIRST = 0.02
"""Seconds until a busy id is read again; the pause doubles each time."""

CAP = 0.5
"""The longest pause in seconds."""

SPREAD = 0.5
"""Random part of each pause, so that waiting containers do not read at the same time."""


@frozen
class Clock:
    """The source of time, sleep and random numbers."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random


def settled(
    sysfs: FpgaSysfs,
    function: str,
    until: float,
    clock: Clock,
    is_stuck: Callable[[], object] = bool,
) -> Reading:
    """The AFU id of a port when it is no longer busy, or the last reading at ``until``.

    The drivers answer EBUSY while the port is disabled (``afu_id_show`` in drivers/fpga/dfl-afu-main.c).
    ``is_stuck`` is whether waiting is useless.
    """
    pause = FIRST
    while (found := sysfs.reading(f"{function}/afu_id")).is_busy and not is_stuck():
        left = until - clock.now()
        if left <= 0:
            break
        clock.sleep(min(left, pause * (1 - SPREAD * clock.draw())))
        pause = min(CAP, pause * 2)
    return found


def label(slot: Slot) -> str:
    """The name of a slot for users."""
    return slot.engine.rpartition("/")[2] if slot.interface is Interface.FIRMWARE else f"port {slot.port}"


class Loader:
    """Loads images through a separate process, which ``run`` runs.

    ``engines`` keeps what was loaded, and which engines are blocked.
    """

    def __init__(self, sysfs: FpgaSysfs, engines: Engines, run: Run) -> None:
        self._sysfs = sysfs
        self._engines = engines
        self._run = run

    def load(self, device: str, slot: Slot, program: Program, image: Bitstream, patience: float) -> None:
        """Loads an image. Blocks for ``patience`` seconds, and until a process is killed after that.

        ``device`` is the one that the slot belongs to. Raises ``AllocationError`` if the image is not loaded,
        or it is unknown whether it is.
        """
        if slot.interface is Interface.FIRMWARE:
            self._load_named(device, slot, program, image, patience)
        else:
            self._carry_out(slot, self._port_request(slot, image), patience, (image.descriptor,))

    def is_loaded(self, device: str, slot: Slot, program: Program, image: Bitstream) -> bool:
        """Whether devhost itself last loaded this file through an fpga_manager, which shows no id."""
        loaded = self._engines.of(slot.engine).loaded
        is_ours = loaded.get(device) == self._loaded(slot, program, image)
        return is_ours and self._manager(slot).state == OPERATING

    def _load_named(
        self, device: str, slot: Slot, program: Program, image: Bitstream, patience: float
    ) -> None:
        has_flags = self._sysfs.exists(f"{slot.engine}/flags")
        if program.partial and not has_flags:
            raise AllocationError("its kernel accepts only whole images (remove `partial`)")
        request = {
            "do": "firmware",
            "manager": self._sysfs.prefix + slot.engine,
            "name": name_of(self._sysfs, image.path),
            "flags": str(int(program.partial)) if has_flags else "",
        }
        loaded = self._engines.of(slot.engine).loaded
        if program.partial:
            loaded.pop(device, None)
        else:
            loaded.clear()
        self._carry_out(slot, request, patience)
        found = manager(self._sysfs, slot.engine)
        if found.state != OPERATING:
            more = f" ({found.status})" if found.status else ""
            raise AllocationError(f"it was programmed, but its state is {found.state or 'unknown'!r}{more}")
        if identity_at(self._sysfs.prefix + image.path) != image.identity:
            raise AllocationError("the file changed meanwhile")  # the kernel opened it by name
        loaded[device] = self._loaded(slot, program, image)

    def _port_request(self, slot: Slot, image: Bitstream) -> Request:
        try:
            node, number = numbered(self._sysfs, slot.engine, is_live=True)
        except AllocationError as error:
            raise AllocationError(f"its management engine has no node in /dev: {error.message}") from error
        return {
            "do": str(slot.interface),
            "node": self._sysfs.prefix + node,
            "number": [int(part) for part in number.split(":")],
            "port": slot.port,
            "file": image.descriptor,
            "size": image.size,
            "modified": image.modified,
            "head": image.head.hex(),
        }

    def _carry_out(
        self, slot: Slot, request: Request, patience: float, descriptors: tuple[int, ...] = ()
    ) -> None:
        try:
            verdict = self._run(request, descriptors, patience)
        except process.TimedOut as error:
            if error.leftover is not None:
                self._engines.of(slot.engine).leftover = error.leftover
            raise AllocationError(
                "it took too long and cannot be stopped; its engine is blocked until the process ends"
            ) from error
        if verdict.step:
            raise AllocationError(why(verdict, self._manager(slot).status))

    def _manager(self, slot: Slot) -> Manager:
        if slot.interface is Interface.FIRMWARE:
            return manager(self._sysfs, slot.engine)
        return manager_of(self._sysfs, slot.engine)

    def _loaded(self, slot: Slot, program: Program, image: Bitstream) -> Loaded:
        # includes the inode, since another manager may have this name later
        return (*identity(self._sysfs, slot.engine), image.identity, program.partial)
