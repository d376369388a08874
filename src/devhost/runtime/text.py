"""Words for several things at once, the same in every message."""

from __future__ import annotations

from collections.abc import Sequence


def few(devices: Sequence[str]) -> str:
    """At most three of the ids, and the number of others."""
    more = f" and {len(devices) - 3} more" if len(devices) > 3 else ""
    return ", ".join(devices[:3]) + more


def counted(count: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
