"""How well a function is, in words a user can act on; pure.

One whose interface or RDMA device is in a pod's network namespace is well: it is where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence

from devhost.backend import HEALTHY, Health, unhealthy

from .function import Function, Interface, Kind

_NO_CARRIER = frozenset({"down", "lowerlayerdown", "notpresent"})
"""States in which an interface that is set up passes nothing (RFC 2863, ``operstate``)."""


def verdict(function: Function, whole: Function | None, lack: str, *, ignore_ports: bool) -> Health:
    """The health of a function.

    Args:
        function: the function itself.
        whole: the physical function that it is a part of; ``None`` if it is a whole, or that is gone.
        lack: why a container could not get it now; empty if it could.
        ignore_ports: whether one whose port has no carrier is well too.
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
