"""What containers hold, as the devhost that runs here tells."""

from __future__ import annotations

from devhost.holding import Holder, Listing
from devhost.telemetry import ask
from devhost.telemetry.document import HolderStatus, StatusDocument


async def held_here() -> Listing:
    """What containers hold.

    Raises:
        DevhostError: no devhost runs here, or several do, or the one does not answer us.
    """
    return listing(await ask.fetch(await ask.find()))


def listing(document: StatusDocument) -> Listing:
    """What a status document tells of held tokens, as a kubelet would tell it."""
    holders: dict[str, dict[str, Holder | None]] = {}
    for resource in document["resources"]:
        for device in resource["devices"]:
            if device["allocated"]:
                holders.setdefault(resource["name"], {})[device["id"]] = _holder(device["holder"])
    for held in document["held"]:
        holders.setdefault(held["resource"], {})[held["id"]] = _holder(held["holder"])
    return Listing((0, 0, 0), 0.0, 1, holders)


def _holder(holder: HolderStatus | None) -> Holder | None:
    return Holder(holder["namespace"], holder["pod"], holder["container"]) if holder else None
