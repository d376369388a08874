"""Whether an RDMA function is healthy, from its ports and device nodes."""

from __future__ import annotations

from collections.abc import Sequence

from devhost.backend import HEALTHY, Cause, Health, unhealthy

from .model import INFINIBAND, Port

_NAMED = 2
"""Ports that a reason describes; an adapter in switchdev mode has one for each virtual function."""


def health_of(ports: Sequence[Port], missing_node: str, *, ignore_ports: bool) -> Health:
    """The health of a function.

    ``ports`` are those of its main RDMA device. It is unhealthy without an active port, unless
    ``ignore_ports``.
    """
    if missing_node:
        return unhealthy(missing_node, Cause.MISSING)
    if ignore_ports or not ports or any(port.active for port in ports):
        return HEALTHY
    reasons = [inactive_reason(port) for port in ports[:_NAMED]]
    if len(ports) > _NAMED:
        reasons.append(f"{len(ports) - _NAMED} more are not active")
    return unhealthy(", ".join(reasons), Cause.LINK)


def inactive_reason(port: Port) -> str:
    """Why no data flows through a port that is not active."""
    if not port.state:
        return f"the state of port {port.number} is unknown"
    if port.state in ("init", "armed") and port.link_layer == INFINIBAND:
        return f"port {port.number} is in state {port.state}: no subnet manager has configured it"
    physical = f" (phys state: {port.phys_state.replace('_', ' ')})" if port.phys_state else ""
    is_down = "is down" if port.state == "down" else f"is in state {port.state}"
    return f"port {port.number} {is_down}{physical}"
