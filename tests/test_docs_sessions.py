"""The pages that quote devhost quote what it says: each session is played again, on a node of files."""

from __future__ import annotations

from pathlib import Path

import generate_sessions as sessions
import pytest
from plays import PLAYS

ROOT = Path(__file__).resolve().parents[1]


def _page(name: str) -> dict[str, str]:
    return dict(sessions.blocks((ROOT / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("page", "play"),
    [
        pytest.param(page, play, id=f"{Path(page).stem}-{play.__name__}")
        for page, plays in PLAYS.items()
        for play in plays
    ],
)
def test_a_page_shows_the_output_of_devhost(page: str, play: object) -> None:
    shown = _page(page)
    for point, text in sessions.printed(page, play):
        assert sessions.form(shown[point]) == sessions.form(text), f"{point}: run `make docs`"


def test_every_session_of_a_page_is_played() -> None:
    text = "".join((ROOT / "tools" / "plays.py").read_text(encoding="utf-8").split())
    points = [point for page in PLAYS for point in _page(page)]
    assert [point for point in points if f'yield"{point}"' not in text] == []


def test_what_changes_each_time_makes_no_difference() -> None:
    one = "07:24:32.272  list  dh-d91c4086-a03338.sock  up 5s   0.8ms"
    other = "17:04:01.002  list  dh-00000000-ffffff.sock up 12s 11.4ms"
    assert sessions.form(one) == sessions.form(other)
    assert sessions.form("1 healthy") != sessions.form("2 healthy")


def test_a_page_is_rewritten_only_if_the_output_changed() -> None:
    page = (
        "<!-- play: a -->\n```text\n1.2ms old\n```\n\n<!-- play: b -->\n```console\n$ devhost status\n```\n"
    )
    assert sessions.blocks(page) == {"a": "1.2ms old\n", "b": "$ devhost status\n"}
    assert sessions.renewed(page, {"a": "3.4ms old\n", "b": "$ devhost status\nnew\n"}) == page.replace(
        "status\n", "status\nnew\n"
    )
