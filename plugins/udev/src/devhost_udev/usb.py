"""The USB device that a node belongs to, and the port that it is plugged into.

A port is the controller, its side, and the ports from there on. An xHCI controller has two root hubs, one for
USB 2 and one for SuperSpeed, which number their ports independently (drivers/usb/host/xhci.c; so does USB/IP,
drivers/usb/usbip/vhci_hcd.c). The numbers of the buses, ``usb1`` and ``usb2``, depend on the order in which
controllers are found, so they are not part of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from devhost.backend.frozen import frozen
from devhost.backend.sysfs import natural

from .sysfs import Kobject, SysTree, names_before

_ROOT_HUB = re.compile(r"usb[0-9]+")

_SUPER_SPEED = 5000
"""Mb/s of the slowest SuperSpeed link (``speed``, Documentation/ABI/testing/sysfs-bus-usb)."""

_MAY_BE_FASTER = "2.10"
"""The version that a device reports at least if it supports SuperSpeed, also on a USB 2 port (USB 3.2
specification, 9.6.1)."""


@frozen(slots=True)
class Usb:
    """The USB device of a node. ``serial`` is what the device reports.

    ``port`` is the port: ``0000:00:14.0-usb1.4``, ``0000:00:14.0-ss1.4`` on the SuperSpeed side. ``place`` is
    the port as part of ids, ``former_ports`` are the texts that earlier versions may have had in its place.
    """

    vendor: str
    product: str
    serial: str
    port: str
    place: str
    former_ports: tuple[str, ...]
    interface: str

    @property
    def model(self) -> str:
        """Vendor and product id."""
        return f"{self.vendor}:{self.product}"


def usb_of(tree: SysTree, chain: Sequence[Kobject]) -> Usb | None:
    """The USB device that a node is, or belongs to; ``None`` if it is not on USB.

    ``chain`` is the node's device and its ancestors, nearest first.
    """
    device = next((k for k in chain if k.dev_type == "usb_device"), None)
    if device is None:
        return None
    interface = next((k for k in chain if k.dev_type == "usb_interface"), None)
    serial = tree.read(device.path, "serial")
    port, place, former = _port(tree, device)
    return Usb(
        vendor=tree.read(device.path, "idVendor"),
        product=tree.read(device.path, "idProduct"),
        serial=serial,
        port=port,
        place=place,
        former_ports=former,
        interface=tree.read(interface.path, "bInterfaceNumber") if interface else "",
    )


def _port(tree: SysTree, device: Kobject) -> tuple[str, str, tuple[str, ...]]:
    """The port of a USB device, its text in ids, and those of earlier versions."""
    ports = tree.read(device.path, "devpath") or device.name.partition("-")[2]
    parts = device.path.split("/")
    depth = next((n for n, part in enumerate(parts) if _ROOT_HUB.fullmatch(part)), 0)
    controller, hub = "/".join(parts[:depth]), parts[depth] if depth else ""
    before = parts[depth - 1] if depth else ""
    # earlier versions had neither the side, nor the firmware's name of an automatically numbered controller
    former = tuple(f"{name}-usb{ports}" for name in names_before(before))
    others = [name for name in tree.names(controller) if _ROOT_HUB.fullmatch(name) and name != hub]
    stable = tree.stable_name(controller)
    if _is_super_speed(tree, controller, hub, others):
        port = f"{stable}-ss{ports}"
        return port, port, former
    port = f"{stable}-usb{ports}"
    version = tree.read(device.path, "version")
    if (
        port in former
        and any(_is_super_speed(tree, controller, one, [hub]) for one in others)
        and not (version and version < _MAY_BE_FASTER)
    ):
        # the former id may be that of an equal device on the other side, so this one must differ from it
        return port, f"{stable}-hs{ports}", former
    return port, port, former


def _is_super_speed(tree: SysTree, controller: str, hub: str, others: Sequence[str]) -> bool:
    """Whether a root hub is the SuperSpeed side of its controller."""
    here = f"{controller}/{hub}"
    speed, _, _ = tree.read(here, "speed").partition(".")
    if speed.isdecimal():
        return int(speed) >= _SUPER_SPEED
    version = tree.read(here, "version")
    if version:
        return version >= "3"
    # a recorded tree without these files: the kernel registers the USB 2 side first
    return any(natural(one) < natural(hub) for one in others)
