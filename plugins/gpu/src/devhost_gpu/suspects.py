"""Cards whose drivers have cried for help, asked at once whether they still answer.

A driver that has reset a card, or has given it up, tells of it by an event ``change`` of the card's DRM
device (Documentation/gpu/drm-uapi.rst, "Device Wedging"), as it does when a display was plugged in. What the
event says does not reach us, so the driver is asked; and again at each look for as long as it is wedged.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from devhost.backend import Event

from .adapter import Adapter
from .drm import Answers

DEADLINE = 1.0
"""Seconds that suspects have to answer: a look waits for them, a probe has more."""


class Suspects:
    """Remembers who is suspected. Used by one thread."""

    def __init__(self, root: Path) -> None:
        self._answers = Answers(root)
        self._paths: set[str] = set()

    def notice(self, event: Event) -> None:
        """Hears an event."""
        owner, _, name = event.sys_path.rpartition("/drm/")
        if event.subsystem == "drm" and event.action == "change" and owner and "/" not in name:
            self._paths.add(owner)

    def lacking(self, adapters: Iterable[Adapter]) -> dict[str, str]:
        """Why each of these adapters that are suspected does not work, by its id."""
        asked = {adapter.id: adapter for adapter in adapters if adapter.path in self._paths}
        lacks = self._answers.lacking(asked, DEADLINE) if asked else {}
        self._paths = {asked[name].path for name in lacks}
        return lacks
