"""Draws ``docs/images/demo.svg``: the terminal after ``make run`` on this machine.

    python tools/generate_picture.py

It contains the output of ``devhost demo`` as text. Long lines are wrapped, between two words if possible.
``make docs`` does not update the picture, because it differs between machines.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "demo.svg"

COLUMNS = 98
PROMPT = "$ make run"
WIDE, HIGH, MARGIN, BAR = 8.0, 19, 20, 34
"""Width of a character, height of a line, margin, and height of the title bar, in pixels."""

STYLE = """\
text { font: 13.2px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #e6edf3; }
text { white-space: pre; }
.prompt { fill: #7ee787; } .head { fill: #79c0ff; } .soft { fill: #9198a1; } .news { fill: #ffa657; }"""


def demo() -> list[str]:
    """The output of the demo on this machine, with the configuration's path relative to the repository."""
    done = subprocess.run(
        [sys.executable, "-m", "devhost", "demo"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.replace(f"{ROOT}/", "").rstrip("\n").splitlines()


def draw(lines: list[str]) -> str:
    """An SVG of a terminal with these lines below the prompt."""
    shown = [(PROMPT, "prompt"), *((line, _class(line)) for line in ["", *lines])]
    rows = [
        (part, f"{kind} more".strip() if number else kind)
        for line, kind in shown
        for number, part in enumerate(_folded(line))
    ]
    width, height = round(COLUMNS * WIDE + 2 * MARGIN), BAR + len(rows) * HIGH + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="A terminal: what devhost demo prints">',
        f"<style>\n{STYLE}\n</style>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#0d1117" stroke="#3d444d"/>',
        '<circle cx="20" cy="18" r="5.5" fill="#ff5f57"/><circle cx="38" cy="18" r="5.5" fill="#febc2e"/>'
        '<circle cx="56" cy="18" r="5.5" fill="#28c840"/>',
    ]
    for number, (part, kind) in enumerate(rows, 1):
        if part:
            name = f' class="{kind}"' if kind else ""
            at = f'x="{MARGIN}" y="{BAR + number * HIGH - 5}"'
            parts.append(f'<text {at}{name} xml:space="preserve">{html.escape(part)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def text(picture: str) -> list[str]:
    """The lines of a picture below its prompt, without empty ones."""
    lines: list[str] = []
    for kind, part in re.findall(r'<text [^>]*?(?:class="([\w ]*)" )?xml:space[^>]*>(.*?)</text>', picture):
        if "more" in kind.split():
            lines[-1] += html.unescape(part)
        else:
            lines.append(html.unescape(part))
    return lines[1:]


def _folded(line: str) -> list[str]:
    parts = []
    while len(line) > COLUMNS:
        end = line.rfind(" ", 0, COLUMNS) + 1 or COLUMNS
        parts.append(line[:end])
        line = line[end:]
    return [*parts, line]


def _class(line: str) -> str:
    if line.startswith("RESOURCE "):
        return "head"
    if line.startswith("Not on this machine"):
        return "soft"
    return "news" if "plugged: " in line else ""


if __name__ == "__main__":
    PICTURE.write_text(draw(demo()), encoding="utf-8")
