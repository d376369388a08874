"""A machine made of plain files: ``/sys``, ``/dev`` and the records of udevd.

Backends read everything below ``context.root``, so a tree of files can replace hardware in their tests. It
needs neither root nor kernel modules: device nodes are plain files, as in a tree recorded by an ordinary
user::

    tree = Tree(tmp_path)
    tree.pci("pci0000:3a/0000:3a:00.0", driver="pcieport")
    tree.device("pci0000:3a/0000:3a:00.0/mycard/card0", "mycard", "mycard0", "240:0", {"serial": "A1"})

The layout is that of sysfs(5) and of Documentation/ABI/testing/sysfs-dev, sysfs-bus-pci and
sysfs-uevent of the Linux kernel.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from devhost.backend import Event

BUSES = frozenset(
    {"auxiliary", "cxl", "i2c", "mdev", "nd", "pci", "platform", "scsi", "spi", "usb", "vdpa", "virtio"}
)
"""Subsystems that are buses: listed below ``/sys/bus``; all others are classes."""


def unpack(archive: Path, root: Path) -> None:
    """Unpacks a machine below ``root`` that ``devhost record`` recorded and ``tar`` packed.

    Raises ``tarfile.TarError`` if it is not an archive, or contains a path outside ``root``.
    """
    with tarfile.open(archive) as packed:
        # Python 3.11.2 of Debian 12 has no filters yet; from 3.12 on they are required
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(root)


class Tree:
    """Builds a machine below ``root``. Paths of devices are relative to ``/sys/devices``.

    A repeated call adds to existing files, so the order of the calls does not matter.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in ("sys/dev/char", "sys/dev/block", "sys/class", "sys/bus", "dev", "run/udev/data"):
            (root / directory).mkdir(parents=True, exist_ok=True)

    def file(self, path: str, text: str = "") -> Path:
        """Creates a file with this text and a line feed, as in sysfs; returns its path on this machine."""
        data = f"{text}\n".encode() if text else b""
        self._make(path, lambda file: _write(file, data))
        return self.root / path.lstrip("/")

    def link(self, path: str, target: str) -> None:
        """Creates a symbolic link between two absolute paths of the tree, relative as in sysfs."""
        relative = _relative(target, path)
        try:
            self._make(path, lambda link: os.symlink(relative, link))  # noqa: PTH211 - as below
        except FileExistsError:
            if str((self.root / path.lstrip("/")).readlink()) != relative:
                raise

    def node(self, path: str, number: str = "") -> None:
        """Creates a device node: a plain file.

        With ``number`` (``c10:229``) it is independent of sysfs, like nodes that exist before their module is
        loaded. A node that sysfs declares needs no number.
        """
        if number:
            self.file(path, number)
        else:
            self._make(path, _touch)

    def device(
        self,
        path: str,
        subsystem: str,
        node: str = "",
        number: str = "",
        files: Mapping[str, str] | None = None,
        **uevent: str,
    ) -> str:
        """Creates a directory of the device tree with all links to it.

        Args:
            path: below ``/sys/devices``.
            subsystem: its class or bus.
            node: the device node below ``/dev``, if it has one.
            number: ``major:minor`` of the node.
            files: attributes by their path below the device.
            uevent: further content of its ``uevent`` file; ``DRIVER`` also makes the ``driver`` link.

        Returns:
            The device's ``sys_path``: ``/sys/devices/…``.
        """
        sys_path = f"/sys/devices/{path}"
        name = path.rpartition("/")[2]
        listing = f"/sys/bus/{subsystem}" if subsystem in BUSES else f"/sys/class/{subsystem}"
        self.link(f"{sys_path}/subsystem", listing)
        self.link(f"{listing}/devices/{name}" if subsystem in BUSES else f"{listing}/{name}", sys_path)
        parent, _, above = path.rpartition("/")[0].rpartition("/")
        if subsystem not in BUSES and above == subsystem and parent != "virtual":
            # the kernel puts a device of a class below a directory named after the class, and links to its
            # parent
            self.link(f"{sys_path}/device", f"/sys/devices/{parent}")
        if driver := uevent.get("DRIVER"):
            drivers = f"/sys/bus/{subsystem}/drivers/{driver}"
            self.link(f"{sys_path}/driver", drivers)
            with suppress(FileExistsError):
                self._make(drivers, os.mkdir)
        for attribute, text in (files or {}).items():
            self.file(f"{sys_path}/{attribute}", text)
        if node:
            major, _, minor = number.partition(":")
            uevent = {"MAJOR": major, "MINOR": minor, "DEVNAME": node} | uevent
            self.file(f"{sys_path}/dev", number)
            self.link(f"/sys/dev/{'block' if subsystem == 'block' else 'char'}/{number}", sys_path)
            self.node(f"/dev/{node}")
        self.file(f"{sys_path}/uevent", "\n".join(f"{key}={value}" for key, value in uevent.items()))
        return sys_path

    def pci(
        self,
        path: str,
        *,
        driver: str = "",
        vendor: str = "0x8086",
        device: str = "0x0001",
        numa_node: int = -1,
        iommu_group: int | None = None,
        files: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a PCI function; the last part of ``path`` is its address. Returns its ``sys_path``."""
        address = path.rpartition("/")[2]
        facts = {"vendor": vendor, "device": device, "numa_node": str(numa_node), "class": "0x000000"}
        uevent = {"DRIVER": driver} if driver else {}
        sys_path = self.device(path, "pci", files=facts | dict(files or {}), PCI_SLOT_NAME=address, **uevent)
        if iommu_group is not None:
            group = f"/sys/kernel/iommu_groups/{iommu_group}"
            self.link(f"{group}/devices/{address}", sys_path)
            self.link(f"{sys_path}/iommu_group", group)
        return sys_path

    def function(
        self,
        address: str,
        ids: str,
        driver: str = "",
        *,
        below: str = "",
        pci_class: str = "0x020000",
        subsystem: str = "",
        numa_node: int = 0,
        group: int | None = None,
        files: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a PCI function like :meth:`pci`, with the ports above it; returns its ``sys_path``.

        Args:
            address: the address of the function.
            ids: ``vendor:device``, in the format of lspci.
            driver: the driver that it is bound to; empty for none.
            below: the addresses from the root port down through the ports of switches, separated by ``/``;
                empty for a function of the root bus.
            pci_class: the class in the format of sysfs (``pci_ids.h``); ``0x020000`` is Ethernet.
            subsystem: the ids of the board; those of the function if not given.
            numa_node: its NUMA node; ``-1`` for none.
            group: the number of its IOMMU group.
            files: further attributes.
        """
        vendor, _, device = ids.partition(":")
        board, _, model = (subsystem or ids).partition(":")
        path = f"pci{(below or address)[:7]}"
        for port in below.split("/") if below else ():
            path = f"{path}/{port}"
            bridge = {"class": "0x060400"}
            self.pci(path, driver="pcieport", device="0x2030", numa_node=numa_node, files=bridge)
        facts = {"class": pci_class, "subsystem_vendor": f"0x{board}", "subsystem_device": f"0x{model}"}
        return self.pci(
            f"{path}/{address}",
            driver=driver,
            vendor=f"0x{vendor}",
            device=f"0x{device}",
            numa_node=numa_node,
            iommu_group=group,
            files=facts | dict(files or {}),
        )

    def virtual_functions(self, physical: str, *virtual: str, total: int = 0) -> None:
        """Makes PCI functions the virtual functions of another (sysfs-bus-pci, ``physfn``, ``virtfn<N>``).

        Args:
            physical: the ``sys_path`` of the physical function.
            virtual: the ``sys_path`` of each of its virtual functions, in the order of their numbers.
            total: the maximum of the hardware; at least the number of functions.
        """
        self.file(f"{physical}/sriov_totalvfs", str(max(total, len(virtual))))
        self.file(f"{physical}/sriov_numvfs", str(len(virtual)))
        for number, path in enumerate(virtual):
            self.link(f"{physical}/virtfn{number}", path)
            self.link(f"{path}/physfn", physical)

    def udev_record(self, key: str, *lines: str) -> None:
        """Writes ``/run/udev/data/<key>``, the record of udevd, with lines such as ``E:ID_BUS=usb``."""
        self.file(f"/run/udev/data/{key}", "\n".join(lines))

    def remove(self, sys_path: str) -> Event:
        """Removes a device with its children, nodes and all links to it; returns the kernel's event."""
        gone = self.root / sys_path.lstrip("/")
        subsystem = (gone / "subsystem").readlink().name
        for uevent in gone.rglob("uevent"):
            facts = dict(line.split("=", 1) for line in uevent.read_text().splitlines())
            if "DEVNAME" in facts:
                (self.root / "dev" / facts["DEVNAME"]).unlink(missing_ok=True)
        node = dict(line.split("=", 1) for line in (gone / "uevent").read_text().splitlines()).get("DEVNAME")
        shutil.rmtree(gone)
        for directory, _, files in os.walk(self.root / "sys"):
            for name in files:  # links to nothing among them
                if not os.path.exists(path := f"{directory}/{name}"):  # noqa: PTH110 - as below
                    os.unlink(path)  # noqa: PTH108
        return Event(subsystem, "remove", sys_path, f"/dev/{node}" if node else "")

    def _make(self, path: str, make: Callable[[str], object]) -> None:
        """Makes something in a directory that may not exist yet; hundreds of thousands of times in tests."""
        place = f"{self.root}/{path.lstrip('/')}"
        try:
            make(place)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120 - several times faster
            make(place)


def _relative(target: str, link: str) -> str:
    """The target of a link, both absolute and normalized: ``os.path.relpath`` takes several times as long."""
    here, there = link.split("/")[:-1], target.split("/")
    while here and there and here[0] == there[0]:
        del here[0], there[0]
    return "/".join([".."] * len(here) + there) or "."


def _touch(file: str) -> None:
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


def _write(file: str, data: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
