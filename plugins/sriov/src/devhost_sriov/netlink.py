"""Queries the kernel through netlink, in a separate process (:mod:`.netlink_child`).

Numbers: include/uapi/linux/devlink.h of the Linux kernel.

pyroute2 would permanently add 12 MB to devhost's own process. The separate process starts with the first
request, answers further ones, and ends when it is idle, so one process serves a burst of events. A process
that does not answer is killed, but not while it starts: requests fail until it is ready.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from devhost.backend import process
from devhost.backend.backoff import Backoff
from devhost.backend.frozen import frozen
from devhost.backend.traffic import DefaultRoute, Traffic

CHANGES = frozenset({3, 4, 7, 8})
"""Commands of notifications about new, changed and removed devices and ports (``DEVLINK_CMD_NEW``, ``_DEL``,
``_PORT_NEW``, ``_PORT_DEL``)."""

MODES: Mapping[int | None, str] = {0: "legacy", 1: "switchdev"}
"""Names of the modes of an embedded switch (``enum devlink_eswitch_mode``)."""

BUS_NAME, DEV_NAME = 1, 2
"""Numbers of the attributes with the bus and the name of a device: ``pci`` and its address."""


@frozen
class Switch:
    """One devlink device, with its representors by the number of the virtual or scalable function."""

    mode: str = ""
    profile: str = ""
    virtual: Mapping[int, str] = field(default_factory=dict)
    scalable: Mapping[int, str] = field(default_factory=dict)


@frozen
class Devlink:
    """All devices by PCI address or name on the auxiliary bus.

    ``group`` is the number of the multicast group of notifications, ``None`` without devlink.
    """

    switches: Mapping[str, Switch] = field(default_factory=dict)
    group: int | None = None


PROGRAM = Path(__file__).with_name("netlink_child.py")

NAME = "the netlink process"
"""Its name in errors."""

SILENT = "the kernel does not answer"

VfMacs = Mapping[str, Mapping[int, str]]
"""Addresses of virtual functions, by interface of the physical function, then by number."""


class Kernel:
    """Sends requests about this process's network namespace. Each blocks until it is answered.

    Methods raise ``TimeoutError`` if the process does not answer in time, and ``OSError`` if the kernel
    refuses, or the process cannot be used. ``worker`` is the process; by default one that runs
    :data:`PROGRAM`. Starting it takes 0.4 s on an idle machine, and much longer on a booting node.
    """

    def __init__(self, worker: process.Worker | None = None) -> None:
        # the back-off: a scan sends up to three requests, and must not wait for three processes
        self._worker = worker or process.Worker(
            process.python(PROGRAM), name=NAME, backoff=Backoff(5.0, 60.0), grace=1.0
        )

    @property
    def pid(self) -> int | None:
        """The process that answers; ``None`` while there is none."""
        return self._worker.pid

    def traffic(self, names: Mapping[int, str]) -> Traffic:
        """The node's default routes of all tables, and all its addresses.

        ``names`` are the interfaces of this network namespace by index. Raises ``OSError`` also if a default
        route cannot be resolved.
        """
        found = self._ask("traffic")
        routes = (
            DefaultRoute(family, names[index], table)
            for family, index, table in found["routes"]
            if index in names
        )
        addresses = ((address, names[index]) for address, index in found["addresses"] if index in names)
        return Traffic(frozenset(routes), frozenset(addresses))

    def vf_macs(self) -> VfMacs:
        """The addresses that physical functions have set for their virtual ones."""
        found: dict[str, dict[int, str]] = {}
        for interface, number, mac in self._ask("vf_macs"):
            found.setdefault(interface, {})[number] = mac
        return found

    def devlink(self, *, profiles: bool) -> Devlink:
        """All devlink devices; empty if the kernel has no devlink or no such device.

        For ``profiles``, the driver may query the firmware.
        """
        found = self._ask("devlink", profiles=profiles)
        switches = {
            name: Switch(
                MODES.get(one["mode"], ""), one["profile"], dict(one["virtual"]), dict(one["scalable"])
            )
            for name, one in found["switches"].items()
        }
        return Devlink(switches, found["group"])

    def close(self) -> None:
        """Ends the process, if there is one. A later request starts another."""
        self._worker.close()

    def _ask(self, do: str, **details: object) -> Any:
        try:
            answer = self._worker.ask({"do": do, **details})
        except process.TimedOut as error:
            raise TimeoutError(SILENT) from error
        except process.ProcessError as error:
            raise OSError(error.message) from error
        if "ok" in answer:
            return answer["ok"]
        code = answer["errno"]
        raise OSError(code, os.strerror(code)) if code else OSError(answer["error"])
