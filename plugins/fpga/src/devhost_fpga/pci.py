"""What an FPGA hangs on: a PCI function, or a device of the platform bus."""

from __future__ import annotations

import re
from dataclasses import dataclass

from devhost.backend.sysfs import PciFunction, Sysfs, pci_path, pcie_path

LOST = "its PCI function answers no more: it has failed, or lost its link"
"""Why what lies on a dead function is unhealthy."""

_STRANGE = re.compile(r"[^A-Za-z0-9._:-]")

_LONGEST = 40
"""Characters of the name of a platform device that go into ids, which may have 63."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something lies: ``path`` is the directory of its PCI function, else of its platform device.

    ``name`` is the PCI address, else the platform device's name: what ids begin with. ``whole`` is the
    address of the physical function, where this is a virtual one.
    """

    path: str
    name: str
    function: PciFunction | None
    numa_node: int | None
    pcie_path: tuple[str, ...]

    @property
    def whole(self) -> str:
        """Address of the physical function that this is a virtual one of; empty if it is none."""
        return self.function.physical_function if self.function else ""

    @property
    def parts(self) -> frozenset[str]:
        """Claims of what this is a part of: its PCI function, and the physical one of that."""
        return frozenset(f"pci:{name}" for name in (self.name, self.whole) if self.function and name)


def place(sysfs: Sysfs, path: str) -> Place:
    """Where the device at ``path`` lies; ``path`` itself where that is on no PCI bus."""
    base = pci_path(path)
    function = sysfs.pci(base) if base else None
    return Place(
        path=base or path,
        name=function.address if function else _STRANGE.sub("-", path.rpartition("/")[2])[:_LONGEST],
        function=function,
        numa_node=function.numa_node if function else sysfs.numa_node(path),
        pcie_path=pcie_path(base) if base else (),
    )
