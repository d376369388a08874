"""Whether a function is healthy, and whether a container could get it now.

One whose interface or RDMA device is in a pod's network namespace is healthy: it is where it belongs.

Looked at again only for functions that were read again and for those in one IOMMU group with them, for
hundreds of functions have thousands of files. What is asked is what Allocate asks, so the two never disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from devhost.backend import HEALTHY, AllocationError, Event, Health, unhealthy
from devhost.backend.sysfs import Sysfs

from . import allocation
from .model import Function, Interface, Kind, Snapshot
from .options import RDMA, VHOST_NET
from .scan import MOST_PLACES, place_of

_NO_CARRIER = frozenset({"down", "lowerlayerdown", "notpresent"})
"""States in which an interface that is set up passes nothing (RFC 2863, ``operstate``)."""


def verdict(function: Function, whole: Function | None, lack: str, *, ignore_ports: bool) -> Health:
    """The health of a function.

    Args:
        function: the function itself.
        whole: the physical function that it is a part of; ``None`` if it is a whole, or that is gone.
        lack: why a container could not get it now; empty if it could.
        ignore_ports: whether one whose port has no carrier is healthy too.
    """
    if function.kind is not Kind.PHYSICAL and whole is None:
        return unhealthy(f"its physical function {function.parent} is gone")
    if not function.driver:
        return unhealthy("no driver is bound to it")
    if lack:
        return unhealthy(lack)
    if function.is_network and not ignore_ports:
        return _carrier((whole or function).interfaces, own=whole is None)
    return HEALTHY


def lacks_carrier(ports: Sequence[Interface]) -> bool:
    """Whether no port has a carrier. One that nobody has set up tells nothing of its cable."""
    return bool(ports) and all(port.is_set_up and port.state in _NO_CARRIER for port in ports)


def _carrier(ports: Sequence[Interface], *, own: bool) -> Health:
    if not lacks_carrier(ports):
        return HEALTHY
    names = " and ".join(port.name for port in ports)
    of = "" if own else " of its physical function"
    return unhealthy(f"{names}{of} {'has' if len(ports) == 1 else 'have'} no carrier")


_MODULES = {allocation.CONTAINER: "vfio", allocation.VHOST_NET_NODE: "vhost_net", allocation.TUN: "tun"}
"""What makes the nodes that belong to no function."""


@dataclass(frozen=True, slots=True)
class Lacks:
    """Why a container could not get one function; texts are empty, and ``uses`` has no key, where it could.

    ``itself`` is about the function whatever it is used for, ``uses`` about what some resources hand out
    beside it, by their words for that.
    """

    itself: str = ""
    uses: Mapping[str, str] = field(default_factory=dict)


LACKS_NOTHING = Lacks()
"""It could get it, for every use."""


class Readiness:
    """What functions lack. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._known: dict[str, tuple[Function, Lacks]] = {}
        self._touched: set[str] = set()
        self._places: set[str] = set()

    def notice(self, event: Event) -> None:
        """Notes the function that something happened to, and what may be in a group with others.

        The latter whether or not it is a device of this backend.
        """
        if (place := place_of(event.sys_path)) and len(self._places) < MOST_PLACES:
            self._places.add(place)
        if event.subsystem == "pci" and len(self._touched) < MOST_PLACES:
            self._touched.add(event.sys_path)

    def lacks(self, look: Snapshot) -> dict[str, Lacks]:
        """Why a container could not get each function, by id."""
        fresh = {name for name, one in look.functions.items() if look.everything or self._is_new(one)}
        groups = {look.functions[name].iommu_group for name in fresh}
        groups.update(self._sysfs.target(f"{path}/iommu_group") for path in self._touched)
        groups.discard("")
        vhost_net = self._lack(lambda: [allocation.vhost_net()])
        known = {}
        for name, function in look.functions.items():
            before = self._known.get(name)
            if before is None or name in fresh or function.iommu_group in groups:
                lacks = self._lacks(function)
            else:
                lacks = before[1]
            lacks = _for_vhost_net(lacks, vhost_net if function.is_network else "")
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
        rdma = self._lack(lambda: filter(None, [allocation.rdma(self._sysfs, function)]))
        return Lacks(itself, {RDMA: rdma} if rdma else {}) if itself or rdma else LACKS_NOTHING

    def _lack(self, parts: Callable[[], Iterable[allocation.Part]]) -> str:
        try:
            for part in parts():
                for node in part.nodes:
                    if node.required and not self._sysfs.exists(node.path):
                        module = _MODULES.get(node.path)
                        hint = f": is module {module} loaded?" if module else ""
                        return f"{node.path} does not exist{hint}"
        except allocation.InPod:
            return ""
        except AllocationError as error:
            return error.message
        return ""


def _for_vhost_net(lacks: Lacks, reason: str) -> Lacks:
    """The same with what is said of vhost-net, which no function has for itself."""
    if lacks.uses.get(VHOST_NET, "") == reason:
        return lacks
    others = {use: why for use, why in lacks.uses.items() if use != VHOST_NET}
    return Lacks(lacks.itself, others | ({VHOST_NET: reason} if reason else {}))
