"""What this checkout is: its packages, version, revision, and the time that everything made of it bears."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

WITHOUT_GIT = 315619200
"""1980-01-02 in seconds since 1970: a zip file, and so a wheel, can hold nothing before 1980."""

GIT_LIMIT = 60.0


def version() -> str:
    """The version in ``pyproject.toml``; a test compares it with every other place that names one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def plugins() -> list[Path]:
    """The directories of the plugin packages, by name."""
    return sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))


def epoch() -> int:
    """Seconds since 1970 that results bear, so that two runs give the same bytes.

    ``SOURCE_DATE_EPOCH`` says it (https://reproducible-builds.org/specs/source-date-epoch/), else the commit,
    else, outside git, it is :data:`WITHOUT_GIT`.
    """
    told = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    return int(told) if told and told.isdecimal() else WITHOUT_GIT


def revision() -> str:
    """The commit, with ``-dirty`` where tracked files differ from it; ``unknown`` outside git."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return "unknown"
    return f"{commit}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else commit


def _git(*arguments: str) -> str:
    """What git prints, stripped; nothing where there is no git, no repository, or no answer in time."""
    # a checkout that belongs to somebody else, as in CI, is none to git unless it is said to be safe
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
