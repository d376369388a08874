"""Words for several things at once, times and durations, the same in every message."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

from devhost.backend.errors import counted as counted
from devhost.backend.errors import few as few


def duration(text: str) -> float | None:
    """The seconds in ``90s``, ``30m`` or ``2h``; ``None`` if it is none of these."""
    number, unit = text[:-1], {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    return float(number) * unit if unit and re.fullmatch(r"[0-9]{1,6}", number) else None


def utc(seconds: float, precision: str = "seconds") -> str:
    """A time of the wall clock by RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


@lru_cache(1024)  # devices that appeared together have the same times
def iso(seconds: float) -> str:
    """The same to the millisecond, as in documents."""
    return utc(seconds, "milliseconds")
