"""Ids that outlive a reboot, a replug and the order of discovery.

An id is the subsystem, what the device hangs on, and what tells it from its siblings there::

    tty-1a86:7523-A10B-00          USB vendor:product, serial number, interface
    video4linux-046d:0825-0000:00:14.0-usb1.4-00-1     no serial number: the port; second node
    block-eui.0025385b91b1a2c3-part1                   world-wide id, partition
    drm-0000:3b:00.0-renderD       PCI address
    misc-fuse, block-zram0         nothing but a name

A device keeps its id as long as it stays plugged in, whoever joins it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from devhost.model import MAX_DEVICE_ID
from devhost.sysfs import natural

_ILLEGAL = re.compile(r"[^A-Za-z0-9._:-]+")


@dataclass(frozen=True, slots=True)
class Name:
    """What an id is made from.

    ``label`` names the hardware and ``place`` says where it is plugged in. The place becomes part of
    the id only when two pieces of hardware bear one label, as cheap clones with one serial number do.
    ``order`` is the kernel's name: the rank among siblings that differ in nothing else.
    """

    subsystem: str
    label: str
    stem: str = ""
    place: str = ""
    order: str = ""


def legal(text: str) -> str:
    """``text`` as an id can hold it: other characters become ``_``, and it starts with a letter or digit."""
    return _ILLEGAL.sub("_", text).strip("._:-")


def fit(text: str) -> str:
    """``text`` as it is when an id may be that long, else its beginning and eight hex digits of its hash."""
    if len(text) <= MAX_DEVICE_ID:
        return text
    return f"{text[: MAX_DEVICE_ID - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class Identities:
    """Gives ids to devices, keyed by whatever the caller knows them as."""

    def __init__(self) -> None:
        self._ids: dict[str, tuple[str, Name]] = {}
        self._holders: dict[str, str] = {}
        self._places: dict[str, Counter[str]] = {}

    def release(self, key: str) -> None:
        """The device is gone; its id may be given again."""
        given = self._ids.pop(key, None)
        if given is None:
            return
        text, name = given
        del self._holders[text]
        if not name.place:
            return
        places = self._places[name.label]
        places[name.place] -= 1
        if not places[name.place]:
            del places[name.place]
        if not places:
            del self._places[name.label]

    def id_of(self, key: str) -> str:
        """The id given to ``key``; empty when it has none."""
        given = self._ids.get(key)
        return given[0] if given else ""

    def assign(self, newcomers: Iterable[tuple[str, Name, str]]) -> None:
        """Gives ids to devices that have none: key, name, and an id to take over if it is free.

        The outcome does not depend on the order of ``newcomers``.
        """
        batch = sorted(newcomers, key=lambda one: (one[1].label, one[1].place, natural(one[1].order), one[0]))
        for _, name, _ in batch:
            if name.place:
                self._places.setdefault(name.label, Counter())[name.place] += 1
        for key, name, heirloom in batch:
            text = heirloom if heirloom and heirloom not in self._holders else self._free(name)
            self._ids[key] = (text, name)
            self._holders[text] = key

    def _free(self, name: Name) -> str:
        label = name.label
        if len(self._places.get(label, ())) > 1:
            label = f"{label}-{name.place}"
        text = legal("-".join(filter(None, (name.subsystem, label, name.stem)))) or "device"
        rank, chosen = 0, fit(text)
        while chosen in self._holders:
            rank += 1
            chosen = fit(f"{text}.{rank}")
        return chosen
