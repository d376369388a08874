"""A type checker sees the fields of options as what they are annotated with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kit.command import completed

ROOT = Path(__file__).parents[2]

OPTIONS = """
from dataclasses import dataclass

from devhost.backend import option


@dataclass(frozen=True)
class Options:
    count: int = option(3, "how many")
    names: tuple[str, ...] = option((), "which")
    limits: dict[str, int] = option({}, "how much of each")
    place: str | None = option(None, "where")
    needed: int = option(meaning="has no default")
    wrong: int = option("3", "how many")  # type: ignore[assignment]


total: int = Options(needed=1).count + 1
joined: str = ",".join(Options(needed=1).names)
text: str = Options(needed=1).count  # type: ignore[assignment]
"""


@pytest.mark.slow
def test_mypy_sees_an_option_as_a_field_of_its_type(tmp_path: Path) -> None:
    """An ignored error that is none would be an error itself."""
    pytest.importorskip("mypy")
    file = tmp_path / "options.py"
    file.write_text(OPTIONS)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir")
    done = completed(*mypy, tmp_path / "cache", file, cwd=ROOT)
    assert done.stdout == "Success: no issues found in 1 source file\n"
