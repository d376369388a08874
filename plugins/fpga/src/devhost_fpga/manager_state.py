"""The state of an FPGA manager of the kernel: whether it is programming, and whether it is healthy.

States: ``state_str`` in drivers/fpga/fpga-mgr.c and Documentation/ABI/testing/sysfs-class-fpga-manager of the
Linux kernel. Lines of ``status``: ``status_show`` there, and further ones in Xilinx kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from devhost.backend import HEALTHY, Health, unhealthy
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import Sysfs

from .attributes import FAILED, READY, RECONFIGURING

BUSY_REASON = "it is being reconfigured"
"""Why a device is unhealthy that has been busy since it was first read."""

MAX_BUSY = 60.0
"""Seconds that a port may be busy: the driver waits at most 8 s for each step (``PR_WAIT_TIMEOUT``)."""

REBIND = "unbind the card from its driver and bind it again"
"""How to recover a port that the driver keeps in reset."""

PROGRAMMING = frozenset({"firmware request", "parse header", "write init", "write", "write complete"})
"""States of a manager while it is programming."""


@frozen
class Manager:
    """The state of an ``fpga_manager``; ``status`` has its error lines, separated by commas."""

    path: str = ""
    state: str = ""
    status: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether it is programming. Unknown states do not count."""
        return self.state in PROGRAMMING

    @property
    def failure(self) -> str:
        """Why the last programming failed; empty if it succeeded or is in progress."""
        if self.is_busy:
            return ""
        return f"{self._error}: program it again" if self._error else ""

    @property
    def stuck(self) -> str:
        """Why a port that still answers EBUSY will never recover; empty if it may recover.

        After an error, the kernel leaves the bridges disabled (``fpga_region_program_fpga`` in
        drivers/fpga/fpga-region.c). It counts resets (``disable_count`` in dfl-afu-main.c), so even a
        successful programming does not end this one. Only new devices have a new count.
        """
        return f"{self._error}, and its driver holds the port in reset: {REBIND}" if self.failure else ""

    @property
    def _error(self) -> str:
        if self.state.endswith("error"):
            more = f" ({self.status})" if self.status else ""
            return f"its FPGA manager is in state {self.state!r}{more}"
        return f"its FPGA manager reports {self.status}" if self.status else ""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that change without a uevent."""
        return (f"{self.path}/state", f"{self.path}/status") if self.path else ()


def manager(sysfs: Sysfs, path: str) -> Manager:
    status = ", ".join(line for line in sysfs.text(f"{path}/status").splitlines() if line)
    return Manager(path, sysfs.text(f"{path}/state"), status)


def manager_of(sysfs: Sysfs, engine: str) -> Manager:
    """The manager of a management engine, which is below the engine or one of its devices; empty if it has
    none.
    """
    for parent in (engine, *(f"{engine}/{name}" for name in sysfs.names(engine) if "mgr" in name)):
        for name in sysfs.names(f"{parent}/fpga_manager"):
            return manager(sysfs, f"{parent}/fpga_manager/{name}")
    return Manager()


@frozen
class LastValues:
    """The last values of a port or an engine that could be read.

    ``since`` is when it was first found busy, on the caller's clock; ``None`` while it is not busy.
    """

    number: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    since: float | None = None


NEVER_READ = LastValues()

Identity = tuple[str, int]
"""A directory in sysfs and its inode, which the kernel never uses again."""


def identity(sysfs: Sysfs, path: str) -> Identity:
    """Distinguishes the directory at ``path`` from a later one of the same name."""
    return path, sysfs.inode(path)


OPERATING = "operating"

_EMPTY = frozenset({"power up", "reset"})
"""States of a chip before its first image: drivers such as xilinx-spi stay in them until then."""


@frozen
class ManagerHealth:
    """The health of what a manager programs, and its attribute ``regionState``."""

    health: Health
    region_state: str
    is_busy: bool = False


def judge(manager: Manager, *, can_program: bool, last: Health | None) -> ManagerHealth:
    """Interprets the state of a manager.

    If devhost can program the chip, an empty one is healthy. ``last`` is the previous health; ``None`` if
    there is none. It stays while the chip is programmed.
    """
    state = manager.state
    if manager.is_busy:
        return ManagerHealth(unhealthy(BUSY_REASON) if last is None else last, RECONFIGURING, is_busy=True)
    if state.endswith("error"):
        return ManagerHealth(unhealthy(manager.failure), FAILED)
    if errors := _errors(manager):
        return ManagerHealth(unhealthy(f"its FPGA manager reports {errors}"), FAILED)
    if not state:
        return ManagerHealth(unhealthy("the state of its FPGA manager cannot be read"), FAILED)
    if state == "power off":
        return ManagerHealth(unhealthy("its FPGA manager reports that it is switched off"), FAILED)
    if state in _EMPTY and not can_program:
        return ManagerHealth(
            unhealthy(f"it is not programmed: its FPGA manager is in state {state!r}"), READY
        )
    # drivers without a state report `unknown`; states of later kernels are treated alike
    return ManagerHealth(HEALTHY, READY)


def _errors(manager: Manager) -> str:
    """The errors in the status of a manager; in an empty chip, only those of an attempt to program it."""
    lines = [line.strip() for line in manager.status.split(",") if line.strip()]
    if manager.state != OPERATING:
        lines = [line for line in lines if line.startswith("reconfig") or line.endswith("error")]
    return ", ".join(lines)
