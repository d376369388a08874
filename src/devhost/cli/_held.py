"""What containers hold, as the devhost that runs here tells."""

from __future__ import annotations

from devhost.errors import DevhostError
from devhost.holding import Holder, Listing
from devhost.telemetry import ask
from devhost.telemetry.document import HolderStatus, StatusDocument


async def held_here() -> Listing | None:
    """What containers hold; ``None`` unless one devhost runs here, and answers."""
    try:
        return listing(await ask.fetch(await ask.find()))
    except DevhostError:
        return None


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
