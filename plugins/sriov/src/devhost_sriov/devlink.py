"""What devlink tells of adapters: the mode of the embedded switch, its ports, and the firmware's profile.

Numbers are those of include/uapi/linux/devlink.h and genetlink.h of the Linux kernel.
"""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from devhost.netlink import GENERIC, ask, attribute, attributes, dump, number, text

FAMILY = "devlink"
CONFIG = "config"
"""The multicast group of all notifications (``DEVLINK_GENL_MCGRP_CONFIG_NAME``)."""

CHANGES = frozenset({3, 4, 7, 8})
"""Commands of notifications after which switches may be others: a device or a port is new, changed or gone
(``DEVLINK_CMD_NEW``, ``_DEL``, ``_PORT_NEW``, ``_PORT_DEL``)."""

MODES: Mapping[int | None, str] = {0: "legacy", 1: "switchdev"}
"""Words for the modes of an embedded switch (``enum devlink_eswitch_mode``)."""

BUS_NAME, DEV_NAME = 1, 2
"""Numbers of the attributes that name the device: ``pci`` and its address."""

GENERIC_HEADER = struct.Struct("=BBH")
"""``struct genlmsghdr``: command, version, nothing."""

_CONTROL, _GETFAMILY = 16, 3
"""The family that knows the others (``GENL_ID_CTRL``), and how it is asked for one."""

_FAMILY_ID, _FAMILY_NAME, _GROUPS = 1, 2, 7
_GROUP_NAME, _GROUP_ID = 1, 2

_GET, _PORT_GET, _ESWITCH_GET, _INFO_GET = 1, 5, 29, 51
_NETDEV_NAME, _ESWITCH_MODE, _FLAVOUR = 7, 25, 77
_VERSION_RUNNING, _VERSION_NAME, _VERSION_VALUE = 101, 103, 104
_PF_NUMBER, _VF_NUMBER, _EXTERNAL, _SF_NUMBER = 127, 128, 149, 164
_PCI_VF, _PCI_SF = 4, 7
_PROFILE = "fw.app.name"
"""Name of the running firmware application: on Intel's adapters the DDP package."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One devlink device. Interfaces by the number of the virtual or scalable function they stand for."""

    mode: str = ""
    profile: str = ""
    virtual: Mapping[int, str] = field(default_factory=dict)
    scalable: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Devlink:
    """All devices by the name of what they are on: a PCI address, a name on the auxiliary bus.

    ``group`` is the number of the multicast group of notifications, ``None`` without devlink.
    """

    switches: Mapping[str, Switch] = field(default_factory=dict)
    group: int | None = None


def read(*, profiles: bool, timeout: float) -> Devlink:
    """Asks for everything; empty where the kernel has no devlink, or no device of it.

    Args:
        profiles: whether to ask for the firmware's profile, which may take the driver to the firmware.
        timeout: seconds for all of it.

    Raises:
        OSError: the kernel refuses, or does not answer in time.
    """
    deadline = time.monotonic() + timeout
    try:
        family, group = _family(timeout)
    except FileNotFoundError:
        return Devlink()
    link = _Link(family, deadline)
    devices = [_name(device) for device in link.all(_GET)]
    if not devices:
        return Devlink(group=group)
    ports = link.all(_PORT_GET)
    modes: dict[str, str] = {}
    found: dict[str, str] = {}
    for device in devices:
        mode = dict(attributes(link.one(_ESWITCH_GET, device))).get(_ESWITCH_MODE)
        modes[device[1]] = MODES.get(number(mode), "")
        if profiles:
            found[device[1]] = profile_in(link.one(_INFO_GET, device))
    return Devlink(switches([name for _, name in devices], modes, found, ports), group)


def switches(
    names: Iterable[str], modes: Mapping[str, str], profiles: Mapping[str, str], ports: Iterable[bytes]
) -> dict[str, Switch]:
    """The devices with their ports, from the attributes of ``DEVLINK_CMD_PORT_NEW`` messages.

    Ports of functions on another host (an adapter with processors of its own shows them) are left out.
    """
    virtual: dict[str, dict[int, str]] = {}
    scalable: dict[str, dict[int, str]] = {}
    for one in ports:
        port = dict(attributes(one))
        bus, name = _name(one)
        interface, flavour = text(port.get(_NETDEV_NAME)), number(port.get(_FLAVOUR))
        if not interface or number(port.get(_EXTERNAL)) or not _is_own(port, bus, name):
            continue
        index = number(port.get({_PCI_VF: _VF_NUMBER, _PCI_SF: _SF_NUMBER}.get(flavour or 0, 0)))
        if index is not None:
            (virtual if flavour == _PCI_VF else scalable).setdefault(name, {})[index] = interface
    return {
        name: Switch(
            modes.get(name, ""), profiles.get(name, ""), virtual.get(name, {}), scalable.get(name, {})
        )
        for name in names
    }


def profile_in(answer: bytes) -> str:
    """The profile that the attributes of a ``DEVLINK_CMD_INFO_GET`` answer name; empty if they name none."""
    for kind, value in attributes(answer):
        version = dict(attributes(value)) if kind == _VERSION_RUNNING else {}
        if text(version.get(_VERSION_NAME)) == _PROFILE:
            return text(version.get(_VERSION_VALUE))
    return ""


def _family(timeout: float) -> tuple[int, int | None]:
    """The number of devlink's family, and that of its multicast group.

    Raises:
        FileNotFoundError: the kernel has no such family.
        OSError: it refuses, or does not answer in time.
    """
    question = GENERIC_HEADER.pack(_GETFAMILY, 1, 0) + attribute(_FAMILY_NAME, FAMILY.encode() + b"\0")
    answer = ask(GENERIC, _CONTROL, question, timeout=timeout)
    found = dict(attributes(answer.payload[GENERIC_HEADER.size :])) if answer else {}
    family = number(found.get(_FAMILY_ID))
    if family is None:
        raise FileNotFoundError(errno.ENOENT, "there is no devlink")
    for _, one in attributes(found.get(_GROUPS, b"")):
        group = dict(attributes(one))
        if text(group.get(_GROUP_NAME)) == CONFIG:
            return family, number(group.get(_GROUP_ID))
    return family, None


@dataclass(frozen=True, slots=True)
class _Link:
    """Questions to the family until ``deadline``, by the monotonic clock. Answers are attributes."""

    family: int
    deadline: float

    def all(self, command: int) -> list[bytes]:
        question = GENERIC_HEADER.pack(command, 1, 0)
        left = self.deadline - time.monotonic()
        return [
            found.payload[GENERIC_HEADER.size :]
            for found in dump(GENERIC, self.family, question, timeout=left)
        ]

    def one(self, command: int, device: tuple[str, str]) -> bytes:
        """The answer of one device; nothing from a driver that does not know the question."""
        named = zip((BUS_NAME, DEV_NAME), device, strict=True)
        question = b"".join(attribute(kind, value.encode() + b"\0") for kind, value in named)
        left = self.deadline - time.monotonic()
        try:
            found = ask(GENERIC, self.family, GENERIC_HEADER.pack(command, 1, 0) + question, timeout=left)
        except TimeoutError:
            raise
        except OSError:
            return b""
        return found.payload[GENERIC_HEADER.size :] if found else b""


def _name(found: bytes) -> tuple[str, str]:
    named = dict(attributes(found))
    return text(named.get(BUS_NAME)), text(named.get(DEV_NAME))


def _is_own(port: Mapping[int, bytes], bus: str, device: str) -> bool:
    """Whether a port is of this very physical function: one device may have the ports of several.

    The number of a physical function is then that of the PCI function (kernel, drivers call
    ``devlink_port_attrs_pci_vf_set`` with it); netdevsim, which is not on PCI, has 0 in all.
    """
    function = device.rpartition(".")[2]
    own = number(port.get(_PF_NUMBER))
    return own is None or bus != "pci" or not function.isdigit() or own == int(function)
