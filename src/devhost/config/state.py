"""Where devhost keeps its state for the machine of a root, which may be another tree than this machine."""

from __future__ import annotations

import os
from pathlib import Path

from devhost.discovery.unserved import resolved

from .last_good import STATE_DIRECTORY, state_dir

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
    """The directory for the state of a machine by default; ``None`` if the user has no home."""
    tree = tree_of(root)
    return state_dir(tree and below(tree, STATE_DIRECTORY))
