"""Golden files have what is shown, as changes; ``DEVHOST_GOLDEN=1`` writes them again."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping

RENEWS = bool(os.environ.get("DEVHOST_GOLDEN"))
"""Whether the golden files are written instead of compared."""


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """A line for each place that is gone, is new, or has another value."""
    yield from dict.fromkeys(f"- {_whole(place, now)}" for place in before if place not in now)
    for place, value in now.items():
        if place not in before:
            yield f"+ {place} {value}"
        elif before[place] != value:
            yield f"{place} {before[place]} -> {value}"


def _whole(place: str, now: Collection[str]) -> str:
    """The item, or the item that has it, of which nothing is left."""
    items = (place[: end.end()] for end in re.finditer(r"\](?=\.)|$", place))
    return next((item for item in items if not any(one.startswith(item) for one in now)), place)
