"""RDMA devices, their ports and their places, as values.

Files: Documentation/ABI/stable/sysfs-class-infiniband of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

from devhost.backend import HEALTHY, Cause, Health, unhealthy
from devhost.backend.frozen import frozen
from devhost.backend.model import MAX_DEVICE_ID
from devhost.backend.sysfs import DEVICES, function_path, pci_path

NODE_TYPES = {1: "ca", 2: "switch", 3: "router", 4: "rnic", 5: "usnic", 6: "usnic_udp", 7: "unspecified"}
"""``enum rdma_node_type``, named as ``rdma dev`` prints them."""

PORT_STATES = {0: "nop", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_defer"}
"""``enum ib_port_state``."""

PHYS_STATES = {
    1: "sleep",
    2: "polling",
    3: "disabled",
    4: "port_configuration_training",
    5: "link_up",
    6: "link_error_recovery",
    7: "phy_test",
}
"""``enum ib_port_phys_state``, named as ``rdma link`` prints them."""

INFINIBAND = "infiniband"
ETHERNET = "ethernet"
_LINK_LAYERS = {"infiniband": INFINIBAND, "ethernet": ETHERNET, "unknown": "unspecified"}
LINK_LAYERS = tuple(_LINK_LAYERS.values())
"""Values of :func:`link_layer`."""

ACTIVE = "active"

_IB = "ib"
_TRANSPORTS = {"rnic": "iwarp", "usnic": "usnic", "usnic_udp": "usnic_udp", "unspecified": "unspecified"}
TRANSPORTS = (_IB, *_TRANSPORTS.values())
"""Values of :attr:`IbDevice.transport`."""
_NUMBERED = re.compile(r"([0-9]{1,2}):")
_RATE = re.compile(r"([0-9]{1,6})(\.[0-9]+)? Gb/sec\b")
_GUID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}")
_NO_GUID = "0000:0000:0000:0000"
_LONGEST = 128


@frozen(slots=True)
class Port:
    """One port. Unknown texts are empty; ``rate`` is in Gb/s, rounded down."""

    number: int
    state: str
    phys_state: str
    link_layer: str
    rate: int | None

    @property
    def active(self) -> bool:
        """Whether data can flow."""
        return self.state == ACTIVE


@frozen(slots=True)
class IbDevice:
    """One RDMA device as the kernel registers it (``mlx5_0``). Unknown texts are empty.

    ``path`` is its directory in sysfs, ``netdev`` the network interface of a software device.
    """

    name: str
    path: str
    node_type: str
    node_guid: str
    image_guid: str
    firmware: str
    board: str
    ports: tuple[Port, ...]
    netdev: str = ""

    @property
    def transport(self) -> str:
        """The transport by node type, as ``rdma_node_get_transport`` maps it: RoCE counts as ``ib``."""
        return _TRANSPORTS.get(self.node_type, _IB) if self.node_type else ""


def best_port(ports: Sequence[Port]) -> Port | None:
    """The fastest active port, else the first; ``None`` if there is none."""
    active = [port for port in ports if port.active]
    if active:
        return max(active, key=lambda port: (port.rate or 0, -port.number))
    return ports[0] if ports else None


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


def numbered(text: str, words: dict[int, str]) -> str:
    """The name of a value that the kernel prints with its number, ``4: ACTIVE``; empty if unknown."""
    found = _NUMBERED.match(text)
    return words.get(int(found[1]), "") if found else ""


def link_layer(text: str) -> str:
    """The name of ``InfiniBand``, ``Ethernet`` or ``Unknown`` (EFA); empty for other texts."""
    return _LINK_LAYERS.get(text.lower(), "")


def rate(text: str) -> int | None:
    """The Gb/s of ``100 Gb/sec (4X EDR)``, rounded down; ``None`` for other texts."""
    found = _RATE.match(text)
    return int(found[1]) if found else None


def guid(text: str) -> str:
    """A GUID as sysfs prints it; empty if it is not set, as for a new virtual function, or invalid."""
    word = text.lower()
    return word if _GUID.fullmatch(word) and word != _NO_GUID else ""


def label(text: str) -> str:
    """A vendor's text, such as a firmware version; empty if it is too long or has several lines."""
    return "" if "\n" in text or len(text) > _LONGEST else text


VIRTUAL = f"{DEVICES}virtual"

_FOREIGN = re.compile(r"[^A-Za-z0-9._:@+-]|^[^A-Za-z0-9]+")


class Kind(Enum):
    """The kind of a place."""

    PCI = auto()
    SUBFUNCTION = auto()
    SOFTWARE = auto()
    OTHER = auto()


@frozen(slots=True)
class Place:
    """The function that has one or more RDMA devices.

    ``id`` is the PCI address, the name of a scalable function on the auxiliary bus, or the name of a software
    device, which has no other permanent property. ``path`` is its directory in sysfs, ``address`` the address
    of its PCI function (empty without one).
    """

    id: str
    kind: Kind
    path: str
    address: str = ""


def place_of(path: str, name: str, *, software: bool = False) -> Place:
    """The place of an RDMA device, or of a device of its classes such as ``uverbs0``.

    ``path`` is the device's directory, ``/sys/devices/…/<class>/<device>``, ``name`` that of the RDMA device.
    Some kernels put a software device below the adapter whose interface it uses.
    """
    above = path.rpartition("/")[0].rpartition("/")[0]
    if software or above == VIRTUAL:
        return Place(name, Kind.SOFTWARE, f"{above}/infiniband/{name}")
    return place_at(above)


def place_at(path: str) -> Place:
    """The innermost place that contains a directory below ``/sys/devices``."""
    function, address = function_path(path), pci_path(path).rpartition("/")[2]
    if function and address:
        name = function.rpartition("/")[2]
        return Place(name, Kind.PCI if name == address else Kind.SUBFUNCTION, function, address)
    legal = _FOREIGN.sub("-", path.rpartition("/")[2]).lstrip("-")[:MAX_DEVICE_ID]
    return Place(legal or "device", Kind.OTHER, path)
