"""The results as one Markdown table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Results:
    """Rows in the order of their first results; a later result with the same name replaces an earlier one."""

    def __init__(self) -> None:
        self._rows: dict[str, str] = {}

    def say(self, what: str, found: str) -> None:
        """Adds a row."""
        self._rows[what] = found

    @property
    def rows(self) -> Mapping[str, str]:
        """The results by name."""
        return self._rows

    def table(self) -> list[str]:
        """The lines of the table."""
        rows = [("what", "result"), *self._rows.items()]
        cells = [tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
        widths = [max(len(row[column]) for row in cells) for column in (0, 1)]
        head, *rest = [_line(row, widths) for row in cells]
        return [head, f"|{'|'.join('-' * (width + 2) for width in widths)}|", *rest]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return f"|{'|'.join(f' {cell:<{width}} ' for cell, width in zip(row, widths, strict=True))}|"
