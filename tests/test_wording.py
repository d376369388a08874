"""What people read has none of the words of ``tests/wording.yaml``, and short sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
import wording

WORDING = wording.Wording()
FILES = wording.files()
PAGES = [path for path in FILES if path.suffix == ".md"]


def name(path: Path) -> str:
    return path.relative_to(wording.ROOT).as_posix()


def test_a_file_has_none_of_the_words_to_avoid() -> None:
    assert [str(found) for path in FILES for found in WORDING.check(path)] == []


def test_a_page_has_no_sentence_of_more_than_35_words() -> None:
    assert [found for path in PAGES for found in wording.long_sentences(path)] == []


def test_every_exception_is_still_needed() -> None:
    unused = [
        (glob, right)
        for glob, right in WORDING.allowed
        if not any(
            right in line
            for path in FILES
            if wording.fnmatch(name(path), glob)
            for _, line in wording.lines(path)
        )
    ]
    assert unused == []


@pytest.mark.parametrize(
    "text", ["The device is ill.", "it tells why", "Nothing is sold twice", "whatever it is", "all well"]
)
def test_a_word_to_avoid_is_found(text: str) -> None:
    assert list(WORDING.search("docs/page.md", 1, text))


@pytest.mark.parametrize("text", ["still", "well-known", "a hill", "no more than 5", "`tell`", "outstanding"])
def test_a_word_that_only_contains_one_is_not(text: str) -> None:
    assert list(WORDING.search("docs/page.md", 1, text)) == []
