"""What a device is for, if not for the programs of containers: the attribute ``purpose``.

A backend gives such a device the attribute, and its reason in :attr:`devhost.backend.model.Device.reserved`.
The core then offers it only through entries whose ``where`` has a condition on ``purpose``.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable

from .base import Attribute
from .model import PURPOSE as PURPOSE
from .sysfs import Sysfs

FABRIC_MANAGEMENT = "fabric-management"
"""For the subnet manager of NVSwitches."""

DISPLAY = "display"
"""For a screen or the console."""

NODE_NETWORK = "node-network"
"""The node uses it for its network."""

NODE_STORAGE = "node-storage"
"""The node uses it for its file systems or swap."""


def purpose_attribute(*words: str) -> Attribute:
    """The declaration of the attribute, for a backend whose devices can have these purposes."""
    meaning = "special purpose; a device with one is offered only if `where` has this attribute"
    return Attribute(str, meaning, words[0], words=words)


MANAGES_FABRIC = "it manages the NVSwitches of this machine (SW_MNG in its VPD)"
"""The reason for :data:`FABRIC_MANAGEMENT`."""

VPD_LIMIT = 32 * 1024
"""Bytes of a function's vital product data (VPD): addresses in it have 15 bits (PCI Local Bus 3.0, 6.4)."""

VPD_SECONDS = 1.0
"""Seconds after which reading one function's VPD ends. Each access to it may take 125 ms
(drivers/pci/vpd.c, ``pci_vpd_wait``)."""

RETRY = 60.0
"""Seconds until a VPD that could not be read is read again."""

_CHUNK = 64
"""Bytes of one read: 16 accesses."""

_NVIDIA_NETWORKING = "15b3"
_MARK = b"SW_MNG"


class FabricManagers:
    """Finds the adapters that exist for the subnet manager of NVSwitches, as on HGX B200.

    NVIDIA marks them in their VPD, otherwise they are like other adapters. Each VPD is read once. Used by one
    thread.

    Args:
        log: receives one message if the VPD cannot be read, which needs root.
        clock: monotonic seconds.
    """

    def __init__(
        self, sysfs: Sysfs, log: logging.Logger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sysfs = sysfs
        self._log = log
        self._clock = clock
        self._known: dict[str, tuple[int, bool]] = {}
        self._not_before: dict[str, float] = {}
        self._is_logged = False

    def include(self, path: str, vendor: str) -> bool:
        """Whether the PCI function at ``path`` is such an adapter, or a virtual function of one.

        False if its VPD cannot be read.

        Args:
            path: its directory, ``/sys/devices/…``.
            vendor: its vendor id, lower-case hex digits.
        """
        if vendor != _NVIDIA_NETWORKING:
            return False
        if physical := self._sysfs.link(f"{path}/physfn"):
            path = os.path.normpath(f"{path}/{physical}")
        if not (inode := self._sysfs.inode(path)):
            return False
        known = self._known.get(path)
        if known is None or known[0] != inode:
            if self._clock() < self._not_before.get(path, 0.0):
                return False
            try:
                known = inode, self._is_marked(f"{self._sysfs.prefix}{path}/vpd")
            except OSError as error:
                self._not_before[path] = self._clock() + RETRY
                self._report(path, error)
                return False
            self._known[path] = known
        return known[1]

    def _is_marked(self, path: str) -> bool:
        """Whether the mark is anywhere in a VPD file.

        The fields are not parsed: the mark is part of a vendor's field, and a damaged VPD may have it, too.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            data = b""
            end = self._clock() + VPD_SECONDS
            while len(data) < VPD_LIMIT and (chunk := os.read(descriptor, _CHUNK)):
                data += chunk
                if _MARK in data[-(_CHUNK + len(_MARK)) :]:
                    return True
                if self._clock() >= end:
                    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            return False
        finally:
            os.close(descriptor)

    def _report(self, path: str, error: OSError) -> None:
        if not self._is_logged:
            self._is_logged = True
            self._log.info(
                "cannot read the VPD of %s: %s; adapters for fabric management are not recognized",
                path.rpartition("/")[2],
                error.strerror,
            )
