"""Real block devices that come and go at will: ``zram``, made and removed as root.

``/sys/class/zram-control`` (kernel: Documentation/ABI/testing/sysfs-class-zram): reading ``hot_add``
makes a device and gives its number, writing a number to ``hot_remove`` removes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROL = Path("/sys/class/zram-control")
BLOCK = Path("/sys/class/block")


def missing() -> str:
    """Why zram cannot be used here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root"
    return "" if CONTROL.is_dir() else "the zram module is not loaded"


class Zram:
    """Makes and removes devices, and knows which of them are its own."""

    def __init__(self) -> None:
        self.own: set[int] = set()

    def add(self) -> tuple[int, float]:
        """Makes a device; gives its number and the monotonic time just before."""
        began = time.monotonic()
        number = int((CONTROL / "hot_add").read_text(encoding="ascii"))
        self.own.add(number)
        return number, began

    def remove(self, number: int) -> float:
        """Removes a device; gives the monotonic time just before.

        Raises:
            OSError: somebody keeps it open.
        """
        for attempt in range(50):
            began = time.monotonic()
            try:
                (CONTROL / "hot_remove").write_text(str(number), encoding="ascii")
            except OSError:
                if attempt == 49:
                    raise
                time.sleep(0.02)  # whoever looks at a new disk (udevd, blkid) keeps it busy for a moment
            else:
                break
        self.own.discard(number)
        return began


@contextmanager
def zram() -> Iterator[Zram]:
    """A :class:`Zram` whose devices are all removed in the end."""
    made = Zram()
    try:
        yield made
    finally:
        for number in sorted(made.own):
            made.remove(number)


def existing() -> set[str]:
    """Names of the zram devices that exist now."""
    return {path.name for path in BLOCK.glob("zram*")}
