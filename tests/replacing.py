"""Files that a program under test reads while a test changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace(file: Path, text: str) -> None:
    """Gives a file another text in one step: no reader finds it empty or half written."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)
