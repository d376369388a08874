"""What is found of FPGAs, as values: identifiers, places, units.

The drivers print 128 bits as two words of 16 hexadecimal digits, the high one first (``afu_id_show`` in
drivers/fpga/dfl-afu-main.c, ``compat_id_show`` in drivers/fpga/fpga-region.c of the Linux kernel).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from devhost.backend import Device, Health, claim
from devhost.backend.sysfs import SYSFS_LIMIT, PciFunction, Sysfs, pci_path, pcie_path

_ID = re.compile(r"[0-9a-f]{32}")

ONES = "f" * 32
"""What a function that lost its link, or a port without a clock, reads as."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of reading one file: its text, or the number of the error (``errno``)."""

    text: str = ""
    error: int = 0

    @property
    def is_absent(self) -> bool:
        """Whether there is nothing to read: no such file, or a driver that answers so."""
        return self.error in (errno.ENOENT, errno.ENOTDIR)

    @property
    def is_busy(self) -> bool:
        """Whether the driver asks to come again: the port is in reset, as while it is being programmed."""
        return self.error in (errno.EBUSY, errno.EAGAIN)

    @property
    def id(self) -> str:
        """The identifier, 32 lower-case hexadecimal digits; empty where it is none, or all ones."""
        digits = normal(self.text)
        return digits if _ID.fullmatch(digits) and digits != ONES else ""

    def flaw(self, what: str) -> str:
        """Why this is no identifier, as a sentence about ``what``; empty where it is one."""
        if self.error:
            return f"{what} cannot be read: {os.strerror(self.error)}"
        if self.id:
            return ""
        if not self.text:
            return f"{what} is empty"
        if normal(self.text) == ONES:
            return f"{what} reads as ones: it has failed, or lost its link"
        shown = self.text if len(self.text) <= 40 else f"{self.text[:40]}…"
        return f"{what} is {shown!r}, and not 32 hexadecimal digits"


def normal(text: str) -> str:
    """An identifier as all of devhost writes it: lower case, without ``0x`` and without hyphens."""
    return text.strip().lower().removeprefix("0x").replace("-", "")


def read(sysfs: Sysfs, path: str) -> Reading:
    """Reads a small file and keeps the error, which tells "busy" from "broken". Never raises."""
    try:
        descriptor = os.open(sysfs.prefix + path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        return Reading(error=getattr(error, "errno", None) or errno.EINVAL)
    try:
        data = os.read(descriptor, SYSFS_LIMIT)
    except OSError as error:
        return Reading(error=error.errno or errno.EIO)
    finally:
        os.close(descriptor)
    text = data.decode(errors="replace").strip()
    return Reading(text if text.isprintable() else "?")


def af_name(interface_id: str, afu_id: str) -> str:
    """The name of an accelerator function's resource, without domain, as Intel's plugin made it.

    ``af-``, three digits of each id, and both ids in base64 for URLs without padding: 54 characters. Empty
    where an id is missing. (intel-device-plugins-for-kubernetes, pkg/fpga/devtypes.go: ``GetAfuDevType``.)
    """
    if not (_ID.fullmatch(interface_id) and _ID.fullmatch(afu_id)):
        return ""
    from binascii import b2a_base64

    encoded = b2a_base64(bytes.fromhex(interface_id + afu_id), newline=False).decode()
    words = encoded.rstrip("=").replace("+", "-").replace("/", "_")
    return f"af-{interface_id[:3]}.{afu_id[:3]}.{words}"


def region_name(interface_id: str) -> str:
    """The name of a region's resource, without domain, as Intel's plugin made it; empty without an id."""
    return f"region-{interface_id}" if _ID.fullmatch(interface_id) else ""


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
        return frozenset(claim.pci(name) for name in (self.name, self.whole) if self.function and name)


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
    """What operators should know of it though it can be used: the log has it, each time that it changes."""


class Family(Protocol):
    """One kind of driver: finds its units in sysfs, reads nothing but sysfs, opens no device node."""

    def scan(self) -> Iterable[Unit]:
        """The units that exist now. One that cannot be read is an unhealthy unit, never an exception."""


@runtime_checkable
class CanProbe(Protocol):
    """A family with checks too expensive for each scan. They run on another thread than scans."""

    def probe(self, units: Sequence[Unit]) -> Mapping[str, Health]:
        """Health by the ids of some of its own units; one that it does not name is healthy."""
