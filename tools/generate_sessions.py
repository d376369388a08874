"""Updates the output of devhost in the pages that quote it: docs/tutorial.md and docs/troubleshooting.md.

    python tools/generate_sessions.py

``<!-- play: NAME -->`` before a block of a page refers to a point in ``tools/plays.py``: the commands in a
``console`` block are run and followed by their output, and a ``text`` block shows the terminal of the
kubelet. ``<!-- file: NAME -->`` before a block makes it the content of a file. A block that differs from the
new one only in times and random names is not changed.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from plays import AT_HOME, PLAYS, Play
from stage import Stage

ROOT = Path(__file__).resolve().parents[1]

FILE = re.compile(r"(?ms)^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$")
PLAYED = re.compile(r"(?ms)^(<!-- play: (\S+) -->\n```(\w+)\n)(.*?)^```$")

_CHANGING = (
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "TIME"),
    (re.compile(r"\bdh-[0-9a-f]{8}-[0-9a-f]{6}\b"), "SOCKET"),
    (re.compile(r"\b\d+(\.\d+)?(us|ms|s|m)\b"), "AGE"),
    (re.compile(r"(?m), removed SOCKET\.sock$"), ""),  # if devhost was faster, there is none to remove
    (re.compile(r" +"), " "),
)


def form(text: str) -> str:
    """A text without what differs between runs: times, names of sockets, the width of columns."""
    for pattern, word in _CHANGING:
        text = pattern.sub(word, text)
    return text


def blocks(page: str) -> dict[str, str]:
    """The blocks of a page that plays update, by name."""
    return {found[2]: found[4] for found in PLAYED.finditer(page)}


def printed(name: str, play: Play) -> Iterator[tuple[str, str]]:
    """Runs a play for the page ``name``; yields the name and the new text of each of its blocks."""
    page = (ROOT / name).read_text(encoding="utf-8")
    kinds = {found[2]: found[3] for found in PLAYED.finditer(page)}
    with tempfile.TemporaryDirectory(prefix="devhost-") as directory:
        place = Path(directory)
        real = {"{config}": f"{place}/etc/devhost.yaml", "{kubelet}": f"{place}/node/device-plugins"}
        shown = [(real[which], word) for which, word in AT_HOME.get(name, ())]
        stage = Stage(place, shown, at_home=name in AT_HOME)
        stage.files = {found[1]: found[2] for found in FILE.finditer(page)}
        try:
            for point in play(stage):
                text = stage.shown(stage.printed()) if kinds[point] == "text" else ""
                if kinds[point] == "console":
                    commands = re.findall(r"(?m)^\$ (.+)$", blocks(page)[point])
                    text = "".join(f"$ {command}\n{stage.output(command)}" for command in commands)
                yield point, text
        finally:
            stage.close()


def renewed(page: str, new: Mapping[str, str]) -> str:
    """A page's text with the new text of blocks that changed."""

    def block(found: re.Match[str]) -> str:
        stale = form(new[found[2]]) != form(found[4])
        return f"{found[1]}{new[found[2]]}```" if stale else found[0]

    return PLAYED.sub(block, page)


def main() -> None:
    """Writes each page with changed blocks."""
    for name, plays in PLAYS.items():
        file = ROOT / name
        page = file.read_text(encoding="utf-8")
        new = {point: text for play in plays for point, text in printed(name, play)}
        if missing := sorted(blocks(page).keys() ^ new.keys()):
            sys.exit(f"{name}: only in the plays or only in the page: {', '.join(missing)}")
        file.write_text(renewed(page, new), encoding="utf-8")


if __name__ == "__main__":
    main()
