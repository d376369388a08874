from __future__ import annotations

import os
import sys

import pytest

from devhost.cli.options import CELL, table


def test_columns_are_aligned_and_numbers_to_the_right() -> None:
    assert table(("NAME", "N", "WHY"), [("a", 5, "x"), ("long-name", 100, "")]).splitlines() == [
        "NAME         N  WHY",
        "a            5  x",
        "long-name  100  -",
    ]


def test_a_cell_has_a_bound_with_a_visible_end() -> None:
    header, row = table(("SERIAL", "MODEL"), [("s" * 10_000, "m")]).splitlines()
    assert row == f"{'s' * (CELL - 1)}…  m"
    assert len(header) == CELL + 2 + len("MODEL")


def test_without_rows_only_the_headers_are_shown() -> None:
    assert table(("NAME", "WHY"), []) == "NAME  WHY"


def test_missing_values_appear_as_a_dash() -> None:
    assert table(("A", "B"), [(None, "")]).splitlines()[1] == "-  -"


def test_a_value_cannot_break_the_row_or_control_the_terminal() -> None:
    assert table(("A",), [("x\n\x1b[31my",)]).splitlines()[1] == r"x\n\x1b[31my"


def test_lines_are_cut_only_at_a_given_width() -> None:
    row = ("a" * 50, "b" * 50)
    assert max(map(len, table(("A", "B"), [row], width=20).splitlines())) == 20
    assert table(("A", "B"), [row], width=20).splitlines()[1].endswith("a…")
    assert table(("A", "B"), [row]).splitlines()[1] == "  ".join(row)


def test_lines_are_cut_at_the_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((30, 24)))
    assert {len(line) for line in table(("A" * 40,), [("b" * 40,)]).splitlines()} == {30}


def test_ten_thousand_rows_can_be_shown() -> None:
    assert len(table(("A", "B"), ((i, str(i)) for i in range(10_000))).splitlines()) == 10_001


def test_missing_last_cells_are_blank() -> None:
    assert table(("A", "B", "WHY"), [("1", ""), ("2", "", "late")]) == "A  B  WHY\n1  -\n2  -  late"
