"""The directory of ``--root``: whether it can be used as ``/``, and where state for its machine is kept."""

from __future__ import annotations

import os
from pathlib import Path

from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.backend.files import missing_host_reason
from devhost.discovery.unserved import resolved
from devhost.runtime.log import printable

OVERRIDE = "DEVHOST_STATE_DIR"

STATE_DIRECTORY = Path("/var/lib/devhost")
"""Of root."""

ROOT_HINT = "give the directory to use as /, or omit --root"


def check_root(directory: Path) -> None:
    """Checks whether ``--root`` can be used as ``/``.

    Raises ``UsageError`` if there is no such directory, or the right one is above or below it, and
    ``EnvironmentFailure`` if it cannot be read.
    """
    try:
        os.scandir(directory).close()
    except FileNotFoundError:
        raise UsageError(f"--root {directory} does not exist", ROOT_HINT) from None
    except NotADirectoryError:
        raise UsageError(f"--root {directory} is not a directory", ROOT_HINT) from None
    except OSError as error:
        raise EnvironmentFailure(
            f"--root {directory} cannot be read: {error.strerror or error}", "check its mode and owner"
        ) from None
    if missing_host_reason(directory) and (inner := _roots_in(directory)):
        paths = " or ".join(f"--root {printable(str(path))}" for path in inner[:3])
        raise UsageError(
            f"--root {directory} is one level too high: it has no sys directory", f"give {paths}"
        )
    real = Path(os.path.realpath(directory))
    if real.name in _TOP and not (real / "sys").is_dir() and _is_root(real.parent):
        fault = f"--root {directory} is one level too low: it is the {real.name} directory of a root"
        raise UsageError(fault, f"give --root {printable(str(real.parent))}")


_TOP = ("dev", "etc", "proc", "run", "sys", "var")
"""Directories directly below a root."""


def _roots_in(directory: Path) -> list[Path]:
    """The directories directly below a directory that look like a root."""
    try:
        return sorted(path for path in directory.iterdir() if _is_root(path))
    except OSError:
        return []


def _is_root(directory: Path) -> bool:
    """Whether a directory has the part of ``/sys`` in which the kernel shows devices."""
    return any(os.access(directory / "sys" / one, os.F_OK) for one in ("bus", "class", "dev", "devices"))


BOOT_ID = Path("proc/sys/kernel/random/boot_id")
"""Below a root: differs after each boot, and is the same in every container of a machine (random(4))."""


def is_this_machine(root: Path) -> bool:
    """Whether a root is that of the running machine, perhaps mounted in a container, and no other tree.

    Then the kernel's sysfs or procfs is mounted in it.
    """
    if Path(os.path.realpath(root)) == Path("/") or os.path.ismount(root / "sys"):
        return True
    try:
        return (root / BOOT_ID).read_text() == (Path("/") / BOOT_ID).read_text()
    except OSError:
        return False


def below(tree: Path, path: Path) -> Path:
    """An absolute path of the machine whose root is ``tree``, whose symbolic links do not lead out of it."""
    return tree / resolved(tree, str(path)).lstrip("/")


def tree_of(root: Path) -> Path | None:
    """A root that is another tree than this machine; ``None`` for this machine."""
    return None if is_this_machine(root) else root.absolute()


def state_directory(root: Path) -> Path | None:
    """The directory for the state of a machine by default, which need not exist.

    ``$DEVHOST_STATE_DIR`` if set; in another tree ``/var/lib/devhost`` below it, which is also that of root;
    else ``devhost`` in ``$XDG_STATE_HOME``, or in ``~/.local/state`` without that (XDG Base Directory
    Specification 0.8). ``None`` if the user has no home.
    """
    if chosen := os.environ.get(OVERRIDE):
        return Path(chosen)
    if tree := tree_of(root):
        return below(tree, STATE_DIRECTORY)
    if os.geteuid() == 0:
        return STATE_DIRECTORY
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if state.is_absolute():
        return state / "devhost"
    try:
        return Path.home() / ".local" / "state" / "devhost"
    except RuntimeError:
        return None
