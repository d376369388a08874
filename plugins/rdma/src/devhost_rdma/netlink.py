"""What only the RDMA core's netlink interface tells: namespace mode, device types, drivers, use.

Numbers and meanings are those of include/uapi/rdma/rdma_netlink.h (client ``RDMA_NL_NLDEV``) and
include/uapi/rdma/ib_user_ioctl_verbs.h of the Linux kernel; what they hold was seen on kernel 6.12.

Every function answers "unknown" where there is no RDMA core, no permission or no answer in time, and none
raises. They speak of the running kernel in the network namespace of this process, whatever tree a backend
looks at, and may block as long as a driver does: call them on a backend's own thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from .nl_message import Message, attribute, attributes, messages, number, text, u32
from .nl_socket import RDMA, ask

TIMEOUT = 1.0
"""Seconds to wait for the kernel's answer to one question."""

CORE = "/sys/class/infiniband"
"""There exactly while ib_core is loaded. Asked first: opening the socket would load it."""

VERBS = "/sys/class/infiniband_verbs"
"""There exactly while ib_uverbs is loaded; asking for its character devices would load it."""

NOTIFY_GROUPS = 1 << 3
"""Bit mask of group 4, ``RDMA_NL_GROUP_NOTIFY``: devices registered, removed, renamed, joined with a netdev
or parted from it. Only who joined hears it, for which kernel 6.12 wants no privilege. Before 6.12 there is no
such group: one may join it and hears nothing. Renaming a device is told of by later kernels only."""

NetnsMode = Literal["shared", "exclusive"]

_NLDEV = 5 << 10
_GET = _NLDEV | 1
_SYS_GET = _NLDEV | 6
_RES_GET = _NLDEV | 9
_GET_CHARDEV = _NLDEV | 15
_MONITOR = _NLDEV | 28

_DEV_INDEX = 1
_DEV_NAME = 2
_PORT_INDEX = 3
_FW_VERSION = 5
_NODE_GUID = 6
_SYS_IMAGE_GUID = 7
_DEV_NODE_TYPE = 14
_RES_SUMMARY = 15
_RES_SUMMARY_ENTRY = 16
_RES_SUMMARY_ENTRY_NAME = 17
_RES_SUMMARY_ENTRY_CURR = 18
_NETNS_MODE = 66
_DEV_PROTOCOL = 67
_CHARDEV_TYPE = 69
_UVERBS_DRIVER_ID = 73
_DEV_TYPE = 99
_PARENT_NAME = 100

_NETNS_MODES: Mapping[int | None, NetnsMode] = {0: "exclusive", 1: "shared"}
_SMI = 1

_SOFTWARE_DRIVERS = {14: "rdma_rxe", 18: "siw"}
"""``RDMA_DRIVER_RXE`` and ``RDMA_DRIVER_SIW`` of ``enum rdma_driver_id`` → the kernel module."""


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One RDMA device as the RDMA core describes it.

    ``ports`` is the number of its last port, ``node_type`` the number that ``node_type`` in sysfs begins
    with, ``protocol`` one of ``ib``, ``roce``, ``iw``, ``usnic``, ``opa`` (empty: the kernel does not say).
    The GUIDs are written as sysfs does, ``0c42:a103:00f4:5b2e``; empty where the kernel gives none. ``smi``
    is true for a companion that only carries management datagrams for the device ``parent`` (kernel 6.11).
    """

    index: int
    name: str
    ports: int
    firmware: str
    node_guid: str
    system_guid: str
    node_type: int
    protocol: str
    smi: bool
    parent: str


def netns_mode() -> NetnsMode | None:
    """How RDMA devices and network namespaces go together, as ``rdma system`` shows it.

    ``shared``: every namespace sees all devices. ``exclusive``: a device is in one and may be moved.
    """
    for message in _ask(_SYS_GET):
        mode = _NETNS_MODES.get(number(dict(attributes(message.payload)).get(_NETNS_MODE)))
        if mode is not None:
            return mode
    return None


def devices() -> list[RdmaDevice]:
    """The RDMA devices this network namespace sees, in the kernel's order."""
    found = map(parse_device, _ask(_GET, dump=True))
    return [device for device in found if device is not None]


def software_driver(index: int) -> str:
    """``rdma_rxe`` or ``siw`` for the software device with this index; empty for any other.

    Nothing in sysfs tells: such devices have neither a driver nor a parent device there.
    """
    if not os.path.isdir(VERBS):  # noqa: PTH112 - a plain string path
        return ""
    payload = attribute(_DEV_INDEX, u32(index)) + attribute(_CHARDEV_TYPE, b"uverbs\0")
    for message in _ask(_GET_CHARDEV, payload):
        identity = number(dict(attributes(message.payload)).get(_UVERBS_DRIVER_ID))
        return _SOFTWARE_DRIVERS.get(identity or 0, "")
    return ""


def in_use(name: str) -> Mapping[str, int] | None:
    """How many objects a device holds, by kind: ``qp``, ``cq``, ``mr``, ``pd``, ``cm_id``, ``ctx``, ``srq``.

    ``ctx`` is the number of processes' open contexts; the kernel's own users (``ib_umad`` has a queue pair on
    each port) count in the others. ``None`` for a device that is not there or where it cannot be told.
    """
    for message in _ask(_RES_GET, dump=True):
        device, counts = parse_summary(message)
        if device == name:
            return counts
    return None


def is_notification(datagram: bytes) -> bool:
    """Whether a datagram of :data:`NOTIFY_GROUPS` tells that something about devices changed."""
    return any(message.kind == _MONITOR for message in messages(datagram))


def parse_device(message: Message) -> RdmaDevice | None:
    """A device from one message of the dump; ``None`` when it names none."""
    fields = dict(attributes(message.payload))
    index, name = number(fields.get(_DEV_INDEX)), text(fields.get(_DEV_NAME))
    if message.kind != _GET or index is None or not name:
        return None
    return RdmaDevice(
        index=index,
        name=name,
        ports=number(fields.get(_PORT_INDEX)) or 0,
        firmware=text(fields.get(_FW_VERSION)),
        node_guid=_guid(fields.get(_NODE_GUID)),
        system_guid=_guid(fields.get(_SYS_IMAGE_GUID)),
        node_type=number(fields.get(_DEV_NODE_TYPE)) or 0,
        protocol=text(fields.get(_DEV_PROTOCOL)),
        smi=number(fields.get(_DEV_TYPE)) == _SMI,
        parent=text(fields.get(_PARENT_NAME)),
    )


def parse_summary(message: Message) -> tuple[str, dict[str, int]]:
    """A device's name and its counts from one message of the dump; an empty name when it names none."""
    fields = dict(attributes(message.payload))
    counts: dict[str, int] = {}
    for kind, entry in attributes(fields.get(_RES_SUMMARY, b"")):
        parts = dict(attributes(entry))
        label, count = text(parts.get(_RES_SUMMARY_ENTRY_NAME)), number(parts.get(_RES_SUMMARY_ENTRY_CURR))
        if kind == _RES_SUMMARY_ENTRY and label and count is not None:
            counts[label] = count
    return (text(fields.get(_DEV_NAME)) if message.kind == _RES_GET else ""), counts


def _ask(kind: int, payload: bytes = b"", *, dump: bool = False) -> Iterator[Message]:
    if not os.path.isdir(CORE):  # noqa: PTH112 - a plain string path
        return
    try:
        yield from ask(RDMA, kind, payload, dump=dump, timeout=TIMEOUT)
    except OSError:
        return  # no such protocol, no permission, a question this kernel does not know, no answer in time


def _guid(value: bytes | None) -> str:
    identity = number(value)
    if not identity:
        return ""
    digits = f"{identity:016x}"
    return ":".join(digits[at : at + 4] for at in range(0, 16, 4))
