"""Reads sysfs, udevd's records and other small files of the kernel.

For backend authors. Reads are bounded, do not block and do not raise. The root may be a recorded tree; paths
are always those of the kernel (``/sys/devices/…``), regardless of the root. The layout is that of
Documentation/filesystems/sysfs.rst and Documentation/ABI/testing/sysfs-bus-pci of the Linux kernel.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from .frozen import frozen

DEVICES = "/sys/devices/"
"""The parent of every device's directory; classes and buses only have links to these."""

OWN_MOUNTS = "/proc/self/mountinfo"
"""The mounts of this process: they show what kind of root it is, not what is in it."""

BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
"""A PCI address with its domain, as sysfs names the directory."""

SCALABLE = re.compile(r"[\w-]+\.sf\.\d{1,10}")
"""A scalable function on the auxiliary bus: ``<module>.sf.<id>`` (kernel, drivers/base/auxiliary.c)."""

PCI_BUS = "/sys/bus/pci/devices"
AUXILIARY_BUS = "/sys/bus/auxiliary/devices"

SYSFS_LIMIT = 4096
"""Bytes of a sysfs attribute: one page at most (kernel, ``sysfs_emit``)."""

RECORD_LIMIT = 64 * 1024
"""Bytes of a ``uevent`` file or of udevd's record of one device."""

TABLE_LIMIT = 8 * 1024 * 1024
"""Bytes of a table of the kernel: about fifty thousand routes."""

_FOREIGN = ("/kernel/", "/fs/")
"""Parts of sysfs without devices: reading files of debugfs and tracefs may block or have side effects."""

_ACTS_ON_READ = frozenset({"hot_add", "vpd", "rom", "config"})
"""Files that are never read: zram's ``hot_add`` creates a device, ``vpd`` may take seconds, others are
binary."""

_BREAKS = re.compile(r"[\t\n]+")

_LISTED = re.compile(r"/sys/(class/[^/]+|bus/[^/]+/devices)/[^/]+")

_ROOT = re.compile(r"/(pci[0-9a-f]{4,8}:[0-9a-f]{2})/")

_DIGITS = re.compile(r"(\d+)")

_HEX = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})")

_NODES = 1 << 16
"""More NUMA nodes than any kernel is built for."""

_NODE = re.compile(r"[bc][0-9]{1,7}:[0-9]{1,7}")

_NODE_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*")
"""Names that drivers give their nodes below ``/dev``; none of them leads out of it."""

_HEADER = 64
"""Bytes of the configuration space that every user may read (sysfs-bus-pci, ``config``)."""


def prefix_of(root: Path) -> str:
    """The prefix that turns an absolute path into one below ``root``; empty for ``/`` itself.

    Links in ``root`` are resolved, so that resolved paths below it begin with this prefix.
    """
    text = os.path.realpath(root)
    return "" if text == "/" else text


def is_live(root: Path) -> bool:
    """Whether ``/sys`` below ``root`` is the running kernel's, as for the host's root in a container.

    Otherwise it is a recorded tree, and the kernel's other interfaces do not describe the same machine.
    """
    try:
        number = os.stat(f"{prefix_of(root)}/sys").st_dev  # noqa: PTH116 - a plain string path
    except OSError:
        return False
    device = f"{os.major(number)}:{os.minor(number)}"
    return any(mount.kind == "sysfs" and mount.number == device for mount in mounts(OWN_MOUNTS))


class Mount(NamedTuple):
    """A mounted file system: its device number ``major:minor``, where it is, its type and its source."""

    number: str
    point: str
    kind: str
    source: str


def mounts(path: str) -> Iterator[Mount]:
    """The mounts in a ``mountinfo`` file; none if it cannot be read."""
    for line in read_table(path) or ():
        # proc_pid_mountinfo(5): id parent major:minor root point options [tags] - type source options
        before, dash, after = line.partition(" - ")
        fields, described = before.split(" "), after.split(" ")
        if dash and len(fields) > 5 and len(described) > 1:
            yield Mount(fields[2], fields[4], described[0], described[1])


def read_table(path: str) -> list[str] | None:
    """The lines of a table of the kernel, such as those in ``/proc``; ``None`` if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a plain string path
            return file.read(TABLE_LIMIT).splitlines()
    except OSError:
        return None


def read_bytes(path: str, limit: int = SYSFS_LIMIT) -> bytes | None:
    """The first ``limit`` bytes of a file; ``None`` if it does not exist or cannot be read."""
    try:
        return read_now(path, limit)
    except (OSError, ValueError):
        return None


def read_now(path: str, limit: int = SYSFS_LIMIT) -> bytes:
    """The first ``limit`` bytes of a file, for a caller to whom the error matters.

    Raises:
        OSError: it does not exist, or its driver refuses.
        ValueError: no file can have this path.
    """
    # O_NONBLOCK: some attributes wait for an event when read; O_NOCTTY: never adopt a terminal.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def read_line(path: str) -> str:
    """The content of a small text file, stripped of white space; empty if it is absent or not text."""
    data = read_bytes(path, SYSFS_LIMIT + 1)
    if data is None or len(data) > SYSFS_LIMIT:
        return ""
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        return ""
    return text if text.replace("\n", "").replace("\t", "").isprintable() else ""


def write(path: Path, text: str) -> None:
    """Writes to a file in sysfs in one ``write``, which sysfs requires.

    Raises:
        OSError: the kernel refuses, or the file does not exist.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def refusal(error: OSError, hints: Mapping[int, str]) -> str:
    """Why the kernel refuses a write: its own words, and in parentheses the hint for this error number."""
    reason, hint = error.strerror or str(error), hints.get(error.errno or 0, "")
    return f"{reason} ({hint})" if hint else reason


def read_lines(path: str) -> list[str]:
    """The lines of a ``uevent`` file or a udevd record; none if it cannot be read."""
    data = read_bytes(path, RECORD_LIMIT)
    # only "\n" ends a line: other separators are part of the text that hardware reports
    return data.decode(errors="replace").removesuffix("\n").split("\n") if data else []


def is_regular(path: str) -> bool:
    """Whether ``path`` is a regular file; does not open it."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def node_number(path: str) -> str:
    """The number of a device node in udevd's notation, ``c10:229`` or ``b8:0``; empty for anything else.

    Only root can create device nodes, so a recorded tree has regular files for them. The only line of such a
    file may be the number of the node that it represents.
    """
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return ""
    if stat.S_ISREG(status.st_mode):
        text = read_line(path)
        return text if _NODE.fullmatch(text) else ""
    letter = "c" if stat.S_ISCHR(status.st_mode) else "b" if stat.S_ISBLK(status.st_mode) else ""
    return letter and f"{letter}{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def link_target(path: str) -> str:
    """The target of a symbolic link, as written in it; empty if there is no link."""
    try:
        return os.readlink(path)  # noqa: PTH115 - a plain string path
    except (OSError, ValueError):
        return ""


def natural(text: str) -> tuple[tuple[str | int, ...], str]:
    """A sort key that puts ``ttyUSB10`` after ``ttyUSB9``; another one for every text."""
    parts: list[str | int] = list(_DIGITS.split(text))
    parts[1::2] = map(int, parts[1::2])  # text and numbers alternate, so text is only compared with text
    return tuple(parts), text


def pcie_path(sys_path: str) -> tuple[str, ...]:
    """PCI addresses from the root port down to the device at ``sys_path``; empty if it is not on PCI."""
    return tuple(part for part in sys_path.split("/") if BDF.fullmatch(part))


def pci_path(sys_path: str) -> str:
    """The directory of the PCI function that the device at ``sys_path`` is, or is below; empty if none."""
    addresses = pcie_path(sys_path)
    return sys_path[: sys_path.rindex(f"/{addresses[-1]}") + len(addresses[-1]) + 1] if addresses else ""


def pcie_root(sys_path: str) -> str:
    """The PCI root complex that the device at ``sys_path`` is below, ``pci0000:3a``; empty if none."""
    found = _ROOT.search(sys_path)
    return found[1] if found else ""


def function_path(sys_path: str) -> str:
    """The directory of the PCI or scalable function that the device at ``sys_path`` is, or is below.

    The innermost one; empty if there is none.
    """
    parts = sys_path.split("/")
    for count in range(len(parts), 0, -1):
        if BDF.fullmatch(parts[count - 1]) or SCALABLE.fullmatch(parts[count - 1]):
            return "/".join(parts[:count])
    return ""


def sysattr(prefix: str, path: str, name: str) -> str:
    """The value of the attribute ``sysattr.<name>`` for the device at ``path``; empty if there is none.

    Links and ``..`` are followed within the part of sysfs that describes devices. Only regular files are
    read; those that are binary, unreadable or larger than a page count as absent. Line breaks and tabs become
    spaces. ``prefix`` is that of the root, see :func:`prefix_of`.
    """
    here = f"{prefix}{path}/{name}"
    if "/" in name:
        here = os.path.realpath(here) if os.path.exists(here) else ""  # noqa: PTH110 - no error wanted
        inside = here.removeprefix(os.path.realpath(f"{prefix}/sys"))
        if inside == here or inside.startswith(_FOREIGN):
            return ""
    if here.rpartition("/")[2] in _ACTS_ON_READ or not is_regular(here):
        return ""
    return " ".join(_BREAKS.split(read_line(here)))


@frozen(slots=True)
class PciFunction:
    """One PCI function. Ids are lower-case hex digits without ``0x``, empty if sysfs has none.

    ``path`` is its directory, ``/sys/devices/…``; ``physical_function`` the address of its physical function,
    if it is a virtual function (sysfs-bus-pci, ``physfn``); ``iommu_group`` the number of its group.
    """

    address: str
    path: str
    vendor: str
    device: str
    subsystem_vendor: str
    subsystem_device: str
    pci_class: str
    driver: str
    numa_node: int | None
    iommu_group: str
    physical_function: str

    @property
    def is_virtual(self) -> bool:
        """Whether it is an SR-IOV virtual function."""
        return bool(self.physical_function)


class Sysfs:
    """The device tree below ``root``. Nothing is cached: each call reads."""

    def __init__(self, root: Path) -> None:
        self.prefix = prefix_of(root)

    def text(self, path: str) -> str:
        """A text attribute, stripped of white space; empty if it is absent, binary or too long."""
        return read_line(self.prefix + path)

    def sysattr(self, path: str, name: str) -> str:
        """See :func:`sysattr`."""
        return sysattr(self.prefix, path, name)

    def integer(self, path: str) -> int | None:
        """A number, decimal or with ``0x``; ``None`` if there is none."""
        try:
            return int(self.text(path), 0)
        except ValueError:
            return None

    def uevent(self, path: str) -> dict[str, str]:
        """The properties in the ``uevent`` file of the device at ``path``."""
        pairs = [line.partition("=") for line in read_lines(f"{self.prefix}{path}/uevent")]
        # the driver core writes its own lines first; text from hardware in a later one cannot replace them
        return {key: value for key, _, value in reversed(pairs) if key}

    def names(self, path: str) -> list[str]:
        """The names in a directory, in natural order; none if it does not exist."""
        try:
            return sorted(os.listdir(self.prefix + path), key=natural)
        except OSError:
            return []

    def listed(self, path: str) -> list[str]:
        """The names in a directory, in natural order; none if it does not exist.

        Raises:
            OSError: it exists and cannot be listed. An empty result would look as if nothing were there.
        """
        try:
            return sorted(os.listdir(self.prefix + path), key=natural)
        except FileNotFoundError:
            return []

    def identities(self, path: str) -> dict[str, int]:
        """The names in a directory, unordered, each with its inode; none if it does not exist.

        sysfs never reuses an inode, so a device that was removed and added again has another one.

        Raises:
            OSError: it exists and cannot be listed. An empty result would look as if nothing were there.
        """
        try:
            with os.scandir(self.prefix + path) as entries:
                return {entry.name: entry.inode() for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def exists(self, path: str) -> bool:
        """Whether there is such a path; any error means "no"."""
        return os.path.exists(self.prefix + path)  # noqa: PTH110 - a plain string path

    def inode(self, path: str) -> int:
        """The inode of a file or directory; 0 if it does not exist. See :meth:`identities`."""
        try:
            return os.stat(self.prefix + path).st_ino  # noqa: PTH116 - a plain string path
        except OSError:
            return 0

    def target(self, path: str) -> str:
        """The last name in the target of a link such as ``driver`` or ``subsystem``; empty without a link."""
        return link_target(self.prefix + path).rpartition("/")[2]

    def driver_override(self, path: str) -> str:
        """The only driver that may bind to a device of a bus (sysfs-bus-pci); empty if every driver may."""
        name = self.text(f"{path}/driver_override")
        return "" if name == "(null)" else name

    def lacks_driver(self, path: str) -> bool:
        """Whether no driver is bound to a device of a bus, and the user has not chosen which one may be."""
        return not self.target(f"{path}/driver") and not self.driver_override(path)

    def link(self, path: str) -> str:
        """The target of a link, as written in it; empty if there is no link."""
        return link_target(self.prefix + path)

    def device(self, path: str) -> str:
        """The directory ``/sys/devices/…`` that a link in a class or bus points to; empty if none."""
        if _LISTED.fullmatch(path):
            # classes and buses link to devices directly, so most links need not be resolved step by step
            direct = os.path.normpath(f"{path}/../{link_target(self.prefix + path)}")
            if direct.startswith(DEVICES) and self.exists(direct):
                return direct
        there = os.path.realpath(self.prefix + path)
        inside = there[len(self.prefix) :] if there.startswith(f"{self.prefix}/") else ""
        return inside if inside.startswith(DEVICES) and self.exists(inside) else ""

    def numa_node(self, path: str, known: MutableMapping[str, int | None] | None = None) -> int | None:
        """The NUMA node of the device at ``path`` or of its nearest ancestor that has one.

        ``None`` if the kernel reports ``-1`` or nothing for all of them.

        Args:
            path: the device's directory as the kernel names it.
            known: a cache of results, to which this call adds. With it, a bridge with many devices is read
                once.
        """
        if not path.startswith(DEVICES):
            return None
        if known is not None and path in known:
            return known[path]
        number = self.integer(f"{path}/numa_node")
        if number is None or not 0 <= number < _NODES:
            number = self.numa_node(path.rpartition("/")[0], known)
        if known is not None:
            known[path] = number
        return number

    def node(self, path: str, usual: str = "") -> str:
        """The path of the node of the device at ``path``: ``/dev/…``, from its ``DEVNAME``.

        ``usual`` if the kernel names none. Whether the node exists and belongs to the device is not checked.
        """
        name = self.uevent(path).get("DEVNAME", "")
        return f"/dev/{name}" if _NODE_NAME.fullmatch(name) else usual

    def hexadecimal(self, path: str) -> str:
        """The digits of a number such as ``0x8086``, in lower case; empty if the file has none."""
        found = _HEX.fullmatch(self.text(path))
        return found[1].lower() if found else ""

    def pci(self, sys_path: str) -> PciFunction | None:
        """The PCI function that the device at ``sys_path`` is, or is below; ``None`` if it is not on PCI."""
        path = pci_path(sys_path)
        if not path:
            return None

        return PciFunction(
            address=path.rpartition("/")[2],
            path=path,
            vendor=self.hexadecimal(f"{path}/vendor"),
            device=self.hexadecimal(f"{path}/device"),
            subsystem_vendor=self.hexadecimal(f"{path}/subsystem_vendor"),
            subsystem_device=self.hexadecimal(f"{path}/subsystem_device"),
            pci_class=self.hexadecimal(f"{path}/class"),
            driver=self.target(f"{path}/driver"),
            numa_node=self.numa_node(path),
            iommu_group=self.target(f"{path}/iommu_group"),
            physical_function=self.target(f"{path}/physfn"),
        )

    def is_dead(self, path: str) -> bool:
        """Whether the PCI function at ``path`` no longer answers: its whole configuration space reads as
        ones.

        The first two bytes are not enough: those of a virtual function are always ones (PCI Express base
        specification, 9.3.4.1.1). A function without power (``D3cold``) is not woken up and counts as alive,
        as does one without a configuration space.
        """
        if self.text(f"{path}/power_state") == "D3cold":
            return False
        header = read_bytes(f"{self.prefix}{path}/config", _HEADER)
        return header is not None and len(header) == _HEADER and not header.strip(b"\xff")


@frozen(slots=True)
class PciIds:
    """The ids of a PCI function: lower-case hex digits, six of them for the class.

    ``path`` is its directory on the bus, ``/sys/bus/pci/devices/…``.
    """

    address: str
    path: str
    vendor: str
    device: str
    pci_class: str


class PciFilter:
    """Finds the PCI functions that a backend knows by their ids, whether or not a driver is bound to them.

    Any other function is read once, until another one has its address. Virtual functions are omitted: they
    have no driver until they are used. Used by one thread.

    Args:
        concerns: whether the backend is interested in a function with these ids.
    """

    def __init__(self, sysfs: Sysfs, concerns: Callable[[PciIds], bool]) -> None:
        self._sysfs = sysfs
        self._concerns = concerns
        self._other: dict[str, int] = {}

    def scan(self, leave_out: Collection[str] = ()) -> Iterator[PciIds]:
        """The functions of interest, in the order of addresses.

        Args:
            leave_out: addresses that are not read.

        Raises:
            OSError: the bus cannot be listed.
        """
        listed = self._sysfs.identities(PCI_BUS)
        self._other = {name: inode for name, inode in self._other.items() if listed.get(name) == inode}
        for address in sorted(listed):
            if address in self._other or address in leave_out or not BDF.fullmatch(address):
                continue
            path = f"{PCI_BUS}/{address}"
            found = PciIds(
                address,
                path,
                self._sysfs.hexadecimal(f"{path}/vendor"),
                self._sysfs.hexadecimal(f"{path}/device"),
                self._sysfs.hexadecimal(f"{path}/class").rjust(6, "0"),
            )
            if not self._concerns(found) or self._sysfs.exists(f"{path}/physfn"):
                self._other[address] = listed[address]
            else:
                yield found
