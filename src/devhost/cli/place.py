"""Where the verdicts of a machine are, and what they contain."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from devhost.backend import trusted
from devhost.backend.errors import EnvironmentFailure
from devhost.config.root_directory import OVERRIDE, STATE_DIRECTORY, check_root, state_directory, tree_of
from devhost.discovery import verdicts as files
from devhost.discovery.scanner import Scanner
from devhost.discovery.verdict_follower import DIRECTORY


def directory(root: Path, state_dir: Path | None, of_root: Path = STATE_DIRECTORY) -> Path:
    """The directory of verdicts.

    Raises ``EnvironmentFailure`` if there is none; or others can write to it, so that devhost refuses it; or
    it is one that the devhost of root does not read.
    """
    check_root(root)
    state = state_dir or state_directory(root)
    if state is None:
        raise EnvironmentFailure("this user has no home directory", "name a directory with --state-dir")
    of_user = not (state_dir or os.environ.get(OVERRIDE) or tree_of(root))
    if os.geteuid() and of_user and of_root.exists():
        raise EnvironmentFailure(
            f"the state of the devhost of root is in {of_root}",
            f"run the command as root, or for a devhost of this user add --state-dir {state}",
        )
    place = state / DIRECTORY
    try:
        trusted.names(place)
    except trusted.Untrusted as error:
        if Path(error.path).lstat().st_uid in (0, os.geteuid()):
            raise
        raise EnvironmentFailure(error.message, "run the command as the user of devhost") from None
    except OSError:
        pass  # it does not exist, or the command fails with the reason
    return place


def read(place: Path, root: Path) -> files.Reading:
    """What the directory has now. Raises ``EnvironmentFailure``."""
    try:
        return files.settled(place, root)
    except OSError as error:
        raise denied("read", place, error) from None


def denied(what: str, place: Path, error: OSError) -> EnvironmentFailure:
    hint = "run the command as root, or as the user of devhost" if os.geteuid() else ""
    return EnvironmentFailure(f"cannot {what} {place}: {error.strerror or error}", hint)


def apply(scanners: Mapping[str, Scanner], root: Path) -> None:
    """Applies the verdicts of a machine to its devices, if this user can read them."""
    try:
        found = read(directory(root, None), root)
    except EnvironmentFailure:
        return
    if found.verdicts:
        from devhost.discovery.verdicts import matched, overrule

        now = time.time()
        in_force = [one for one in found.verdicts if one.holds(now)]
        overrule(scanners, matched(scanners, in_force, found.ends))
