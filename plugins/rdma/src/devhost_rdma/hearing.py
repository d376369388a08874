"""Which ports change without anybody telling, so that their files have to be read now and then."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from devhost.sysfs import Sysfs

from .hca import ETHERNET
from .scan import NETWORK, Unit

_NO_INTERFACES = frozenset({"bonding_masters"})
"""What else the directory of interfaces has (kernel, drivers/net/bonding/bond_sysfs.c)."""


def hears_links(sysfs: Sysfs) -> bool:
    """Whether rtnetlink tells this process of the network interfaces that ``sysfs`` shows.

    It does within one network namespace; sysfs shows that of the process which mounted it. In a pod with a
    network namespace of its own the two have different interfaces, and so have a machine and a recorded tree.
    """
    try:
        own = {name for _, name in socket.if_nameindex()}
    except OSError:
        return False
    return own == set(sysfs.names(NETWORK)) - _NO_INTERFACES


def silent_ports(unit: Unit, *, hears: bool) -> Iterator[str]:
    """The state files of those ports of a function that no network interface tells of.

    Args:
        unit: the function.
        hears: the answer of :func:`hears_links`.
    """
    is_told = hears and bool(unit.function.interfaces or unit.main.netdev)
    for port in unit.main.ports:
        # IP over InfiniBand is down while nobody set it up, whatever the port does; EFA has no interface
        if port.link_layer != ETHERNET or not is_told:
            yield f"{unit.main.path}/ports/{port.number}/state"
