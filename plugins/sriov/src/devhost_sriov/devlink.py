"""What devlink tells of adapters: the mode of the embedded switch, its ports, and the firmware's profile.

pyroute2 has devlink's commands, but its table of attributes ends with kernel 5.9, before scalable functions
came. So the few attributes needed are named here, by their numbers in include/uapi/linux/devlink.h, for its
generic netlink socket. pyroute2 is imported by the calls, never by importing this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

FAMILY = "devlink"
CONFIG = "config"
"""The multicast group of all notifications (``DEVLINK_GENL_MCGRP_CONFIG_NAME``)."""

CHANGES = frozenset({3, 4, 7, 8})
"""Commands of notifications after which switches may be others: a device or a port is new, changed or gone
(``DEVLINK_CMD_NEW``, ``_DEL``, ``_PORT_NEW``, ``_PORT_DEL``)."""

MODES = {0: "legacy", 1: "switchdev"}
"""Words for the modes of an embedded switch (``enum devlink_eswitch_mode``)."""

BUS_NAME, DEV_NAME = 1, 2
"""Numbers of the attributes that name the device: ``pci`` and its address."""

_ENOENT = 2
_GET, _PORT_GET, _ESWITCH_GET, _INFO_GET = 1, 5, 29, 51
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


async def read(*, profiles: bool) -> Devlink:
    """Asks for everything; empty where the kernel has no devlink, or no device of it.

    Args:
        profiles: whether to ask for the firmware's profile, which may take the driver to the firmware.

    Raises:
        Exception: pyroute2 raises whatever it likes.
    """
    from pyroute2.netlink.exceptions import NetlinkError

    socket, _ = _classes()
    async with socket() as link:
        try:
            await link.bind(FAMILY, _classes()[1])
        except NetlinkError as error:
            if error.code == _ENOENT:
                return Devlink()
            raise
        group = link.mcast_groups.get(CONFIG)
        devices = [_name(message) for message in await _ask(link, _GET)]
        if not devices:
            return Devlink(group=group)
        ports = await _ask(link, _PORT_GET)
        modes: dict[str, str] = {}
        found: dict[str, str] = {}
        for device in devices:
            for message in await _maybe(link, _ESWITCH_GET, device):
                modes[device[1]] = MODES.get(message.get_attr("ESWITCH_MODE"), "")
            if profiles:
                for message in await _maybe(link, _INFO_GET, device):
                    found[device[1]] = profile_in(message)
    return Devlink(switches([name for _, name in devices], modes, found, ports), group)


def switches(
    names: Iterable[str], modes: Mapping[str, str], profiles: Mapping[str, str], ports: Iterable[Any]
) -> dict[str, Switch]:
    """The devices with their ports, from ``DEVLINK_CMD_PORT_NEW`` messages.

    Ports of functions on another host (an adapter with processors of its own shows them) are left out.
    """
    virtual: dict[str, dict[int, str]] = {}
    scalable: dict[str, dict[int, str]] = {}
    for port in ports:
        name, interface = _name(port)[1], port.get_attr("PORT_NETDEV_NAME")
        if not interface or port.get_attr("PORT_EXTERNAL"):
            continue
        if port.get_attr("PORT_FLAVOUR") == _PCI_VF and _is_own(port, name):
            virtual.setdefault(name, {})[port.get_attr("PORT_PCI_VF_NUMBER")] = interface
        elif port.get_attr("PORT_FLAVOUR") == _PCI_SF and _is_own(port, name):
            scalable.setdefault(name, {})[port.get_attr("PORT_PCI_SF_NUMBER")] = interface
    return {
        name: Switch(
            modes.get(name, ""), profiles.get(name, ""), virtual.get(name, {}), scalable.get(name, {})
        )
        for name in names
    }


def profile_in(message: Any) -> str:
    """The profile that a ``DEVLINK_CMD_INFO_GET`` answer names; empty if it names none."""
    for version in message.get_attrs("INFO_VERSION_RUNNING"):
        if version.get_attr("INFO_VERSION_NAME") == _PROFILE:
            return str(version.get_attr("INFO_VERSION_VALUE") or "")
    return ""


def _name(message: Any) -> tuple[str, str]:
    return message.get_attr("BUS_NAME"), message.get_attr("DEV_NAME")


def _is_own(port: Any, device: str) -> bool:
    """Whether a port is of this very physical function: one device may have the ports of several.

    The number of a physical function is then that of the PCI function (kernel, drivers call
    ``devlink_port_attrs_pci_vf_set`` with it); netdevsim, which is not on PCI, has 0 in all.
    """
    function = device.rpartition(".")[2]
    number = port.get_attr("PORT_PCI_PF_NUMBER")
    return (
        number is None
        or port.get_attr("BUS_NAME") != "pci"
        or not function.isdigit()
        or number == int(function)
    )


async def _ask(link: Any, command: int) -> list[Any]:
    from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST

    return await _request(link, _question(command), NLM_F_REQUEST | NLM_F_DUMP)


async def _maybe(link: Any, command: int, device: tuple[str, str]) -> list[Any]:
    """The answer of one device; nothing from a driver that does not know the question."""
    from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST
    from pyroute2.netlink.exceptions import NetlinkError

    question = _question(command)
    question["attrs"] = [("BUS_NAME", device[0]), ("DEV_NAME", device[1])]
    try:
        return await _request(link, question, NLM_F_REQUEST | NLM_F_ACK)
    except NetlinkError:
        return []


async def _request(link: Any, question: Any, flags: int) -> list[Any]:
    return [answer async for answer in await link.nlm_request(question, msg_type=link.prid, msg_flags=flags)]


def _question(command: int) -> Any:
    question = _classes()[1]()
    question["cmd"], question["version"] = command, 1
    return question


@cache
def _classes() -> tuple[Any, Any]:
    """The socket and the message, made from pyroute2's at the first use."""
    from pyroute2.netlink import genlmsg, nla
    from pyroute2.netlink.generic import AsyncGenericNetlinkSocket

    class Socket(AsyncGenericNetlinkSocket):  # type: ignore[misc]
        module_err_level = "debug"  # a kernel without devlink is nothing to complain of

    class Version(nla):  # type: ignore[misc]
        nla_map = ((103, "INFO_VERSION_NAME", "asciiz"), (104, "INFO_VERSION_VALUE", "asciiz"))

    class Message(genlmsg):  # type: ignore[misc]
        nla_map = (
            (BUS_NAME, "BUS_NAME", "asciiz"),
            (DEV_NAME, "DEV_NAME", "asciiz"),
            (7, "PORT_NETDEV_NAME", "asciiz"),
            (25, "ESWITCH_MODE", "uint16"),
            (77, "PORT_FLAVOUR", "uint16"),
            (101, "INFO_VERSION_RUNNING", "version"),
            (127, "PORT_PCI_PF_NUMBER", "uint16"),
            (128, "PORT_PCI_VF_NUMBER", "uint16"),
            (149, "PORT_EXTERNAL", "uint8"),
            (164, "PORT_PCI_SF_NUMBER", "uint32"),
        )
        version = Version

    return Socket, Message
