"""The values that describe FPGAs: identifiers, places, units.

The drivers print 128-bit ids as two words of 16 hexadecimal digits, the high word first (``afu_id_show`` in
drivers/fpga/dfl-afu-main.c, ``compat_id_show`` in drivers/fpga/fpga-region.c of the Linux kernel).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from devhost.backend import Device, Health, claim
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import BDF, PciFunction, Sysfs, pci_path, pcie_path, read_now

_ID = re.compile(r"[0-9a-f]{32}")

ONES = "f" * 32
"""An id as read from a function that lost its link, or from a port without a clock."""


@frozen
class Reading:
    """The result of reading a file: its text, or the error (``errno``)."""

    text: str = ""
    error: int = 0

    @property
    def is_absent(self) -> bool:
        """Whether the file does not exist, or its driver answers so."""
        return self.error in (errno.ENOENT, errno.ENOTDIR)

    @property
    def is_busy(self) -> bool:
        """Whether the driver is busy: the port is in reset, such as during programming."""
        return self.error in (errno.EBUSY, errno.EAGAIN)

    @property
    def id(self) -> str:
        """The identifier, 32 lower-case hexadecimal digits; empty if the text is not one, or all ones."""
        digits = normal(self.text)
        return digits if _ID.fullmatch(digits) and digits != ONES else ""

    def flaw(self, what: str) -> str:
        """Why this is not an identifier, as a sentence about ``what``; empty if it is one."""
        if self.error:
            return f"{what} cannot be read: {os.strerror(self.error)}"
        if self.id:
            return ""
        if not self.text:
            return f"{what} is empty"
        if normal(self.text) == ONES:
            return f"{what} reads as ones: the device failed or lost its link"
        shown = self.text if len(self.text) <= 40 else f"{self.text[:40]}…"
        return f"{what} is {shown!r}, expected 32 hexadecimal digits"


def normal(text: str) -> str:
    """An identifier in the spelling that devhost uses: lower case, without ``0x`` and hyphens."""
    return text.strip().lower().removeprefix("0x").replace("-", "")


class FpgaSysfs(Sysfs):
    """Sysfs, with the errors of drivers."""

    def reading(self, path: str) -> Reading:
        """Reads a small file and keeps the error: a busy driver is not a broken one. Never raises."""
        try:
            text = read_now(self.prefix + path).decode(errors="replace").strip()
        except (OSError, ValueError) as error:
            return Reading(error=getattr(error, "errno", None) or errno.EINVAL)
        return Reading(text if text.isprintable() else "?")


def af_name(interface_id: str, afu_id: str) -> str:
    """The name, without domain, of an accelerator function's resource in Intel's plugin.

    ``af-``, three digits of each id, and both ids in URL-safe base64 without padding: 54 characters. Empty if
    an id is missing. (intel-device-plugins-for-kubernetes, pkg/fpga/devtypes.go: ``GetAfuDevType``.)
    """
    if not (_ID.fullmatch(interface_id) and _ID.fullmatch(afu_id)):
        return ""
    from binascii import b2a_base64

    encoded = b2a_base64(bytes.fromhex(interface_id + afu_id), newline=False).decode()
    words = encoded.rstrip("=").replace("+", "-").replace("/", "_")
    return f"af-{interface_id[:3]}.{afu_id[:3]}.{words}"


def region_name(interface_id: str) -> str:
    """The name, without domain, of a region's resource in Intel's plugin; empty without an id."""
    return f"region-{interface_id}" if _ID.fullmatch(interface_id) else ""


LOST = "its PCI function does not respond: it failed or lost its link"
"""Why a device on a dead PCI function is unhealthy."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9._:-]")

_MAX_NAME = 40
"""Characters of the name of a platform device that ids contain; an id may have 63."""


@frozen
class ParentDevice:
    """The PCI function, else the platform device, that something belongs to.

    ``path`` is its directory, ``name`` its PCI address or the name of the platform device: ids begin with it.
    """

    path: str
    name: str
    function: PciFunction | None
    numa_node: int | None
    pcie_path: tuple[str, ...]

    @property
    def whole(self) -> str:
        """Address of the physical function of a virtual one; empty for others."""
        address = self.function.physical_function if self.function else ""
        return address if BDF.fullmatch(address) else ""  # else a damaged link

    @property
    def parts(self) -> frozenset[str]:
        """Claims of the nearest PCI function, and of its physical function."""
        return frozenset(claim.pci(address) for address in (*self.pcie_path[-1:], self.whole) if address)


def legal(name: str) -> str:
    """The name of a platform device without characters that are illegal in ids."""
    return _ILLEGAL.sub("-", name)


_PLUGGED = frozenset({"i2c", "spi", "usb"})
"""Buses whose devices are not part of the PCI function above them, which is only their controller."""


def place(sysfs: Sysfs, path: str) -> ParentDevice:
    """The place of the device at ``path``; ``path`` itself if it is not part of a PCI function."""
    base = pci_path(path)
    if base and not _is_plugged(sysfs, base, path) and (function := sysfs.pci(base)):
        return of_function(function)
    name = legal(path.rpartition("/")[2])[:_MAX_NAME]
    return ParentDevice(path, name, None, sysfs.numa_node(path), pcie_path(base))


def of_function(function: PciFunction) -> ParentDevice:
    """The place that is a PCI function."""
    path = function.path
    return ParentDevice(path, function.address, function, function.numa_node, pcie_path(path))


def _is_plugged(sysfs: Sysfs, above: str, path: str) -> bool:
    """Whether the device at ``path`` is on another bus below the device ``above``."""
    while path != above:
        if sysfs.target(f"{path}/subsystem") in _PLUGGED:
            return True
        path = path.rpartition("/")[0]
    return False


class DeviceKind(StrEnum):
    """The kinds of devices."""

    AF = "af"
    """One accelerator function: a port of a card whose region is programmed."""
    REGION = "region"
    """All ports of one FPGA management engine, or one region of the kernel's own class."""
    CARD = "card"
    """A whole card or chip that XRT drives."""


class Interface(StrEnum):
    """The kernel interfaces for programming."""

    DFL = "dfl"
    """``DFL_FPGA_FME_PORT_PR`` on the node of the management engine (Documentation/fpga/dfl.rst)."""
    OPAE = "opae"
    """``FPGA_FME_PORT_PR`` of the out-of-tree driver."""
    FIRMWARE = "firmware"
    """The ``firmware`` file of an ``fpga_manager``, which Xilinx kernels have."""


@frozen
class Slot:
    """A part of an FPGA that can be programmed separately.

    ``engine`` is the sysfs directory of the management engine (its ``dev`` file has the number of the node)
    or of the ``fpga_manager``; ``port`` is the number of the port there. ``function`` is the sysfs directory
    whose ``afu_id`` is the programmed id; empty if none shows it. ``interface_id`` is 32 lower-case
    hexadecimal digits, empty while unknown.
    """

    interface: Interface
    engine: str
    port: int = 0
    function: str = ""
    interface_id: str = ""


@frozen
class Unit:
    """A device and the nodes that it needs.

    Nodes are given as sysfs directories (``/sys/devices/…``) of character devices; their paths in ``/dev``
    are found by number at Allocate. A container gets ``nodes``, with ``development: true`` also
    ``development``, and with ``management: true`` also ``management``.
    """

    device: Device
    nodes: tuple[str, ...] = ()
    development: tuple[str, ...] = ()
    management: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()
    watched: tuple[str, ...] = ()
    """Files whose contents change without an event: ids, states, error registers."""
    is_busy: bool = False
    """Whether it is being programmed: the kernel answers EBUSY, or its manager reports so."""
    hardware: tuple[str, ...] = ()
    """Directories in sysfs of this unit: other families list no device below them."""
    addresses: tuple[str, ...] = ()
    """PCI addresses of the functions that a container uses, if there are several."""
    lacks_driver: bool = False
    """Whether no driver is bound to it; the reason of its health names the module to load."""
    warning: str = ""
    """A note for operators about a usable device, logged when it changes."""


class Family(Protocol):
    """Finds the units of one kind of driver. Reads only sysfs, and opens no device node."""

    def scan(self) -> Iterable[Unit]:
        """The units that exist now. A unit that cannot be read is unhealthy, not an exception."""


@runtime_checkable
class CanExclude(Protocol):
    """A family of devices that no other family lists."""

    def exclude(self, taken: Collection[str]) -> None:
        """Sets the directories in sysfs that belong to other families, before a scan."""


@runtime_checkable
class CanProbe(Protocol):
    """A family with checks that are too expensive for each scan. They run on another thread."""

    def probe(self, units: Sequence[Unit]) -> Mapping[str, Health]:
        """Health by id; a unit that is not in the answer is healthy."""
