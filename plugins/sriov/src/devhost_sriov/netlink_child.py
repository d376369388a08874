"""The program that queries netlink through pyroute2 in a separate process (see :mod:`.netlink`).

It imports nothing from devhost. It writes ``{}`` when it is ready, then reads requests from standard input
and writes answers to standard output, one JSON object per line. It ends with its input.

pyroute2 supports devlink, but its table of attributes ends with kernel 5.9, which has no scalable functions.
So the required attributes are defined here, with their numbers in include/uapi/linux/devlink.h.
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
"""Seconds after which a request ends this process, in case devhost is gone and cannot kill it."""

TRIES = 10
"""Number of attempts to read a list that changes while the kernel sends it."""

INTERRUPTED = 0x10
"""``NLM_F_DUMP_INTR``: the list may be incomplete or have duplicates. pyroute2 ignores it."""

WIDEST = 1
"""Longest prefix of a default route, as in :mod:`devhost_sriov.in_use`."""

_UNICAST = 1
"""``RTN_UNICAST``, unlike routes that reject packets (linux/rtnetlink.h)."""

_VF_INFO = 1 | 8
"""``RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS`` (linux/rtnetlink.h)."""

_IPV4, _IPV6 = 2, 10
_VERSIONS = {_IPV4: 4, _IPV6: 6}

_FAMILY, _CONFIG = "devlink", "config"
"""The family, and its multicast group (``DEVLINK_GENL_MCGRP_CONFIG_NAME``)."""

_ENOENT = 2
_GET, _PORT_GET, _ESWITCH_GET, _INFO_GET = 1, 5, 29, 51
_PCI_VF, _PCI_SF = 4, 7
_PROFILE = "fw.app.name"
"""Name of the running firmware application: on Intel adapters the DDP package."""

Answer = dict[str, Any]
"""A JSON object."""


class Unresolved(Exception):
    """The kernel's answer does not contain the requested fact; the message has the reason."""


def main() -> int:
    """Answers requests until the end of the input; returns 0."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    with suppress(ImportError):  # reported in each answer
        import_module("pyroute2")  # most of the start is this import
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
        output.write(json.dumps(answer_to(json.loads(line))).encode() + b"\n")
        output.flush()
        signal.alarm(0)


def answer_to(question: Mapping[str, Any]) -> Answer:
    """The result as ``ok``; else a message as ``error`` and its ``errno``, which may be ``None``."""
    try:
        if question["do"] == "traffic":
            return {"ok": asyncio.run(traffic())}
        if question["do"] == "vf_macs":
            return {"ok": asyncio.run(vf_macs())}
        return {"ok": asyncio.run(devlink(profiles=question["profiles"]))}
    except Exception as error:  # noqa: BLE001 - pyroute2 raises many kinds of errors
        code = getattr(error, "code", None) or getattr(error, "errno", None)
        return {"error": str(error) or type(error).__name__, "errno": code if isinstance(code, int) else None}


async def traffic() -> Answer:
    """The default routes of all tables, and all addresses, each with the index of its interface.

    Raises ``Unresolved`` if a default route has no interface, or a list keeps changing. Like the functions
    below, it may raise any error of pyroute2.
    """
    from pyroute2 import AsyncIPRoute

    routes: set[tuple[int, int, int]] = set()
    async with AsyncIPRoute() as kernel:
        for family in (_IPV4, _IPV6):
            for message in await complete_list(partial(kernel.route, "dump", family=family)):
                routes.update(default_routes(message))
        found = await complete_list(partial(kernel.addr, "dump"))
        addresses = [(_address(message), message["index"]) for message in found]
    return {"routes": sorted(routes), "addresses": [one for one in addresses if one[0]]}


async def vf_macs() -> list[tuple[str, int, str]]:
    """The addresses that physical functions have set for virtual ones: interface, number and address."""
    from pyroute2 import AsyncIPRoute

    found: list[tuple[str, int, str]] = []
    async with AsyncIPRoute() as kernel:
        for message in await complete_list(partial(kernel.link, "dump", ext_mask=_VF_INFO)):
            macs = vf_macs_in(message)
            found += [(message.get_attr("IFLA_IFNAME"), number, mac) for number, mac in macs.items()]
    return found


async def complete_list(dump: Callable[[], Awaitable[AsyncIterable[Any]]]) -> list[Any]:
    """The messages of a list, requested again if it changed while the kernel sent it.

    Raises ``Unresolved`` if it changed each time.
    """
    for _ in range(TRIES):
        found = [message async for message in await dump()]
        if not any(message["header"]["flags"] & INTERRUPTED for message in found):
            return found
    raise Unresolved("the list of the kernel keeps changing")


def default_routes(message: Any) -> Iterator[tuple[int, int, int]]:
    """The default routes in one ``RTM_NEWROUTE`` message, one for each next hop.

    Each has the IP version (4 or 6), the index of its interface, and its table. Raises ``Unresolved`` if it
    has only the id of its next hop (``net.ipv4.nexthop_compat_mode`` is 0).
    """
    if message["dst_len"] > WIDEST or message["type"] != _UNICAST:
        return
    hops: Sequence[Any] = message.get_attr("RTA_MULTIPATH") or ()
    indices = [message.get_attr("RTA_OIF"), *(hop["oif"] for hop in hops)]
    if not any(indices):
        raise Unresolved("a default route has only the id of its next hop")
    # the header has only 8 bits of the table
    table = message.get_attr("RTA_TABLE") or message["table"]
    for index in filter(None, indices):
        yield _VERSIONS[message["family"]], index, table


def _address(message: Any) -> str:
    # on a point-to-point link, IFA_ADDRESS is the address of the other end
    return message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS") or ""


def vf_macs_in(message: Any) -> dict[int, str]:
    """The addresses of virtual functions in one ``RTM_NEWLINK`` message, without unset ones."""
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

    For ``profiles``, the driver may query the firmware.
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
            for answer in await _query(link, _ESWITCH_GET, device):
                modes[device[1]] = answer.get_attr("ESWITCH_MODE")
            if profiles:
                for answer in await _query(link, _INFO_GET, device):
                    found[device[1]] = profile_in(answer)
        group = link.mcast_groups.get(_CONFIG)
    return {"group": group, "switches": switches([name for _, name in devices], modes, found, ports)}


def switches(
    names: Iterable[str], modes: Mapping[str, int | None], profiles: Mapping[str, str], ports: Iterable[Any]
) -> dict[str, Answer]:
    """The devices with their ports, from ``DEVLINK_CMD_PORT_NEW`` messages.

    Ports of functions on another host, which an adapter with its own processors shows, are omitted.
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
    """The profile in a ``DEVLINK_CMD_INFO_GET`` answer; empty if there is none."""
    for version in message.get_attrs("INFO_VERSION_RUNNING"):
        if version.get_attr("INFO_VERSION_NAME") == _PROFILE:
            return str(version.get_attr("INFO_VERSION_VALUE") or "")
    return ""


def _name(message: Any) -> tuple[str, str]:
    return message.get_attr("BUS_NAME"), message.get_attr("DEV_NAME")


def _is_own(port: Any, device: str) -> bool:
    """Whether a port belongs to this physical function, since one device may have ports of several.

    The number of a physical function is then that of the PCI function (drivers pass it to
    ``devlink_port_attrs_pci_vf_set``); netdevsim, which is not on PCI, always uses 0.
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

    return await _request(link, _request_message(command), NLM_F_REQUEST | NLM_F_DUMP)


async def _query(link: Any, command: int, device: tuple[str, str]) -> list[Any]:
    """The answer of one device; empty if its driver does not support the request."""
    from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST
    from pyroute2.netlink.exceptions import NetlinkError

    question = _request_message(command)
    question["attrs"] = [("BUS_NAME", device[0]), ("DEV_NAME", device[1])]
    try:
        return await _request(link, question, NLM_F_REQUEST | NLM_F_ACK)
    except NetlinkError:
        return []


async def _request(link: Any, question: Any, flags: int) -> list[Any]:
    return [answer async for answer in await link.nlm_request(question, msg_type=link.prid, msg_flags=flags)]


def _request_message(command: int) -> Any:
    question = devlink_classes()[1]()
    question["cmd"], question["version"] = command, 1
    return question


@cache
def devlink_classes() -> tuple[Any, Any]:
    """The socket and message classes, derived from those of pyroute2 at the first use."""
    from pyroute2.netlink import genlmsg, nla
    from pyroute2.netlink.generic import AsyncGenericNetlinkSocket

    class Socket(AsyncGenericNetlinkSocket):  # type: ignore[misc]
        module_err_level = "debug"  # a kernel without devlink is no error

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
