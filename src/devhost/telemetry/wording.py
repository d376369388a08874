"""How people are told what is in the status document: the same words in a terminal and in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from .document import DeviceStatus, EntryStatus, HolderStatus, HostStatus, StatusDocument

UNKNOWN_POD = "a pod, unknown which"


def age(since: str | None, now: datetime) -> str:
    """How long ago a time of the document was, in its one largest unit: ``45s``, ``12m``, ``3h``, ``8d``."""
    if not since:
        return ""
    try:
        then = datetime.fromisoformat(since)
    except ValueError:
        return "?"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = max(int((now - then).total_seconds()), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def empty_entry(entry: EntryStatus) -> str:
    """How an entry without devices is called."""
    if entry["state"] == "absent":
        return "not on this node"
    return "waiting" if entry["state"] == "waiting" else "no devices"


def awaits(document: StatusDocument) -> list[str]:
    """The backends that have not listed their devices, of entries which should have some."""
    waiting = (e["backend"] for e in document["entries"] if e["state"] == "waiting" and not e["optional"])
    return list(dict.fromkeys(waiting))


def in_use(host: HostStatus) -> str:
    """Which configuration is in use while the file is refused."""
    if copy := host["copy"]:
        return f"running on the copy of {copy['acceptedAt']}"
    return f"generation {host['generation']} stays"


def held_by(device: DeviceStatus, known: bool, unnamed: str = UNKNOWN_POD) -> str:
    """The container that holds a device; empty if none does, as far as the kubelet's word is ``known``.

    ``unnamed`` is what a container is called whose name is not in the document.
    """
    given = "" if device["given"] in ([], [device["device"]]) else f" with {few(device['given'])}"
    if device["allocated"] or device["holder"]:
        return f"{container(device['holder'], unnamed)}{given}"
    return "" if known else "unknown"


def container(holder: HolderStatus | None, unnamed: str = UNKNOWN_POD) -> str:
    """``namespace/pod/container``."""
    if holder is None:
        return unnamed
    return f"{holder['namespace']}/{holder['pod']}/{holder['container']}"


def few(devices: Sequence[str]) -> str:
    """At most three of the ids, and how many there are besides."""
    more = f" and {len(devices) - 3} more" if len(devices) > 3 else ""
    return ", ".join(devices[:3]) + more
