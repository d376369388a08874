"""The driver of the OPAE project, outside the kernel's tree: ``intel-fpga-pci`` with its class ``fpga``."""

from __future__ import annotations

import re

from devhost.backend.sysfs import Sysfs

from .engine import Layout
from .engine_units import EngineUnits
from .unit import Interface

CLASS = "/sys/class/fpga"
"""Below it, each card's container."""

LAYOUT = Layout(
    interface=Interface.OPAE,
    listing=CLASS,
    container=re.compile(r"intel-fpga-dev\.[0-9]+"),
    engine=re.compile(r"intel-fpga-fme\.[0-9]+"),
    port=re.compile(r"intel-fpga-port\.[0-9]+"),
    region=re.compile(r"(?!)"),
    module="intel_fpga_afu",
)


class Opae(EngineUnits):
    """Cards driven by ``intel-fpga-pci``."""

    def __init__(self, sysfs: Sysfs) -> None:
        super().__init__(sysfs, LAYOUT)
