"""The health of functions, and whether a container could get them now.

A function whose interface or RDMA device is in the network namespace of a pod is healthy.

Only functions that were read again, and others in their IOMMU groups, are checked again, because hundreds of
functions have thousands of files. The checks are those of Allocate, so both always agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial

from devhost.backend import HEALTHY, AllocationError, Event, Health, unhealthy
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import BDF, Sysfs, function_path

from . import allocation
from .model import Function, FunctionKind, Interface, Snapshot
from .options import KUBEVIRT, PERMISSIONS, RDMA, VHOST_NET
from .scan import MAX_PLACES

DEBUGFS = "/sys/kernel/debug"

COPROCESSOR = "0b40"
"""The PCI class of QAT accelerators and their virtual functions."""

_ACCELERATOR = re.compile(rf"qat_\w+_({BDF.pattern})")
"""Names of the directories of QAT accelerators in debugfs: ``qat_4xxx_0000:6b:00.0``."""

_NO_CARRIER = frozenset({"down", "lowerlayerdown", "notpresent"})
"""States of an enabled interface without carrier (RFC 2863, ``operstate``)."""


def verdict(function: Function, physical: Function | None, lack: str, *, ignore_ports: bool) -> Health:
    """The health of a function.

    ``physical`` is its physical function; ``lack`` is why a container cannot get it now. A port without
    carrier makes it unhealthy, unless ``ignore_ports``.
    """
    if function.kind is not FunctionKind.PHYSICAL and physical is None:
        return unhealthy(f"its physical function {function.parent} is gone")
    if not function.driver:
        return unhealthy("no driver is bound to it")
    if lack:
        return unhealthy(lack)
    if function.is_network and not ignore_ports:
        return _carrier((physical or function).interfaces, own=physical is None)
    return HEALTHY


def lacks_carrier(ports: Sequence[Interface]) -> bool:
    """Whether no port has a carrier. A port that is not enabled does not show its carrier."""
    return bool(ports) and all(port.is_set_up and port.state in _NO_CARRIER for port in ports)


def _carrier(ports: Sequence[Interface], *, own: bool) -> Health:
    if not lacks_carrier(ports):
        return HEALTHY
    names = " and ".join(port.name for port in ports)
    of = "" if own else " of its physical function"
    return unhealthy(f"{names}{of} {'has' if len(ports) == 1 else 'have'} no carrier")


def without_heartbeat(sysfs: Sysfs, functions: Sequence[Function]) -> dict[str, Health]:
    """The functions of QAT accelerators that do not respond, by id, as the driver of their physical function
    finds at each read (Linux, Documentation/ABI/testing/debugfs-driver-qat). None if debugfs is not readable.
    """
    if not any(one.pci_class.startswith(COPROCESSOR) for one in functions):
        return {}
    found: dict[str, Health] = {}
    for name in sysfs.names(DEBUGFS):
        if (accelerator := _ACCELERATOR.fullmatch(name)) is None:
            continue
        if sysfs.text(f"{DEBUGFS}/{name}/heartbeat/status") == "-1":
            address = accelerator[1]
            own = unhealthy("it does not respond: its heartbeat is -1")
            of = unhealthy(f"its physical function {address} does not respond: its heartbeat is -1")
            found |= {
                one.id: of if one.parent else own for one in functions if address in (one.id, one.parent)
            }
    return found


_MODULES = {allocation.CONTAINER: "vfio", allocation.VHOST_NET_NODE: "vhost_net", allocation.TUN: "tun"}
"""The modules that create nodes that belong to no function."""


def missing_node(sysfs: Sysfs, paths: Iterable[str]) -> str:
    """The first of these nodes that does not exist, as a reason; empty if all do."""
    for path in paths:
        if not sysfs.exists(path):
            hint = f" (is module {_MODULES[path]} loaded?)" if path in _MODULES else ""
            return f"{path} does not exist{hint}"
    return ""


@frozen
class Lacks:
    """Why a container cannot get one function; ``itself`` is empty, and ``uses`` has no key, if it can.

    ``itself`` is about the function for every use, ``uses`` about what the options of some resources need, by
    option name.
    """

    itself: str = ""
    uses: Mapping[str, str] = field(default_factory=dict)


NO_NETWORK = "vhostNet: true is for network adapters, PCI class 02"
"""Why a function of another class cannot serve a resource with ``vhostNet``."""

LACKS_NOTHING = Lacks()
"""A container can get it for every use."""


class Readiness:
    """Determines what functions lack. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._known: dict[str, tuple[Function, Lacks]] = {}
        self._touched: set[str] = set()
        self._places: set[str] = set()

    def notice(self, event: Event) -> None:
        """Notes the function of an event, and PCI functions that may share a group with others.

        The latter need not be devices of this backend.
        """
        if (place := function_path(event.sys_path)) and len(self._places) < MAX_PLACES:
            self._places.add(place)
        if event.subsystem == "pci" and len(self._touched) < MAX_PLACES:
            self._touched.add(event.sys_path)

    def lacks(self, snapshot: Snapshot) -> dict[str, Lacks]:
        """What each function lacks, by id."""
        fresh = {name for name, one in snapshot.functions.items() if snapshot.everything or self._is_new(one)}
        groups = {snapshot.functions[name].iommu_group for name in fresh}
        groups.update(self._sysfs.target(f"{path}/iommu_group") for path in self._touched)
        groups.discard("")
        vhost_net = self._lack(lambda: [allocation.vhost_net()])
        known = {}
        for name, function in snapshot.functions.items():
            before = self._known.get(name)
            if before is None or name in fresh or function.iommu_group in groups:
                lacks = self._lacks(function)
            else:
                lacks = before[1]
            lacks = _for_vhost_net(lacks, vhost_net if function.is_network else NO_NETWORK)
            known[name] = function, lacks
        self._known = known
        self._touched.clear()
        self._places.clear()
        return {name: lacks for name, (_, lacks) in known.items()}

    def _is_new(self, function: Function) -> bool:
        before = self._known.get(function.id)
        return before is None or before[0] is not function or function.path in self._places

    def _lacks(self, function: Function) -> Lacks:
        itself = self._lack(partial(allocation.own_parts, self._sysfs, function))
        uses = {
            RDMA: self._lack(lambda: [allocation.rdma(self._sysfs, function)]),
            KUBEVIRT: allocation.no_vfio(function),
            PERMISSIONS: "" if itself else allocation.no_node(self._sysfs, function),
        }
        uses = {use: why for use, why in uses.items() if why}
        return Lacks(itself, uses) if itself or uses else LACKS_NOTHING

    def _lack(self, parts: Callable[[], Iterable[allocation.Part]]) -> str:
        try:
            for part in parts():
                if lack := missing_node(self._sysfs, (node.path for node in part.nodes if node.required)):
                    return lack
        except allocation.InPod:
            return ""
        except AllocationError as error:
            return error.message
        return ""


def _for_vhost_net(lacks: Lacks, reason: str) -> Lacks:
    """``lacks`` with the reason for vhost-net, which is common to all functions."""
    if lacks.uses.get(VHOST_NET, "") == reason:
        return lacks
    others = {use: why for use, why in lacks.uses.items() if use != VHOST_NET}
    return Lacks(lacks.itself, others | ({VHOST_NET: reason} if reason else {}))
