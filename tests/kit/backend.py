"""A backend to derive from, for tests that need no device or no answer."""

from __future__ import annotations

from collections.abc import Iterable

from devhost.backend import AllocateRequest, Backend, Device, Edits


class Plain(Backend):
    """Finds nothing and gives nothing, unless a test says otherwise."""

    def discover(self) -> Iterable[Device]:
        return ()

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits()
