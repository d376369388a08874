"""Writes what an installation of the project would leave beside its code: names, versions and entry points.

    python3 distributions.py PROJECT TARGET

With TARGET on the path ``importlib.metadata`` finds the host and every package of ``plugins/`` and
``packages/``, as it finds an editable installation. Runs in the guest, with the standard library only.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any


def write(project: Path, target: Path) -> None:
    """One directory ``NAME-VERSION.dist-info`` for each ``pyproject.toml``."""
    for file in (project / "pyproject.toml", *sorted(project.glob("p*/*/pyproject.toml"))):
        about: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        name, version = about["name"], about["version"]
        place = target / f"{name.replace('-', '_')}-{version}.dist-info"
        place.mkdir(parents=True)
        requires = "".join(f"Requires-Dist: {one}\n" for one in about.get("dependencies", []))
        (place / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        )
        groups = {"console_scripts": about.get("scripts", {}), **about.get("entry-points", {})}
        lines = []
        for group, points in groups.items():
            lines += [f"[{group}]", *(f"{point} = {where}" for point, where in points.items()), ""]
        (place / "entry_points.txt").write_text("\n".join(lines))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
