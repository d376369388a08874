"""The kernel's device tree: all device numbers, their directories in sysfs, and the devices above them.

Everything is read from sysfs below a root, which may be a recorded tree. Paths are those of the kernel
(``/sys/devices/…``), regardless of the root.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

from devhost.backend.frozen import frozen
from devhost.backend.sysfs import DEVICES, PCI_BUS, Sysfs, read_bytes

KINDS = {"c": "char", "b": "block"}
"""The first letter of a device key (``c10:229``), in udevd's notation, and the directory in ``/sys/dev``."""

_NUMBER = re.compile(r"[0-9]+:[0-9]+")

_NVME_CONTROLLER = re.compile(r"nvme[0-9]+")

_COUNTED = re.compile(r"(?:(.+)\.[0-9]+\.auto|(ci_hdrc)\.[0-9]+)")
"""Names with a number that the kernel assigns in the order of probing: those of devices that a driver creates
on the platform bus (``PLATFORM_DEVID_AUTO`` in drivers/base/platform.c, drivers/usb/chipidea/core.c)."""

_COUNT = 32
"""How many of these numbers are tried for former ids: boards have fewer such devices."""


def is_counted(name: str) -> bool:
    """Whether the kernel may give the device another name at the next boot."""
    return _COUNTED.fullmatch(name) is not None


def names_before(name: str) -> tuple[str, ...]:
    """The names that a device may have had at earlier boots; the present one is the first."""
    if not is_counted(name):
        return (name,)
    base, end = _base(name), ".auto" if name.endswith(".auto") else ""
    return tuple(dict.fromkeys((name, *(f"{base}.{number}{end}" for number in range(_COUNT)))))


def _base(name: str) -> str:
    """A counted name without its number; empty for any other name."""
    counted = _COUNTED.fullmatch(name)
    return (counted[1] or counted[2]) if counted else ""


@frozen(slots=True)
class Kobject:
    """One directory of the device tree that is a device. ``properties`` is its ``uevent`` file.

    ``is_class`` is true for devices of a class, which drivers create, and false for those on a bus.
    """

    path: str
    subsystem: str
    properties: Mapping[str, str]
    driver: str
    is_class: bool

    @property
    def name(self) -> str:
        """The kernel's name, with ``/`` in place of the ``!`` in the directory's name."""
        return self.path.rpartition("/")[2].replace("!", "/")

    @property
    def dev_type(self) -> str:
        return self.properties.get("DEVTYPE", "")


class SysTree(Sysfs):
    """Reads the device tree below ``root``. What devices have in common is cached until :meth:`forget`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._kobjects: dict[str, Kobject | None] = {}
        self._texts: dict[tuple[str, str], str] = {}

    def forget(self) -> None:
        """Clears the cache, at the end of a scan."""
        self._kobjects.clear()
        self._texts.clear()

    def numbers(self) -> dict[str, int]:
        """All device numbers as keys (``c10:229``), with the inode number of their links.

        A device that is removed and added again gets a new inode number, even if all else is the same.
        """
        found: dict[str, int] = {}
        for letter, kind in KINDS.items():
            try:
                with os.scandir(f"{self.prefix}/sys/dev/{kind}") as entries:
                    for entry in entries:
                        if _NUMBER.fullmatch(entry.name):
                            found[letter + entry.name] = entry.inode()
            except FileNotFoundError:
                continue  # there are no such devices: a recorded tree, or a kernel without block devices
        return found

    def path_of(self, key: str) -> str:
        """The directory of a device number, ``/sys/devices/…``; empty if it is gone."""
        directory = f"/sys/dev/{KINDS[key[0]]}"
        return self._linked(directory, self.link(f"{directory}/{key[1:]}"))

    def function(self, address: str) -> str:
        """The directory of a PCI function, ``/sys/devices/…``; empty if there is none."""
        return self._linked(PCI_BUS, self.link(f"{PCI_BUS}/{address}"))

    def _linked(self, directory: str, target: str) -> str:
        path = posixpath.normpath(posixpath.join(directory, target)) if target else ""
        return path if path.startswith(DEVICES) else ""

    def kobject(self, path: str) -> Kobject | None:
        """The device whose directory is ``path``; ``None`` for directories that only contain others."""
        if path not in self._kobjects:
            self._kobjects[path] = self._read(path)
        return self._kobjects[path]

    def _read(self, path: str) -> Kobject | None:
        directory, _, subsystem = self.link(f"{path}/subsystem").rpartition("/")
        if not subsystem:
            return None
        properties = self.uevent(path)
        driver = properties.get("DRIVER") or self.target(f"{path}/driver")
        return Kobject(path, subsystem, properties, driver, directory.endswith("/class"))

    def chain(self, path: str) -> tuple[Kobject, ...]:
        """The device at ``path`` and its ancestors, nearest first."""
        found: list[Kobject] = []
        device = path
        while path.startswith(DEVICES):
            # the device itself is read once; its ancestors are cached, since other devices have them, too
            kobject = self._read(path) if path == device else self.kobject(path)
            if kobject is not None:
                found.append(kobject)
                if kobject.subsystem == "nvme-subsystem":
                    controller = self._only_controller(path)
                    if controller:
                        return (*found, *self.chain(controller))
            path = path.rpartition("/")[0]
        return tuple(found)

    def _only_controller(self, path: str) -> str:
        """The controller of an NVMe subsystem that has exactly one; empty otherwise.

        With native multipath, namespaces are below ``/sys/devices/virtual/nvme-subsystem``, which only has
        links to the controllers.
        """
        names = [name for name in self.names(path) if _NVME_CONTROLLER.fullmatch(name)]
        if len(names) != 1:
            return ""
        return self._linked(path, self.link(f"{path}/{names[0]}"))

    def read(self, path: str, attribute: str) -> str:
        """A text attribute of one line in the directory ``path``; empty if there is none.

        Serial numbers and names come from the firmware of devices. A second line would be one in a variable
        of a container, too.
        """
        asked = (path, attribute)
        text = self._texts.get(asked)
        if text is None:
            text = self.text(f"{path}/{attribute}")
            text = text if text.isprintable() else ""
            if path in self._kobjects:
                self._texts[asked] = text
        return text

    def is_odd(self, path: str, attribute: str) -> bool:
        """Whether there is text that :meth:`read` leaves out, because it has more than one plain line."""
        if self.read(path, attribute):
            return False
        return bool((read_bytes(f"{self.prefix}{path}/{attribute}") or b"").strip())

    def cell_name(self, path: str) -> str:
        """The name of the device at ``path`` among those with the same parent, without a counted number.

        ``xhci-hcd`` for ``xhci-hcd.4.auto``, and ``xhci-hcd.1`` for the second with this parent.
        """
        above, _, name = path.rpartition("/")
        base = _base(name)
        if not base:
            return name
        twins = [one for one in self.names(above) if _base(one) == base]
        rank = twins.index(name) if name in twins else 0
        return f"{base}.{rank}" if rank else base

    def stable_name(self, path: str) -> str:
        """The name of the device at ``path``, which does not depend on the order of probing.

        A counted name is replaced with that of the nearest ancestor with another name, and
        :meth:`cell_name`: ``fe800000.usb.xhci-hcd``.
        """
        names: list[str] = []
        while is_counted(path.rpartition("/")[2]):
            names.append(self.cell_name(path))
            path = path.rpartition("/")[0]
        if path.rpartition("/")[0] != DEVICES.rstrip("/") or not names:  # not /sys/devices/platform
            names.append(path.rpartition("/")[2])
        return ".".join(reversed(names))
