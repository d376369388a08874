"""The state of a kernel's FPGA manager: whether it is programming, and whether it is healthy.

The states are those of ``state_str`` in drivers/fpga/fpga-mgr.c of the Linux kernel; what a manager reports
as ``status`` is in Documentation/ABI/testing/sysfs-class-fpga-manager.

The states are those of ``state_str`` in drivers/fpga/fpga-mgr.c and of Documentation/ABI/testing/
sysfs-class-fpga-manager of the Linux kernel; the lines of ``status`` those of its ``status_show``, with
those that Xilinx's kernels have beyond them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from devhost.backend import HEALTHY, Health, unhealthy
from devhost.backend.sysfs import Sysfs

from .attributes import FAILED, READY, RECONFIGURING

MEANWHILE = "it is being reconfigured"
"""Why something is unhealthy that could not be read even once, because it is being programmed."""

LONGEST = 60.0
"""Seconds that a port may be busy: the driver waits 8 s at most for each step (``PR_WAIT_TIMEOUT``)."""

REBIND = "unbind the card from its driver and bind it again"
"""What brings back a port that the driver does not take out of reset."""

PROGRAMMING = frozenset({"firmware request", "parse header", "write init", "write", "write complete"})
"""States of a manager on the way from one image to the next."""


@dataclass(frozen=True, slots=True)
class Manager:
    """What an ``fpga_manager`` says of itself; ``status`` are its error lines, joined."""

    path: str = ""
    state: str = ""
    status: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether it is between two images. A state that no kernel had so far is none of these."""
        return self.state in PROGRAMMING

    @property
    def failure(self) -> str:
        """Why the last programming failed, as a sentence; empty if it did not, or is still going on."""
        if self.is_busy:
            return ""
        return f"{self._trouble}: program it again" if self._trouble else ""

    @property
    def stuck(self) -> str:
        """Why a port of it that still answers EBUSY will not come back; empty where it may.

        After an error the kernel leaves the bridges disabled (``fpga_region_program_fpga`` in
        drivers/fpga/fpga-region.c), and resets are counted (``disable_count`` in dfl-afu-main.c), so that not
        even a programming that succeeds ends this one. A new count comes with new devices.
        """
        return f"{self._trouble}, and its driver holds the port in reset: {REBIND}" if self.failure else ""

    @property
    def _trouble(self) -> str:
        if self.state.endswith(" error"):
            more = f" ({self.status})" if self.status else ""
            return f"its FPGA manager is in state {self.state!r}{more}"
        return f"its FPGA manager reports {self.status}" if self.status else ""

    @property
    def files(self) -> tuple[str, ...]:
        """What changes without an event."""
        return (f"{self.path}/state", f"{self.path}/status") if self.path else ()


def manager(sysfs: Sysfs, path: str) -> Manager:
    """What the manager at ``path`` says."""
    status = ", ".join(line for line in sysfs.text(f"{path}/status").splitlines() if line)
    return Manager(path, sysfs.text(f"{path}/state"), status)


@dataclass(frozen=True, slots=True)
class Known:
    """What was last read of a port or an engine while it could be read.

    ``since`` is when it was first found busy, on the clock of who asks; ``None`` while it is not.
    """

    number: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    since: float | None = None


Identity = tuple[str, int]
"""A directory in sysfs and its inode, which the kernel never gives to another one."""


class Memory:
    """What was known of hardware, for as long as the same hardware stays. Used by one thread."""

    def __init__(self) -> None:
        self._known: Mapping[Identity, Known] = {}

    def of(self, identity: Identity) -> Known:
        """What is known of it; nothing of what was never read."""
        return self._known.get(identity, Known())

    def replace(self, known: Mapping[Identity, Known]) -> None:
        """Takes what is known now; what is not in it has gone."""
        self._known = dict(known)


def identity(sysfs: Sysfs, path: str) -> Identity:
    """What tells the directory at ``path`` from one that takes its name later."""
    try:
        return path, os.stat(sysfs.prefix + path).st_ino  # noqa: PTH116 - a plain string path
    except OSError:
        return path, 0


OPERATING = "operating"

_PASSING = frozenset({"firmware request", "parse header", "write init", "write", "write complete"})
"""States that end by themselves."""

_EMPTY = frozenset({"power up", "reset"})
"""States of a chip that waits for its first image: drivers such as xilinx-spi stay in them until then."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict on what a manager programs; ``word`` is one of the attribute ``regionState``."""

    health: Health
    word: str
    is_busy: bool = False


def judge(manager: Manager, *, can_program: bool, last: Health | None) -> Verdict:
    """What the state of a manager means.

    Args:
        can_program: whether devhost could program it, so that an empty chip is no useless one.
        last: the verdict before; ``None`` if this is the first. It stays while the chip is reconfigured.
    """
    state = manager.state
    if state in _PASSING:
        return Verdict(unhealthy(MEANWHILE) if last is None else last, RECONFIGURING, is_busy=True)
    if state.endswith("error"):
        more = f" ({manager.status})" if manager.status else ""
        return Verdict(unhealthy(f"its FPGA manager is in state {state!r}{more}: program it again"), FAILED)
    if trouble := _trouble(manager):
        return Verdict(unhealthy(f"its FPGA manager reports {trouble}"), FAILED)
    if not state:
        return Verdict(unhealthy("the state of its FPGA manager cannot be read"), FAILED)
    if state == "power off":
        return Verdict(unhealthy("it is switched off, says its FPGA manager"), FAILED)
    if state in _EMPTY and not can_program:
        return Verdict(
            unhealthy(f"nothing is programmed in it: its FPGA manager is in state {state!r}"), READY
        )
    # `unknown` is what drivers say that cannot tell; a word of a later kernel says no more to us
    return Verdict(HEALTHY, READY)


def _trouble(manager: Manager) -> str:
    """The errors in a manager's status. In an empty chip, only those of an attempt to program it are some."""
    lines = [line.strip() for line in manager.status.split(",") if line.strip()]
    if manager.state != OPERATING:
        lines = [line for line in lines if line.startswith("reconfig") or line.endswith("error")]
    return ", ".join(lines)
