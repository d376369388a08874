"""What a family of drivers finds: things a container can be given, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from devhost.backend import Device, Health


class Kind(StrEnum):
    """What one device of this backend is."""

    AF = "af"
    """One accelerator function: a port of a card whose region is programmed."""
    REGION = "region"
    """All ports of one FPGA management engine, or one region of the kernel's own class."""
    CARD = "card"
    """A whole card or chip that a runtime (XRT) drives."""


class Interface(StrEnum):
    """How the kernel lets a region be programmed."""

    DFL = "dfl"
    """``DFL_FPGA_FME_PORT_PR`` on the node of the management engine (Documentation/fpga/dfl.rst)."""
    OPAE = "opae"
    """``FPGA_FME_PORT_PR`` of the driver outside the kernel's tree."""
    FIRMWARE = "firmware"
    """The ``firmware`` file of an ``fpga_manager``, which Xilinx's kernels have."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One place in an FPGA that can be programmed by itself.

    ``engine`` is the sysfs directory of what programs it: the management engine (its ``dev`` file names the
    node), or the ``fpga_manager``; ``port`` the number of the port there. ``function`` is the sysfs directory
    where ``afu_id`` tells what is programmed now; empty where nothing tells. ``interface_id`` is 32
    lower-case hexadecimal digits, empty while unknown.
    """

    interface: Interface
    engine: str
    port: int = 0
    function: str = ""
    interface_id: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """A device and what it takes to use it.

    Nodes are sysfs directories (as the kernel names them, ``/sys/devices/…``) of character devices; which
    file in ``/dev`` each is shows when it is allocated, by its number. A container gets ``nodes``;
    ``development`` too where the resource says ``development: true``, ``management`` where it says
    ``management: true``.
    """

    device: Device
    nodes: tuple[str, ...] = ()
    development: tuple[str, ...] = ()
    management: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()
    watched: tuple[str, ...] = ()
    """Files whose contents change without an event: ids, states, error registers."""
    is_busy: bool = False
    """It is being programmed now: the kernel answers EBUSY, or its manager is between two states."""
    hardware: tuple[str, ...] = ()
    """Directories in sysfs that this unit speaks for: other families leave out what is below them."""
    addresses: tuple[str, ...] = ()
    """PCI addresses of the functions that a container uses, where they are several."""
    lacks_driver: bool = False
    """No driver is bound to it; why it is unhealthy says which module to load."""
    warning: str = ""
    """What somebody should know of it though it can be used: the log has it, each time that it changes."""


class Family(Protocol):
    """One kind of driver: finds its units in sysfs, reads nothing but sysfs, opens no device node."""

    def scan(self) -> Iterable[Unit]:
        """The units that exist now. One that cannot be read is an unhealthy unit, never an exception."""


@runtime_checkable
class CanProbe(Protocol):
    """A family with checks too dear for each scan. They run on another thread than :meth:`Family.scan`."""

    def probe(self, units: Sequence[Unit]) -> Mapping[str, Health]:
        """Health by the ids of some of its own units; one that it does not name is well."""
