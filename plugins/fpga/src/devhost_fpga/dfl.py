"""The driver in the kernel's own tree: Device Feature Lists (Documentation/fpga/dfl.rst).

Attributes: Documentation/ABI/testing/sysfs-platform-dfl-fme, sysfs-platform-dfl-port,
sysfs-class-fpga-region.
"""

from __future__ import annotations

import re

from devhost.backend.sysfs import Sysfs

from .engine import Layout
from .engine_units import EngineUnits
from .unit import Interface

CLASS = "/sys/class/fpga_region"
"""Below it, each card's container; other drivers have regions there too, without engines and ports."""

LAYOUT = Layout(
    interface=Interface.DFL,
    listing=CLASS,
    container=re.compile(r"region[0-9]+"),
    engine=re.compile(r"dfl-fme\.[0-9]+"),
    port=re.compile(r"dfl-port\.[0-9]+"),
    region=re.compile(r"dfl-fme-region\.[0-9]+"),
    module="dfl_afu",
)


class Dfl(EngineUnits):
    """Cards driven by ``dfl-pci``, or by another driver that enumerates Device Feature Lists."""

    def __init__(self, sysfs: Sysfs) -> None:
        super().__init__(sysfs, LAYOUT)
