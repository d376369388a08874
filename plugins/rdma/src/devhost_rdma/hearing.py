"""Which ports change without anybody telling, so that their files have to be read now and then."""

from __future__ import annotations

from collections.abc import Iterator

from .hca import ETHERNET
from .scan import Unit


def silent_ports(unit: Unit, *, hears: bool) -> Iterator[str]:
    """The state files of those ports of a function that no network interface tells of.

    Args:
        unit: the function.
        hears: the answer of :func:`devhost.backend.netlink.hears_links`.
    """
    is_told = hears and bool(unit.function.interfaces or unit.main.netdev)
    for port in unit.main.ports:
        # IP over InfiniBand is down while nobody set it up, whatever the port does; EFA has no interface
        if port.link_layer != ETHERNET or not is_told:
            yield f"{unit.main.path}/ports/{port.number}/state"
