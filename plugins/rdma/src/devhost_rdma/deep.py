"""The deep probe in service: which devices it asks, and what it says in the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from devhost.backend import Device, Health

from . import verbs
from .options import VerbsProbe


class DeepProbe:
    """Asks devices through pyverbs, if the options want it and it is there. Used by one thread."""

    def __init__(self, wish: VerbsProbe, log: logging.Logger) -> None:
        self._wish = wish
        self._log = log
        self._available: bool | None = None
        self._notes: dict[str, str] = {}

    def probe(self, devices: Sequence[Device], names: Mapping[str, str]) -> Mapping[str, Health]:
        """What opening each device showed, by id; nothing of those that it showed nothing of.

        Args:
            names: the main RDMA device of each device that is here, by id.
        """
        asked = {names[device.id]: device.id for device in devices if device.id in names}
        if not asked or not self._is_available():
            return {}
        found = {}
        for name, verdict in verbs.probe(list(asked)).items():
            if verdict.note and self._notes.get(name) != verdict.note:
                self._log.info("%s is judged by sysfs alone: %s", name, verdict.note)
            self._notes[name] = verdict.note
            if verdict.health is not None and name in asked:
                found[asked[name]] = verdict.health
        self._notes = {name: note for name, note in self._notes.items() if name in asked}
        return found

    def _is_available(self) -> bool:
        if self._available is None:
            self._available = self._wish is not VerbsProbe.NEVER and verbs.available()
            if self._wish is VerbsProbe.ALWAYS and not self._available:
                self._log.warning(
                    "pyverbs is not installed: ports are judged by sysfs alone, "
                    "and an adapter whose firmware no longer answers counts as healthy"
                )
        return self._available
