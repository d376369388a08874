"""What NVIDIA's error numbers (Xid) mean, and which of them say that a GPU is ill."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

APPLICATION_ERRORS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a program can cause on a GPU that is well. It is the list of NVIDIA's own device plugin."""

RECOVERY_ACTION_CHANGED = 154
"""Says that what NVIDIA recommends to do has changed, perhaps to nothing: a reason to look, not a fault."""

WORDS = {
    46: "the GPU stopped processing",
    48: "uncorrectable memory error (double-bit ECC)",
    61: "an internal micro-controller halted",
    62: "an internal micro-controller halted",
    63: "a memory row or page was retired",
    64: "a memory row or page could not be retired",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many correctable memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    110: "security fault",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
    121: "error on the link between chips",
    140: "unrecovered memory error",
    143: "the GPU could not be initialised",
    149: "NVLink error",
}
"""The more frequent ones in words, after NVIDIA's catalogue of Xid errors."""

NEEDS_RESET = frozenset({46, 48, 61, 62, 64, 69, 74, 79, 95, 110, 119, 120, 121, 140, 143, 149})
"""After these a GPU usually works again only when it was reset, which needs it to be open nowhere."""


class XidRule:
    """Which Xids make a GPU Unhealthy.

    Args:
        ignored: those that do not, besides :data:`APPLICATION_ERRORS`; or ``"all"``.
        heeded: those of either that do all the same.
    """

    def __init__(self, ignored: Literal["all"] | Collection[int] = (), heeded: Collection[int] = ()) -> None:
        self._heeded = frozenset(heeded)
        self._ignores_all = ignored == "all"
        extra = () if ignored == "all" else ignored
        self._harmless = APPLICATION_ERRORS | {*extra} | {RECOVERY_ACTION_CHANGED}

    def matters(self, xid: int) -> bool:
        """Whether this one does."""
        return xid in self._heeded or not (self._ignores_all or xid in self._harmless)


def reason(xid: int) -> str:
    """An Xid as a sentence for a user."""
    words = WORDS.get(xid)
    return f"{words} (Xid {xid})" if words else f"the driver reported Xid {xid}"
