"""A backend to derive from, for tests that need no device or no answer, and what a backend lacks."""

from __future__ import annotations

from collections.abc import Iterable

from devhost.backend import AllocateRequest, Backend, Device, Edits, MissingDriver


def missing_drivers(backend: Backend) -> list[MissingDriver]:
    """The hardware that lacks a driver, after a scan."""
    backend.discover()
    return list(backend.missing_drivers())


class Plain(Backend):
    """Finds nothing and gives nothing, unless a test says otherwise."""

    def discover(self) -> Iterable[Device]:
        return ()

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits()
