"""Lints the chart with each of its values files, and packs it.

python -m packing DIRECTORY
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import programs
from rendering import CHART, PROFILES


def main(directory: str) -> None:
    try:
        helm = programs.find("helm")
    except programs.Missing as error:
        sys.exit(f"chart: {error}")
    for values in (CHART / "values.yaml", *PROFILES.values()):
        _run(helm, "lint", "--strict", "--quiet", CHART, "--values", values)
    Path(directory).mkdir(parents=True, exist_ok=True)
    _run(helm, "package", CHART, "--destination", directory)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, timeout=240, check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
