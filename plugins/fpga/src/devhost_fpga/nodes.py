"""The node in ``/dev`` of a device in sysfs, found by its number: for containers, and for what programs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from devhost.backend import AllocationError
from devhost.backend.sysfs import Sysfs, is_regular, node_number

_LINK = re.compile(r"(?:\.\./)?([\w-][\w.-]*(/[\w-][\w.-]*)*)")
"""What links in ``/dev/char`` lead to."""

_NUMBER = re.compile(r"[0-9]{1,7}:[0-9]{1,7}")


def node(sysfs: Sysfs, place: str, *, is_live: bool) -> str:
    """The node in ``/dev`` of the device at ``place`` in sysfs.

    The kernel's own name for it comes first; where that is another device's, udev's list of all nodes by
    number, ``/dev/char``, has the right one if anything has.

    Args:
        is_live: whether the nodes are real ones; in a recorded tree plain files stand for them.

    Raises:
        AllocationError: there is none.
    """
    return numbered(sysfs, place, is_live=is_live)[0]


def numbered(sysfs: Sysfs, place: str, *, is_live: bool) -> tuple[str, str]:
    """That node, with its number: ``major:minor``.

    Raises:
        AllocationError: there is none.
    """
    if not sysfs.exists(place):
        raise AllocationError("it is gone")
    number = sysfs.text(f"{place}/dev")
    if not _NUMBER.fullmatch(number):
        raise AllocationError(f"the kernel made no device node for {place.rpartition('/')[2]}")
    usual = sysfs.node(place, f"/dev/{place.rpartition('/')[2]}")
    if _is(sysfs, usual, number, is_live=is_live):
        return usual, number
    link = _LINK.fullmatch(sysfs.link(f"/dev/char/{number}"))
    if link and _is(sysfs, f"/dev/{link[1]}", number, is_live=is_live):
        return f"/dev/{link[1]}", number
    found = node_number(sysfs.prefix + usual)
    if found or sysfs.exists(usual):
        raise AllocationError(f"{usual} is {found or 'no device node'}, and not c{number}")
    raise AllocationError(f"{usual} does not exist; it should be c{number}")


def node_claims(sysfs: Sysfs, places: Iterable[str]) -> frozenset[str]:
    """Claims of the nodes of the devices at ``places``, by the names that the kernel gives them."""
    return frozenset(f"node:{path}" for path in map(sysfs.node, places) if path)


def _is(sysfs: Sysfs, path: str, number: str, *, is_live: bool) -> bool:
    found = node_number(sysfs.prefix + path)
    return found == f"c{number}" or (not found and not is_live and is_regular(sysfs.prefix + path))
