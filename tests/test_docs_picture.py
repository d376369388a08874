"""The picture of the demo in the README shows what the demo prints; only the machine may be another."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import generate_picture as picture
import pytest

ROOT = Path(__file__).resolve().parents[1]
PICTURES = [*(ROOT / "docs" / "images").glob("*.svg")]

FORMS = {
    "what is shown": r"A kubelet \(simulated, 1\.\d+\) and devhost with \S+/devhost\.yaml:",
    "headers": r"RESOURCE +HEALTHY +NUMA +DEVICES",
    "a resource": r"[a-z.]+/\S+ +\d+/\d+ +[\d,-]+ +\S.*",
    "what is missing": r"Not on this machine: \S.*",
    "a pod": r"A pod with these limits:",
    "a limit": r"  [a-z.]+/\S+: 1",
    "its container": r"gets in its container:",
    "an edit": r"  (device|mount|env|annotation|cdi) +\S.*",
    "no news": r"Hot-plug not shown: \S.*|\w+ was plugged and unplugged, but .*",
    "late news": r"\w+ (un)?plugged: the kubelet received no new list",
    "news": r"\w+ (un)?plugged: the kubelet received the new list after [\d.]+ ms",
}
NEEDED = {"what is shown", "headers", "a resource", "a pod", "a limit", "its container", "an edit"}


def _forms(lines: list[str]) -> set[str]:
    """The form of each line; one that has none fails the test."""
    found = set()
    for line in filter(None, lines):
        forms = [name for name, pattern in FORMS.items() if re.fullmatch(pattern, line)]
        assert forms, f"a line of no known form: {line!r}"
        found.add(forms[0])
    return found


def test_the_picture_shows_what_the_demo_prints() -> None:
    shown = picture.text(picture.PICTURE.read_text(encoding="utf-8"))
    assert _forms(shown) >= NEEDED
    printed = picture.demo()
    if not any(re.fullmatch(FORMS["a resource"], line) for line in printed):
        pytest.skip("this machine has nothing that the default configuration offers")
    assert _forms(printed) >= NEEDED


def test_a_picture_keeps_the_text_it_is_made_of() -> None:
    lines = ["one <two> & three", "x" * 250, "  device  /dev/fuse (rw)"]
    assert picture.text(picture.draw(lines)) == lines


def test_a_picture_is_whole_needs_nothing_else_and_has_words_for_who_cannot_see_it() -> None:
    for file in PICTURES:
        root = ET.parse(file).getroot()
        assert root.get("role") == "img", file
        assert root.get("aria-label") or root.find("{http://www.w3.org/2000/svg}title") is not None, file
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"(href|src)=|url\((?!#)|@import|<script", text), file
