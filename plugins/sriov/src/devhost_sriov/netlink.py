"""Asks the kernel through netlink, in a process of its own (:mod:`.netlink_child`).

Numbers are those of include/uapi/linux/devlink.h of the Linux kernel.

pyroute2 would add 12 MB to devhost's own process for good. The other process starts with the first question,
answers the following ones as well, and ends when it is idle: one process serves a whole burst of events. A
process that does not answer is killed. One that is slow to start is not: questions fail until it is ready.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devhost.backend import process
from devhost.backend.backoff import Backoff

from .in_use import DefaultRoute, Traffic

CHANGES = frozenset({3, 4, 7, 8})
"""Commands of notifications after which switches may be others: a device or a port is new, changed or gone
(``DEVLINK_CMD_NEW``, ``_DEL``, ``_PORT_NEW``, ``_PORT_DEL``)."""

MODES: Mapping[int | None, str] = {0: "legacy", 1: "switchdev"}
"""Words for the modes of an embedded switch (``enum devlink_eswitch_mode``)."""

BUS_NAME, DEV_NAME = 1, 2
"""Numbers of the attributes that name the device: ``pci`` and its address."""


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


_PROGRAM = Path(__file__).with_name("netlink_child.py")

SILENT = "the kernel does not answer"

VfMacs = Mapping[str, Mapping[int, str]]
"""The address set for a virtual function, by its number, by the physical function's interface."""


class Kernel:
    """Questions about this process's network namespace. Each blocks until it is answered.

    Args:
        program: what answers.
        deadline: seconds that all answers to one question may take.
        start_deadline: seconds from the start of a process for which questions wait until it is ready:
            starting Python and importing pyroute2 takes 0.4 s on an idle machine, and much longer on a node
            that boots.
        longest_start: seconds after which a process that is still not ready is killed.
        idle: seconds without a question after which the process ends.
        idle_per_start: it stays at least so many times as long as its start took: on a slow machine a start
            costs more.
        backoff: how long no other process is started after one has failed: a scan asks up to three questions,
            and must not wait for three processes.
    """

    def __init__(
        self,
        *,
        program: Path = _PROGRAM,
        deadline: float = 3.0,
        start_deadline: float = 15.0,
        longest_start: float = 180.0,
        idle: float = 5.0,
        idle_per_start: float = 30.0,
        backoff: Backoff | None = None,
    ) -> None:
        self._worker = process.Worker(
            process.python(program),
            name="the process that asks netlink",
            deadline=deadline,
            start_deadline=start_deadline,
            longest_start=longest_start,
            idle=idle,
            idle_per_start=idle_per_start,
            backoff=backoff or Backoff(5.0, 60.0),
            grace=1.0,
        )

    @property
    def pid(self) -> int | None:
        """The process that answers; ``None`` while there is none."""
        return self._worker.pid

    def traffic(self, names: Mapping[int, str]) -> Traffic:
        """The node's default routes of all tables, and all its addresses.

        Args:
            names: the interfaces of this network namespace by index.

        Raises:
            TimeoutError: there is no answer in time.
            OSError: the kernel refuses, a default route cannot be resolved, or the process cannot be used.
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
        """What the physical functions have set for their virtual ones.

        Raises:
            TimeoutError: there is no answer in time.
            OSError: the kernel refuses, or the process cannot be used.
        """
        found: dict[str, dict[int, str]] = {}
        for interface, number, mac in self._ask("vf_macs"):
            found.setdefault(interface, {})[number] = mac
        return found

    def devlink(self, *, profiles: bool) -> Devlink:
        """All devices of devlink; empty where the kernel has no devlink, or no device of it.

        Args:
            profiles: whether to ask for the firmware's profile, which may take the driver to the firmware.

        Raises:
            TimeoutError: there is no answer in time.
            OSError: the kernel refuses, or the process cannot be used.
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
        """Ends the process, if there is one. A later question starts another."""
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
