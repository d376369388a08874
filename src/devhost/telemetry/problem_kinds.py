"""The kinds of problems, apart from the document: metrics need nothing else of it."""

from __future__ import annotations

from typing import Literal

ProblemKind = Literal[
    "config",
    "kubelet",
    "task",
    "plugin",
    "resource",
    "dra",
    "node",
    "allocation",
    "backend",
    "driver",
    "entry",
    "plan",
    "device",
    "refused",
    "verdict",
    "events",
    "provisioning",
    "labels",
    "observer",
    "pods",
]
"""The kinds of problems, the most important first."""
