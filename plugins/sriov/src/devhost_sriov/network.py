"""Facts from the node's network about each function, queried again only after relevant events.

Routes and addresses have two sources. rtnetlink has all of them for the network namespace of this process. If
sysfs shows another namespace, files have the most important ones (``NetFiles`` of
:mod:`devhost.backend.traffic`). If neither is available, or sysfs does not show the interfaces of the node,
**unknown is not free**: a function whose driver creates interfaces that are not visible counts as in use.

Failures raise nothing: the facts are absent, and the log has one line when a failure begins and one when it
ends.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from devhost.backend import Context, Event
from devhost.backend.frozen import frozen
from devhost.backend.incident import Incident
from devhost.backend.netlink import shares_network_namespace
from devhost.backend.sysfs import Sysfs, is_live
from devhost.backend.traffic import NetFiles, Traffic, carriers, kubelet_addresses, normal

from .in_use import UNKNOWN
from .model import Facts, Function, FunctionKind, Snapshot
from .netlink import Devlink, Kernel, Switch, VfMacs

T = TypeVar("T")

UNSEEN = (
    f"{UNKNOWN}it carries the node's traffic, because devhost does not see the node's network "
    "(set hostNetwork: true)"
)

ROUTES = "routes of the node"
"""The subject of log messages about routes."""

_NO_SWITCH = Switch()


@frozen
class Interest:
    """The netlink messages that can change a fact, for the watch.

    ``interfaces`` are the indices of interfaces of functions and of those that carry traffic, ``addresses``
    those of the kubelet, ``places`` the directories of functions by id, ``group`` the multicast group of
    devlink.
    """

    interfaces: frozenset[int] = frozenset()
    addresses: frozenset[str] = frozenset()
    places: Mapping[str, str] = field(default_factory=dict)
    group: int | None = None


class Namespace:
    """The network namespace of this process, and its relation to the node whose ``/`` is ``root``.

    ``initial`` is a file that is visible only in the first network namespace (kernel,
    net/core/sysctl_net_core.c).
    """

    def __init__(
        self, sysfs: Sysfs, root: Path, initial: str = "/proc/sys/net/core/netdev_max_backlog"
    ) -> None:
        self._sysfs = sysfs
        self._initial = initial
        self.is_live = is_live(root)
        """Whether ``root`` is this machine and not a recorded tree."""

    def hears_links(self) -> bool:
        """Whether netlink describes the interfaces that sysfs shows."""
        return self.is_live and shares_network_namespace(self._sysfs)

    def is_initial(self) -> bool:
        """Whether it is the first one, that of the node. Another one hides the interfaces of the node."""
        return os.path.exists(self._initial)  # noqa: PTH110 - a plain string path

    def names(self) -> dict[int, str]:
        """The interfaces by index."""
        try:
            return dict(socket.if_nameindex()) if self.is_live else {}
        except OSError:
            return {}


class Network:
    """The facts of one backend's functions. Used by one thread; ``interest`` may be read by any."""

    def __init__(
        self,
        sysfs: Sysfs,
        context: Context,
        node_addresses: Collection[str],
        *,
        kernel: Kernel | None = None,
        namespace: Namespace | None = None,
    ) -> None:
        self.interest = Interest()
        self._sysfs = sysfs
        self._context = context
        self._files = NetFiles(sysfs)
        self._kernel = kernel or Kernel()
        self._namespace = namespace or Namespace(sysfs, context.root)
        self._live = self._namespace.is_live
        self._addresses = frozenset(node_addresses) or (kubelet_addresses() if self._live else frozenset())
        self._traffic: Traffic | None = None
        self._sees_all = True
        self._macs: VfMacs = {}
        self._devlink = Devlink()
        self._problems: defaultdict[str, Incident] = defaultdict(Incident)
        self._quiet = True
        self._stale_network = self._stale_devlink = True

    def notice(self, event: Event) -> None:
        """Notes what the next call must query again: everything if the event names no device."""
        self._quiet = False
        anything = not event.sys_path
        self._stale_network |= anything or event.subsystem == "net"
        self._stale_devlink |= anything or event.subsystem in ("pci", "auxiliary", "devlink")

    def facts(self, snapshot: Snapshot) -> dict[str, Facts]:
        """The facts of each function by id. Without an event, everything is queried again.

        Without functions nothing is queried, since the network of pods changes all the time.
        """
        if not snapshot.functions:
            self.interest = Interest(addresses=self._addresses)
            self._stale_network = self._stale_devlink = True
            return {}
        names = self._namespace.names()
        if self._stale_network or self._quiet:
            self._ask_network(names)
        if self._stale_devlink or self._quiet:
            self._ask_devlink()
        self._quiet, self._stale_network, self._stale_devlink = True, False, False
        busy = self._busy()
        self.interest = self._interest(snapshot, busy, names)
        return {name: self._facts(function, snapshot, busy) for name, function in snapshot.functions.items()}

    def close(self) -> None:
        """Ends the netlink process, if there is one."""
        self._kernel.close()

    def lacks_addresses(self, addresses: Collection[str]) -> bool:
        """Whether no interface of the node has any of these; false if the node's network is not visible."""
        if not addresses or self._traffic is None or not self._sees_all:
            return False
        known = {normal(address) for address, _ in self._traffic.addresses}
        return known.isdisjoint(map(normal, addresses))

    def _ask_network(self, names: Mapping[int, str]) -> None:
        hears = self._namespace.hears_links()
        self._traffic = self._ask("routes", lambda: self._kernel.traffic(names)) if hears else None
        if self._traffic is None:
            self._traffic = self._files.traffic(self._addresses)
        # a namespace other than the first hides the interfaces of the node
        self._sees_all = not hears or self._namespace.is_initial()
        if hears and self._wants("mac"):
            self._macs = self._ask("virtual functions", self._kernel.vf_macs) or {}
        if self._traffic is None and self._live:
            self._report_problem(ROUTES, "neither rtnetlink nor /proc/1/net has them")
        elif self._live and not self._sees_all:
            self._report_problem(ROUTES, "this process is not in the network namespace of the node")
        else:
            self._report_end(ROUTES)

    def _ask_devlink(self) -> None:
        if self._live:
            profiles = self._wants("ddpProfile")
            found = self._ask("devlink", lambda: self._kernel.devlink(profiles=profiles))
            self._devlink = found or self._devlink

    def _wants(self, attribute: str) -> bool:
        return attribute in self._context.wanted or "*" in self._context.wanted

    def _ask(self, what: str, call: Callable[[], T]) -> T | None:
        """The answer; ``None`` if the request fails or takes too long."""
        try:
            answer = call()
        except OSError as error:
            self._report_problem(f"{what} (netlink)", error.strerror or str(error) or type(error).__name__)
            return None
        self._report_end(f"{what} (netlink)")
        return answer

    def _report_problem(self, what: str, reason: str) -> None:
        if self._problems[what].news(reason):
            self._context.log.warning("cannot read %s: %s", what, reason)

    def _report_end(self, what: str) -> None:
        if self._problems[what].over():
            self._context.log.info("can read %s again", what)

    def _busy(self) -> dict[str, str]:
        if self._traffic is None:
            return {}
        return carriers(self._traffic, self._addresses, self._files.lower, self._files.on_switch)

    def _interest(self, snapshot: Snapshot, busy: Collection[str], names: Mapping[int, str]) -> Interest:
        wanted = {one.name for function in snapshot.functions.values() for one in function.interfaces} | set(
            busy
        )
        return Interest(
            interfaces=frozenset(index for index, name in names.items() if name in wanted),
            addresses=self._addresses,
            places={name: function.path for name, function in snapshot.functions.items()},
            group=self._devlink.group,
        )

    def _facts(self, function: Function, snapshot: Snapshot, busy: Mapping[str, str]) -> Facts:
        physical = snapshot.physical_of(function) or function
        switch = self._devlink.switches.get(physical.id, _NO_SWITCH)
        mac = representor = ""
        if function.kind is FunctionKind.VIRTUAL and function.vf_index is not None:
            representor = switch.virtual.get(function.vf_index, "")
            macs = [self._macs[one.name] for one in physical.interfaces if one.name in self._macs]
            mac = macs[0].get(function.vf_index, "") if macs else ""
        elif function.kind is FunctionKind.SCALABLE and function.sf_number is not None:
            representor = switch.scalable.get(function.sf_number, "")
        return Facts(switch.mode, mac, switch.profile, representor, self._in_use(function, busy))

    def _in_use(self, function: Function, busy: Mapping[str, str]) -> str:
        for interface in function.interfaces:
            if interface.name in busy:
                return busy[interface.name]
        if not self._live or not function.is_network or not function.driver or function.is_passed_on:
            return ""
        if self._traffic is None:
            return UNSEEN
        return "" if self._sees_all or function.last_interfaces else UNSEEN
