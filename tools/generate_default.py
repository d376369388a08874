"""Copies config/devhost.yaml into the Helm chart and the kustomize base.

    python tools/generate_default.py

Helm and Kustomize cannot read files outside their directory. ``tests/default`` fails if a copy differs.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "config" / "devhost.yaml"
VALUES = ROOT / "deploy" / "helm" / "devhost" / "values.yaml"
BASE = ROOT / "deploy" / "kustomize" / "base" / "devhost.yaml"

MARKED = re.compile(r"(?ms)(^config: # the text of config/devhost\.yaml\n).*?(^# its end$)")


def renewed(values: str, source: str) -> str:
    """The chart's values with the configuration as default, including comments.

    Raises:
        ValueError: the values have no markers.
    """
    if not MARKED.search(values):
        raise ValueError(f"{VALUES} has no markers for the configuration")
    return MARKED.sub(lambda found: found[1] + indent(source, "  ") + found[2], values)


if __name__ == "__main__":
    text = SOURCE.read_text(encoding="utf-8")
    BASE.write_text(text, encoding="utf-8")
    VALUES.write_text(renewed(VALUES.read_text(encoding="utf-8"), text), encoding="utf-8")
