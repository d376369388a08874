"""What the state of a kernel's FPGA manager means for whoever wants to use the chip.

The states are those of ``state_str`` in drivers/fpga/fpga-mgr.c and of Documentation/ABI/testing/
sysfs-class-fpga-manager of the Linux kernel; the lines of ``status`` those of its ``status_show``, with
those that Xilinx's kernels have beyond them.
"""

from __future__ import annotations

from dataclasses import dataclass

from devhost.backend import HEALTHY, Health, unhealthy

from .attributes import FAILED, READY, RECONFIGURING
from .busy import MEANWHILE, Manager

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
