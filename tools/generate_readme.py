"""Copies the first table of docs/comparison.md into the README, between two markers.

    python tools/generate_readme.py

``tests/test_readme.py`` fails if the two differ.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
COMPARISON = ROOT / "docs" / "comparison.md"

MARKED = re.compile(
    r"(?ms)(^<!-- the first table of docs/comparison\.md -->\n).*?(^<!-- its end -->$)",
)


def renewed(readme: str, comparison: str) -> str:
    """The README with the table of the other page.

    Raises:
        ValueError: that page has no table, or the README no markers.
    """
    table = re.search(r"(?m)(?:^\|.*\n)+", comparison)
    if table is None or not MARKED.search(readme):
        raise ValueError("docs/comparison.md has no table, or README.md has no markers for it")
    return MARKED.sub(lambda found: f"{found[1]}{table[0]}{found[2]}", readme)


if __name__ == "__main__":
    readme, comparison = (file.read_text(encoding="utf-8") for file in (README, COMPARISON))
    README.write_text(renewed(readme, comparison), encoding="utf-8")
