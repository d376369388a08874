"""Aligned plain-text tables for the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence

from devhost.backend import errors
from devhost.runtime.log import printable

_GAP = "  "

CELL = 2000
"""Most characters of a cell: a value may be one that hardware reports."""

VALUE = 200
"""Most characters of an attribute's value among others in one cell. JSON has the whole value."""


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None) -> str:
    """Headers and rows as aligned columns, without a final line end; only the headers if there are no rows.

    Columns that contain only numbers are aligned right; ``None`` and ``""`` appear as ``-``, and the missing
    last cells of a shorter row are blank. Cells are cut at :data:`CELL`, and lines at ``width`` columns. By
    default that is the terminal's width; without a terminal they are not cut.
    """
    source = [tuple(row) for row in rows]
    cells = [(*map(_text, row), *[""] * (len(headers) - len(row))) for row in source]
    columns = range(len(headers))
    widths = [max([len(headers[i]), *(len(row[i]) for row in cells)]) for i in columns]
    numeric = [
        bool(source) and all(i < len(row) and isinstance(row[i], int | float) for row in source)
        for i in columns
    ]
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    lines = []
    for row in [tuple(headers), *cells]:
        padded = [row[i].rjust(widths[i]) if numeric[i] else row[i].ljust(widths[i]) for i in columns]
        lines.append(cut(_GAP.join(padded).rstrip(), width))
    return "\n".join(lines)


def cut(line: str, width: int | None) -> str:
    """``line``, with an ellipsis in its last column if it is longer than ``width``."""
    return line if width is None else errors.cut(line, width)


def _text(value: object) -> str:
    return "-" if value is None or value == "" else cut(printable(str(value)), CELL)
