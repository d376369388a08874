"""Writes the exact versions and hashes for the image and the releases.

    python tools/lock.py

``deploy/requirements.txt`` has the run-time requirements of the host and of the packages in plugins/,
including the NVML binding; ``deploy/requirements-build.txt`` has the build backend. Both have the newest
versions in the index for the Python of the image and each of its platforms.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = "3.13"
"""The Python of Debian 13, on which the image is based."""

MACHINES = ("x86_64", "aarch64")
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
EXTRAS = ("nvidia",)
"""Extras of plugin packages in the image; pyverbs comes from Debian."""

LIMIT = 300.0


def wanted() -> list[str]:
    """Requirements of the host and of the plugin packages, except each other."""
    found: set[str] = set()
    for file in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        optional = project.get("optional-dependencies", {})
        found.update(project["dependencies"], *(optional.get(extra, []) for extra in EXTRAS))
    return sorted(one for one in found if not one.startswith("devhost"))


def backend() -> list[str]:
    """Requirements of the build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return list(project["build-system"]["requires"])


def resolved(requirements: Iterable[str]) -> dict[tuple[str, str], set[str]]:
    """Names and versions of all required packages, with the hashes of the files for each platform."""
    found: dict[tuple[str, str], set[str]] = {}
    for machine in MACHINES:
        for item in _report(requirements, machine):
            name = item["metadata"]["name"].lower().replace("_", "-")
            hashes = found.setdefault((name, item["metadata"]["version"]), set())
            hashes.add(item["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


def _report(requirements: Iterable[str], machine: str) -> list[dict[str, Any]]:
    platforms = [f"--platform={platform}_{machine}" for platform in PLATFORMS]
    command = [
        *(sys.executable, "-m", "pip", "--quiet", "install", "--dry-run", "--ignore-installed", "--report=-"),
        *("--only-binary=:all:", f"--python-version={PYTHON}", "--target=unused", *platforms, *requirements),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT, check=False)
    if done.returncode:
        sys.exit(f"lock: pip found no suitable packages for {machine}; see its message above")
    return list(json.loads(done.stdout)["install"])


def text(found: dict[tuple[str, str], set[str]]) -> str:
    """Lines for ``pip install --require-hashes``."""
    return "".join(
        f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{one}" for one in sorted(hashes)) + "\n"
        for (name, version), hashes in sorted(found.items())
    )


def main() -> None:
    """Writes both files."""
    for name, requirements in (("requirements.txt", wanted()), ("requirements-build.txt", backend())):
        found = resolved(requirements)
        head = f"# made by tools/lock.py for Python {PYTHON} on {' and '.join(MACHINES)}\n"
        (ROOT / "deploy" / name).write_text(head + text(found), encoding="utf-8")
        print(f"deploy/{name}: {len(found)} packages")


if __name__ == "__main__":
    main()
