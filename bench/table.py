"""The report: a table, and the machine of the measurements. Pure except for :func:`machine`."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from .measure import Result

HEAD = ("measure", "target", "result", "verdict")


def render(results: Sequence[Result]) -> str:
    """The table in Markdown, its columns aligned for a terminal."""
    rows = [HEAD, *((r.measure.title, r.measure.target or "-", r.text or "-", r.verdict) for r in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [_line(row, widths) for row in rows]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (f" {cell:<{width}} " for cell, width in zip(row, widths, strict=True))
    return f"|{'|'.join(cells)}|"


def machine(load: float) -> str:
    """The machine, the time (UTC), and the load before the measurements (1-minute load average)."""
    try:
        model = cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        model = ""
    return (
        f"{model or platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}, grpcio {version('grpcio')}, "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load before: {load:.2f}"
    )


def cpu_model(cpuinfo: str) -> str:
    """The processor's name from the text of ``/proc/cpuinfo``; empty if it has none (arm64)."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return ""
