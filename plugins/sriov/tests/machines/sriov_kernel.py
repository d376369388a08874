"""A stand-in for the kernel: what writing to the files of a modelled machine does to it.

It does what drivers/pci/iov.c, pci-sysfs.c and pci-driver.c of Linux 6.12 do, and nothing else.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sriov_tree import SriovTree

PHYSICAL = "0000:02:00.0"
PATH = f"pci0000:00/0000:00:05.0/{PHYSICAL}"
BOOT = "proc/sys/kernel/random/boot_id"


class Kernel:
    """A card of 7 virtual functions, whose interface is ``ens1``, and drivers for them.

    Args:
        root: an empty directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = SriovTree(root)
        self.tree.function(PHYSICAL, "8086:10c9", "igb", below="0000:00:05.0", total=7)
        self.tree.netdev(PATH, "ens1")
        (root / BOOT).parent.mkdir(parents=True)
        (root / BOOT).write_text("first\n")
        (root / "run").mkdir(exist_ok=True)
        for driver in ("igb", "igbvf", "vfio-pci"):
            (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        self.written: list[tuple[str, str]] = []
        self.refuses: dict[str, int] = {}
        """Numbers of errors, by the file's name."""
        self.deaf: set[str] = set()
        """Functions that no driver takes."""

    @property
    def whole(self) -> Path:
        return self.root / "sys/devices" / PATH

    @property
    def virtual(self) -> dict[str, str]:
        """The virtual functions, each with its driver."""
        links = sorted(self.whole.glob("virtfn*"), key=lambda link: int(link.name[6:]))
        return {link.resolve().name: self.driver(link.resolve()) for link in links}

    @staticmethod
    def driver(function: Path) -> str:
        link = function / "driver"
        return link.readlink().name if link.is_symlink() else ""

    def changes(self) -> list[tuple[str, str]]:
        """What was written since the last call: names of files, and texts."""
        written, self.written = self.written, []
        return written

    def write(self, path: Path, text: str) -> None:
        """What ``write(2)`` does."""
        self.written.append((path.name, text.strip()))
        if path.name in self.refuses:
            number = self.refuses[path.name]
            raise OSError(number, os.strerror(number), str(path))
        if path.name == "sriov_numvfs":
            self._count(int(text))
        elif path.name == "unbind":
            path.parent.unlink()
        elif path.name == "drivers_probe":
            self._probe(self.whole.parent / text)
        else:
            path.write_text(f"{text.strip()}\n")

    def _count(self, count: int) -> None:
        if count > 7:
            raise OSError(errno.ERANGE, os.strerror(errno.ERANGE))
        if count and self.virtual:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        for link in self.whole.glob("virtfn*"):
            function = link.resolve()
            (self.root / "sys/bus/pci/devices" / function.name).unlink()
            link.unlink()
            kept = self.root / f"gone/{len(self.written)}"  # sysfs never gives an inode to another one
            kept.mkdir(parents=True, exist_ok=True)
            function.rename(kept / function.name)
        for number in range(count):
            address = f"0000:02:1{number // 4}.{number % 4 * 2}"
            function = self.root / "sys/devices" / self.tree.virtual(PATH, address, "8086:10ca")
            (function / "driver_override").write_text("(null)\n")
            if (self.whole / "sriov_drivers_autoprobe").read_text().strip() == "1":
                self._probe(function)
        (self.whole / "sriov_numvfs").write_text(f"{count}\n")

    def _probe(self, function: Path) -> None:
        if (function / "driver").is_symlink() or function.name in self.deaf:
            return
        override = (function / "driver_override").read_text().strip()
        driver = "igbvf" if override in ("", "(null)") else override
        (function / "driver").symlink_to(self.root / "sys/bus/pci/drivers" / driver)
