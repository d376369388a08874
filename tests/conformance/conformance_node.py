"""Shared by the conformance tests: two resources of the rig."""

from __future__ import annotations

TOY, OTHER = "example.com/toy", "example.com/other"
TOY_LINE, OTHER_LINE = "name: example.com/toy, backend: toy", "name: example.com/other, backend: other"

WAIT = 60
"""Seconds for what takes a fraction of one, on a machine that is busy."""
