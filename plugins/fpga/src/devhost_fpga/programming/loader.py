"""Loads one image into one slot, by a process of its own, and explains what failed.

An engine is what programs: a management engine, or an fpga_manager; it is known by its directory in sysfs.
The backend is created again when its options change while a programming may go on, so this outlives it.
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from devhost.backend import AllocationError, process
from devhost.backend.sysfs import Sysfs
from devhost_fpga.allocation import numbered
from devhost_fpga.manager_state import Manager, identity, manager
from devhost_fpga.model import Interface, Reading, Slot, read
from devhost_fpga.options import Program

from .bitstream import Bitstream, identity_at, name_of

Loaded = tuple[object, ...]
"""What an fpga_manager was loaded with, and which manager it was."""


@dataclass(slots=True)
class _Engine:
    lock: threading.Lock = field(default_factory=threading.Lock)
    held: Held | None = None
    loaded: dict[str, Loaded] = field(default_factory=dict)


class Engines:
    """All engines of the machine that were ever programmed. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[str, _Engine] = {}

    @contextmanager
    def alone(self, engine: str, patience: float) -> Iterator[None]:
        """No other thread or process programs through this engine meanwhile.

        Raises:
            AllocationError: somebody does, and did so for ``patience`` seconds; or a process that was killed
                is still held by the kernel.
        """
        mine = self._engine(engine)
        if not mine.lock.acquire(timeout=max(0.0, patience)):
            raise AllocationError("its FPGA is being programmed for another container")
        try:
            if mine.held is not None and not mine.held.is_gone:
                raise AllocationError(
                    "an earlier programming hangs in the kernel: nothing is done until it ends"
                )
            yield
        finally:
            mine.lock.release()

    def hangs(self, engine: str, held: Held) -> None:
        """A process that programs cannot be ended: the engine is taken until it has gone."""
        self._engine(engine).held = held

    def loaded(self, engine: str, device: str) -> Loaded | None:
        """What a device was last loaded with; ``None`` if unknown. For a caller that has it exclusively."""
        return self._engine(engine).loaded.get(device)

    def forget(self, engine: str, device: str = "") -> None:
        """What that device holds, or every one of this engine, is not known any longer."""
        loaded = self._engine(engine).loaded
        if device:
            loaded.pop(device, None)
        else:
            loaded.clear()

    def remember(self, engine: str, device: str, what: Loaded) -> None:
        """A device was loaded with this."""
        self._engine(engine).loaded[device] = what

    def _engine(self, engine: str) -> _Engine:
        with self._lock:
            return self._engines.setdefault(engine, _Engine())


ENGINES: Engines = Engines()
"""Those of this process."""


COMMAND: Sequence[str] = tuple(process.python(Path(__file__).with_name("child.py"), packages=False))
"""The program that opens the device nodes."""

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


class Held(Protocol):
    """A killed process that a call into the kernel holds: :class:`devhost.backend.process.Leftover`."""

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""


class Unkillable(Exception):
    """A call into the kernel holds the process, which was killed."""

    def __init__(self, held: Held) -> None:
        super().__init__("the process does not end")
        self.held = held


class Run(Protocol):
    """Runs the program that programs: :func:`run`."""

    def __call__(self, request: Request, descriptors: Collection[int], patience: float, /) -> Verdict:
        """See :func:`run`."""


def run(
    request: Request,
    descriptors: Collection[int],
    patience: float,
    /,
    command: Sequence[str] = COMMAND,
    grace: float = process.GRACE,
    kill: process.Kill = process.kill_group,
) -> Verdict:
    """Runs the program with one request. Blocks for ``patience`` and ``grace`` seconds at most.

    Args:
        request: what it is to do.
        descriptors: open files that it needs.
        patience: seconds that it may take.
        command: the program.
        grace: seconds for it to end once it was killed.
        kill: kills it.

    Raises:
        Unkillable: it did not answer within ``patience`` seconds, and cannot be ended.
    """
    try:
        result = process.run(
            command,
            deadline=patience,
            stdin=json.dumps(request).encode(),
            descriptors=descriptors,
            name="the process that programs",
            grace=grace,
            kill=kill,
        )
    except process.NotStarted as error:
        return Verdict("start", error.errno)
    except process.TimedOut as error:
        if error.leftover is not None:
            raise Unkillable(error.leftover) from error
        return Verdict("time")
    except process.ProcessError as error:
        return Verdict("crash", text=error.message)
    if result.status:
        return Verdict("crash", text=_last_words(result.status, result.errors))
    return judge(result.output)


def judge(output: bytes) -> Verdict:
    """The verdict in what the child wrote; anything but one line of JSON is a crash."""
    try:
        answer = json.loads(output)
        return Verdict(str(answer.get("step", "")), int(answer.get("errno", 0)), int(answer.get("status", 0)))
    except (ValueError, AttributeError, TypeError):
        return Verdict("crash", text="it answered nothing that can be read")


def _last_words(status: int, complaint: bytes) -> str:
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    lines = complaint.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else f"status {status}"


_PRIVILEGED = "the container of devhost may not, it must be privileged for this"

_NODE = {
    errno.EBUSY: "another program has its management engine open",
    errno.EPERM: f"opening its management engine is not permitted: {_PRIVILEGED}",
    errno.EACCES: f"opening its management engine is not permitted: {_PRIVILEGED}",
    errno.ENOENT: "its management engine is gone",
    errno.ENODEV: "its management engine is gone",
    errno.ENXIO: "its management engine is gone",
}

_PROGRAM_ERRORS = {
    errno.EBUSY: "the FPGA is busy: somebody else programs it or uses the region",
    errno.EINVAL: "the driver refuses the request: it has no such port, or takes no such image",
    errno.ETIMEDOUT: "the FPGA did not finish in time",
    errno.EIO: "the FPGA reports an error",
    errno.EPERM: f"the driver does not permit it: {_PRIVILEGED}",
    errno.EACCES: f"the driver does not permit it: {_PRIVILEGED}",
    errno.ENOENT: "the device is gone",
    errno.ENODEV: "the device is gone, or its driver cannot program",
    errno.ENXIO: "the device is gone",
    errno.ENOTTY: "the driver does not know the request",
    errno.EFAULT: "the file became shorter while it was read",
    errno.ENOMEM: "the kernel has no memory for the image",
}

_WRITE = _PROGRAM_ERRORS | {
    errno.ENOENT: "the kernel's firmware loader did not find the file, or the device is gone",
    errno.EROFS: "/sys is mounted read-only for devhost",
    errno.EPERM: f"writing to /sys is not permitted: {_PRIVILEGED}",
    errno.EACCES: f"writing to /sys is not permitted: {_PRIVILEGED}",
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


def why(verdict: Verdict, detail: str = "") -> str:
    """Why programming failed, as the end of a sentence.

    Args:
        detail: what the kernel says of the last error elsewhere.
    """
    match verdict.step:
        case "file":
            return _system(verdict.errno, {}) if verdict.errno else "the file was changed meanwhile"
        case "node":
            return _system(verdict.errno, _NODE) if verdict.errno else "its node is another device's by now"
        case "program":
            return _with(_system(verdict.errno, _PROGRAM_ERRORS), bits(verdict.status) or detail)
        case "flags" | "firmware":
            return _with(_system(verdict.errno, _WRITE), detail)
        case "start":
            return f"the process for it cannot be started: {os.strerror(verdict.errno)}"
        case "time":
            return "it took too long, and the process for it was ended"
    if verdict.text == "signal SIGBUS":
        return _PROGRAM_ERRORS[errno.EFAULT]
    return f"the process for it ended unexpectedly: {verdict.text}"


def bits(status: int) -> str:
    """What the OPAE driver's status says, joined by commas; empty for none."""
    return ", ".join(text for bit, text in enumerate(_BITS) if text and status >> bit & 1)


def _system(number: int, known: dict[int, str]) -> str:
    return known.get(number) or os.strerror(number)


def _with(text: str, detail: str) -> str:
    return f"{text} ({detail})" if detail else text


FIRST = 0.02
"""Seconds before an id that was busy is read for the second time; then twice as many, and so on."""

CAP = 0.5
"""The most of these seconds."""

SPREAD = 0.5
"""The part of each pause that is drawn by lot, so that containers that wait together do not read together."""


Read = Callable[[Sysfs, str], Reading]
"""Reads a file of a driver: :func:`devhost_fpga.model.read`."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time comes from; tests have their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random


def settled(
    sysfs: Sysfs,
    function: str,
    until: float,
    clock: Clock,
    is_stuck: Callable[[], object] = bool,
    read: Read = read,
) -> Reading:
    """The AFU id of a port, once it can be read; as it is at ``until`` if it is busy for so long.

    The drivers answer EBUSY while the port is disabled (``afu_id_show`` in drivers/fpga/dfl-afu-main.c).
    ``is_stuck`` tells that waiting is in vain.
    """
    pause = FIRST
    while (found := read(sysfs, f"{function}/afu_id")).is_busy and not is_stuck():
        left = until - clock.now()
        if left <= 0:
            break
        clock.sleep(min(left, pause * (1 - SPREAD * clock.draw())))
        pause = min(CAP, pause * 2)
    return found


def manager_of(sysfs: Sysfs, engine: str) -> Manager:
    """What the fpga_manager of a management engine says; nothing if there is none."""
    for name in sysfs.names(engine):
        if name.startswith("dfl-fme-mgr"):
            for one in sysfs.names(f"{engine}/{name}/fpga_manager"):
                return manager(sysfs, f"{engine}/{name}/fpga_manager/{one}")
    return Manager()


_OPERATING = "operating"


def label(slot: Slot) -> str:
    """How a user knows a slot."""
    return slot.engine.rpartition("/")[2] if slot.interface is Interface.FIRMWARE else f"port {slot.port}"


class Loader:
    """Has images loaded, by a process of its own.

    Args:
        engines: where it is noted what was loaded, and what hangs.
        run: runs that process.
    """

    def __init__(self, sysfs: Sysfs, engines: Engines, run: Run) -> None:
        self._sysfs = sysfs
        self._engines = engines
        self._run = run

    def load(self, device: str, slot: Slot, program: Program, image: Bitstream, patience: float) -> None:
        """Loads an image. Blocks for ``patience`` seconds, and for ending a process after that.

        Args:
            device: the id of the device that the slot belongs to.

        Raises:
            AllocationError: it is not loaded, or that is unknown.
        """
        if slot.interface is Interface.FIRMWARE:
            self._load_named(device, slot, program, image, patience)
        else:
            self._carry_out(slot, self._port_request(slot, image), patience, (image.descriptor,))

    def is_loaded(self, device: str, slot: Slot, program: Program, image: Bitstream) -> bool:
        """Whether devhost itself loaded this file through an fpga_manager, and nothing since: no id tells."""
        is_ours = self._engines.loaded(slot.engine, device) == self._loaded(slot, program, image)
        return is_ours and self._manager(slot).state == _OPERATING

    def _load_named(
        self, device: str, slot: Slot, program: Program, image: Bitstream, patience: float
    ) -> None:
        has_flags = self._sysfs.exists(f"{slot.engine}/flags")
        if program.partial and not has_flags:
            raise AllocationError("its kernel takes whole images only: remove `partial`")
        request = {
            "do": "firmware",
            "manager": self._sysfs.prefix + slot.engine,
            "name": name_of(self._sysfs, image.path),
            "flags": str(int(program.partial)) if has_flags else "",
        }
        self._engines.forget(slot.engine, device if program.partial else "")
        self._carry_out(slot, request, patience)
        found = manager(self._sysfs, slot.engine)
        if found.state != _OPERATING:
            more = f" ({found.status})" if found.status else ""
            raise AllocationError(f"it was programmed, but its state is {found.state or 'unknown'!r}{more}")
        if identity_at(self._sysfs.prefix + image.path) != image.identity:
            raise AllocationError("the file was changed meanwhile")  # the kernel opened it by its name
        self._engines.remember(slot.engine, device, self._loaded(slot, program, image))

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
        except Unkillable as unkillable:
            self._engines.hangs(slot.engine, unkillable.held)
            raise AllocationError(
                "it took too long and cannot be stopped; nothing more is programmed until the kernel lets go"
            ) from unkillable
        if verdict.step:
            raise AllocationError(why(verdict, self._manager(slot).status))

    def _manager(self, slot: Slot) -> Manager:
        if slot.interface is Interface.FIRMWARE:
            return manager(self._sysfs, slot.engine)
        return manager_of(self._sysfs, slot.engine)

    def _loaded(self, slot: Slot, program: Program, image: Bitstream) -> Loaded:
        # with its inode, for another manager that takes this name later
        return (*identity(self._sysfs, slot.engine), image.identity, program.partial)
