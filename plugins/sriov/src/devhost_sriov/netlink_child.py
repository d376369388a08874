"""The program that asks netlink through pyroute2, in a process of its own (see :mod:`.netlink`).

It imports nothing of devhost. It writes ``{}`` when it is ready, then reads questions from standard input and
writes answers to standard output, one JSON object a line. It ends with its input.

pyroute2 has devlink's commands, but its table of attributes ends with kernel 5.9, before scalable functions
came. So the few attributes needed are named here, by their numbers in include/uapi/linux/devlink.h, for its
generic netlink socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Any

LONGEST = 30
"""Seconds after which a question ends this process, where devhost has gone and cannot kill it."""

TRIES = 10
"""How often a list is asked for that changes while the kernel sends it."""

INTERRUPTED = 0x10
"""``NLM_F_DUMP_INTR``: something may be missing, or there twice. pyroute2 ignores it."""

WIDEST = 1
"""Longest prefix of a default route, as in :mod:`devhost_sriov.in_use`."""

_UNICAST = 1
"""``RTN_UNICAST``: what leaves, unlike a route that says "unreachable" (linux/rtnetlink.h)."""

_VF_INFO = 1 | 8
"""``RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS`` (linux/rtnetlink.h)."""

_IPV4, _IPV6 = 2, 10
_VERSIONS = {_IPV4: 4, _IPV6: 6}

_FAMILY, _CONFIG = "devlink", "config"
"""The family, and its multicast group of all notifications (``DEVLINK_GENL_MCGRP_CONFIG_NAME``)."""

_ENOENT = 2
_GET, _PORT_GET, _ESWITCH_GET, _INFO_GET = 1, 5, 29, 51
_PCI_VF, _PCI_SF = 4, 7
_PROFILE = "fw.app.name"
"""Name of the running firmware application: on Intel's adapters the DDP package."""

Answer = dict[str, Any]
"""What is written in JSON."""


class Unresolved(Exception):
    """What the kernel answers does not tell what was asked: the reason in words."""


def main() -> int:
    """Answers questions until there are no more; 0."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    with suppress(ImportError):  # which is the answer to each question then
        import_module("pyroute2")  # now: to import it is most of the start
    output.write(b"{}\n")
    output.flush()
    rest = b""
    while True:
        while b"\n" not in rest:
            if not (data := os.read(0, 65536)):
                return 0
            rest += data
        line, _, rest = rest.partition(b"\n")
        signal.alarm(LONGEST)
        output.write(json.dumps(answered(json.loads(line))).encode() + b"\n")
        output.flush()
        signal.alarm(0)


def answered(question: Mapping[str, Any]) -> Answer:
    """What is asked for, as ``ok``; else ``error`` in words and its ``errno``, ``None`` if it has none."""
    try:
        if question["do"] == "traffic":
            return {"ok": asyncio.run(traffic())}
        if question["do"] == "vf_macs":
            return {"ok": asyncio.run(vf_macs())}
        return {"ok": asyncio.run(devlink(profiles=question["profiles"]))}
    except Exception as error:  # noqa: BLE001 - pyroute2 raises whatever it likes
        code = getattr(error, "code", None) or getattr(error, "errno", None)
        return {"error": str(error) or type(error).__name__, "errno": code if isinstance(code, int) else None}


async def traffic() -> Answer:
    """The default routes of all tables, and all addresses, each with the index of its interface.

    Raises:
        Exception: pyroute2 raises whatever it likes.
        Unresolved: a default route cannot be told from this, or a list changes all the time.
    """
    from pyroute2 import AsyncIPRoute

    routes: set[tuple[int, int, int]] = set()
    async with AsyncIPRoute() as kernel:
        for family in (_IPV4, _IPV6):
            for message in await whole(partial(kernel.route, "dump", family=family)):
                routes.update(default_routes(message))
        found = await whole(partial(kernel.addr, "dump"))
        addresses = [(_address(message), message["index"]) for message in found]
    return {"routes": sorted(routes), "addresses": [one for one in addresses if one[0]]}


async def vf_macs() -> list[tuple[str, int, str]]:
    """What physical functions have set for virtual ones: interface, number and address, in one dump.

    Raises:
        Exception: pyroute2 raises whatever it likes.
    """
    from pyroute2 import AsyncIPRoute

    found: list[tuple[str, int, str]] = []
    async with AsyncIPRoute() as kernel:
        for message in await whole(partial(kernel.link, "dump", ext_mask=_VF_INFO)):
            macs = vf_macs_in(message)
            found += [(message.get_attr("IFLA_IFNAME"), number, mac) for number, mac in macs.items()]
    return found


async def whole(dump: Callable[[], Awaitable[AsyncIterable[Any]]]) -> list[Any]:
    """The messages of a list; asked for again where the list changed while the kernel sent it.

    Raises:
        Exception: pyroute2 raises whatever it likes.
        Unresolved: it changed each time.
    """
    for _ in range(TRIES):
        found = [message async for message in await dump()]
        if not any(message["header"]["flags"] & INTERRUPTED for message in found):
            return found
    raise Unresolved("the kernel's list changes all the time")


def default_routes(message: Any) -> Iterator[tuple[int, int, int]]:
    """The default routes that one ``RTM_NEWROUTE`` message stands for: one for each next hop.

    Each as 4 or 6, the index of its interface, and its table.

    Raises:
        Unresolved: it names its next hop by number alone (``net.ipv4.nexthop_compat_mode`` is 0).
    """
    if message["dst_len"] > WIDEST or message["type"] != _UNICAST:
        return
    hops: Sequence[Any] = message.get_attr("RTA_MULTIPATH") or ()
    indices = [message.get_attr("RTA_OIF"), *(hop["oif"] for hop in hops)]
    if not any(indices):
        raise Unresolved("a default route names its next hop by number alone")
    # the header's table has one byte; RTA_TABLE has all
    table = message.get_attr("RTA_TABLE") or message["table"]
    for index in filter(None, indices):
        yield _VERSIONS[message["family"]], index, table


def _address(message: Any) -> str:
    # of a point-to-point link IFA_ADDRESS is the other end's
    return message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS") or ""


def vf_macs_in(message: Any) -> dict[int, str]:
    """The addresses that one ``RTM_NEWLINK`` message has for virtual functions, as far as they are set."""
    found: dict[int, str] = {}
    virtual = message.get_attr("IFLA_VFINFO_LIST")
    for one in virtual.get_attrs("IFLA_VF_INFO") if virtual is not None else ():
        entry = one.get_attr("IFLA_VF_MAC")
        mac = entry["mac"] if entry is not None else ""
        if mac.strip("0:"):
            found[entry["vf"]] = mac
    return found


async def devlink(*, profiles: bool) -> Answer:
    """All devices by name, and the multicast group of notifications: ``None`` without devlink.

    Args:
        profiles: whether to ask for the firmware's profile, which may take the driver to the firmware.

    Raises:
        Exception: pyroute2 raises whatever it likes.
    """
    from pyroute2.netlink.exceptions import NetlinkError

    socket, message = devlink_classes()
    async with socket() as link:
        try:
            await link.bind(_FAMILY, message)
        except NetlinkError as error:
            if error.code == _ENOENT:
                return {"group": None, "switches": {}}
            raise
        devices = [_name(found) for found in await _ask(link, _GET)]
        ports = await _ask(link, _PORT_GET) if devices else []
        modes: dict[str, int | None] = {}
        found: dict[str, str] = {}
        for device in devices:
            for answer in await _maybe(link, _ESWITCH_GET, device):
                modes[device[1]] = answer.get_attr("ESWITCH_MODE")
            if profiles:
                for answer in await _maybe(link, _INFO_GET, device):
                    found[device[1]] = profile_in(answer)
        group = link.mcast_groups.get(_CONFIG)
    return {"group": group, "switches": switches([name for _, name in devices], modes, found, ports)}


def switches(
    names: Iterable[str], modes: Mapping[str, int | None], profiles: Mapping[str, str], ports: Iterable[Any]
) -> dict[str, Answer]:
    """The devices with their ports, from ``DEVLINK_CMD_PORT_NEW`` messages.

    Ports of functions on another host (an adapter with processors of its own shows them) are left out.
    """
    made: dict[str, Answer] = {
        name: {"mode": modes.get(name), "profile": profiles.get(name, ""), "virtual": [], "scalable": []}
        for name in names
    }
    for port in ports:
        name, interface = _name(port)[1], port.get_attr("PORT_NETDEV_NAME")
        if name not in made or not interface or port.get_attr("PORT_EXTERNAL") or not _is_own(port, name):
            continue
        flavour = port.get_attr("PORT_FLAVOUR")
        if flavour == _PCI_VF:
            made[name]["virtual"].append((port.get_attr("PORT_PCI_VF_NUMBER"), interface))
        elif flavour == _PCI_SF:
            made[name]["scalable"].append((port.get_attr("PORT_PCI_SF_NUMBER"), interface))
    return made


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
    question = devlink_classes()[1]()
    question["cmd"], question["version"] = command, 1
    return question


@cache
def devlink_classes() -> tuple[Any, Any]:
    """The socket and the message, made from pyroute2's at the first use."""
    from pyroute2.netlink import genlmsg, nla
    from pyroute2.netlink.generic import AsyncGenericNetlinkSocket

    class Socket(AsyncGenericNetlinkSocket):  # type: ignore[misc]
        module_err_level = "debug"  # a kernel without devlink is nothing to complain of

    class Version(nla):  # type: ignore[misc]
        nla_map = ((103, "INFO_VERSION_NAME", "asciiz"), (104, "INFO_VERSION_VALUE", "asciiz"))

    class Message(genlmsg):  # type: ignore[misc]
        nla_map = (
            (1, "BUS_NAME", "asciiz"),
            (2, "DEV_NAME", "asciiz"),
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


if __name__ == "__main__":
    sys.exit(main())
