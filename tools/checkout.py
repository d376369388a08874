"""Facts about this checkout: packages, version, revision, and the timestamp of everything built from it."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

WITHOUT_GIT = 315619200
"""1980-01-02 in seconds since 1970: zip files, and therefore wheels, have no earlier timestamps."""

GIT_LIMIT = 60.0


def version() -> str:
    """The version in ``pyproject.toml``; a test compares it with every other place that has one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def plugins() -> list[Path]:
    """The directories of the plugin packages, by name."""
    return sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))


def packages() -> list[Path]:
    """The directories of all packages beside the host, by name."""
    others = (file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
    return sorted((*plugins(), *others), key=lambda directory: directory.name)


def epoch() -> int:
    """The timestamp of results in seconds since 1970, so that two builds are identical.

    It is ``SOURCE_DATE_EPOCH`` (https://reproducible-builds.org/specs/source-date-epoch/), else the time of
    the commit, else, outside git, :data:`WITHOUT_GIT`.
    """
    told = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    return int(told) if told and told.isdecimal() else WITHOUT_GIT


def revision() -> str:
    """The commit, with ``-dirty`` if tracked files differ from it; ``unknown`` outside git."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return "unknown"
    return f"{commit}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else commit


def _git(*arguments: str) -> str:
    """The output of git, stripped; empty without git, without a repository, or without an answer in time."""
    # git ignores a checkout of another user, as in CI, unless it is declared safe
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
