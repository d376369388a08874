from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

import pytest

from devhost.runtime.log import printable
from devhost.telemetry.page.markup import escaped

NOT_PRINTED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@cache
def every() -> list[str]:
    return [chr(code) for code in range(sys.maxunicode + 1)]


def test_every_character_that_does_not_print_is_escaped() -> None:
    through = [one for one in every() if one in printable(one)]
    assert {unicodedata.category(one) for one in through}.isdisjoint(NOT_PRINTED)
    assert [one for one in through if unicodedata.category(one) == "Zs"] == [" "]


def test_characters_that_change_the_text_direction_are_escaped() -> None:
    marks = [one for one in every() if unicodedata.bidirectional(one) in BIDI_MARKS]
    marks += ["\u200e", "\u200f", "\u061c", *map(chr, range(0x206A, 0x2070))]
    assert len(marks) > 15
    for mark in marks:
        assert re.fullmatch(r"a\\u[0-9a-f]{4}b", printable(f"a{mark}b"))


BIDI_MARKS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@pytest.mark.parametrize(
    "text",
    ["", "Tesla V100-SXM2 (rev a1)", "naïve café", "Gerät №5, 10 µm", "設備", "سریال", "ก็", "✓ 🙂", "a\\nb"],
)
def test_words_of_any_script_are_unchanged(text: str) -> None:
    assert printable(text) == text


def test_two_names_that_differ_in_a_joiner_can_be_distinguished() -> None:
    assert printable("می\u200cبیند") == r"می\u200cبیند"
    assert printable("👩\u200d🔧") == r"👩\u200d🔧"
    assert printable("soft\xadware") == r"soft\xadware"


def test_every_byte_that_is_not_utf8_is_escaped() -> None:
    text = bytes(range(256)).decode("utf-8", "surrogateescape")
    assert printable(text).encode() and printable(text).isprintable()


def test_the_page_escapes_text_like_the_log() -> None:
    assert escaped("<a\u061c>\U000e0041") == "&lt;a\\u061c&gt;\\U000e0041"
