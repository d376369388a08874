"""What devlink tells of adapters, as values; :mod:`.kernel` asks.

Numbers are those of include/uapi/linux/devlink.h of the Linux kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CHANGES = frozenset({3, 4, 7, 8})
"""Commands of notifications after which switches may be others: a device or a port is new, changed or gone
(``DEVLINK_CMD_NEW``, ``_DEL``, ``_PORT_NEW``, ``_PORT_DEL``)."""

MODES: Mapping[int | None, str] = {0: "legacy", 1: "switchdev"}
"""Words for the modes of an embedded switch (``enum devlink_eswitch_mode``)."""

BUS_NAME, DEV_NAME = 1, 2
"""Numbers of the attributes that name the device: ``pci`` and its address."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One devlink device. Interfaces by the number of the virtual or scalable function they stand for."""

    mode: str = ""
    profile: str = ""
    virtual: Mapping[int, str] = field(default_factory=dict)
    scalable: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Devlink:
    """All devices by the name of what they are on: a PCI address, a name on the auxiliary bus.

    ``group`` is the number of the multicast group of notifications, ``None`` without devlink.
    """

    switches: Mapping[str, Switch] = field(default_factory=dict)
    group: int | None = None
