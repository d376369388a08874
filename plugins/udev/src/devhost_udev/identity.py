"""Ids that name the hardware: made from one device's own facts, whatever else is there.

An id is the subsystem, what the device hangs on, and what the kernel calls it there::

    tty-1a86:7523-A10B-00          USB vendor:product, serial number, interface
    video4linux-046d:0825-0000:00:14.0-usb1.4-00-1     no serial number: the port; the node with index 1
    block-eui.0025385b91b1a2c3-part1                   world-wide id, partition
    drm-0000:3b:00.0-renderD       PCI address
    dsa-0000:6a:01.0-wq0.1         PCI address, queue
    misc-fuse, block-zram0         nothing but a name

An id never depends on the order of discovery or on an earlier look. It depends on another device only where
two USB devices have one serial number and are both plugged in: then both ids contain the port. Other devices
with the same id are told apart for display only, and none of them is offered: :func:`apart`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from devhost.backend.model import MAX_DEVICE_ID

_ILLEGAL = re.compile(r"[^A-Za-z0-9._:-]+")

RANKS = ".*"
"""How a former id ends that means itself followed by any rank, see ``Device.former_ids``."""


@dataclass(frozen=True, slots=True)
class Name:
    """An id, and what earlier versions may have called the device.

    ``former`` are texts of any length, as ``Device.former_ids`` takes them. ``serial`` is the serial number
    or world-wide id that the id contains (empty where it is made from a place), ``place`` where that hardware
    is plugged in. ``placed`` is the id with the place in it, for hardware on USB with a serial number: the id
    while another device has the same number.
    """

    id: str
    former: tuple[str, ...] = ()
    serial: str = ""
    place: str = ""
    placed: str = ""


def legal(text: str) -> str:
    """``text`` as an id can hold it: other characters become ``_``, and it starts with a letter or digit."""
    return _ILLEGAL.sub("_", text).strip("._:-")


def joined(*parts: str) -> str:
    """The parts that are not empty as one text, however long."""
    return legal("-".join(filter(None, parts))) or "device"


def fit(text: str) -> str:
    """``text`` as it is when an id may be that long, else its beginning and eight hex digits of its hash."""
    if len(text) <= MAX_DEVICE_ID:
        return text
    return f"{text[: MAX_DEVICE_ID - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def ranked(*texts: str) -> tuple[str, ...]:
    """Former ids that were shared among siblings by rank: each text, and each with any rank."""
    return tuple(form for text in dict.fromkeys(texts) for form in (text, text + RANKS))


def apart(name: str, node: str) -> str:
    """What a device is shown as that has its id in common with another; no id ever has an ``@``."""
    return fit(f"{name}@{legal(node.removeprefix('/dev/'))}")
