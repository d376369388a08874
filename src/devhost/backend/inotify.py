"""Explains which limit made inotify fail, and the command that raises it.

inotify_init(2) fails with EMFILE at the user's limit of instances, and at the process's limit of open files.
inotify_add_watch(2) fails with ENOSPC at the user's limit of watches (inotify(7)).
"""

from __future__ import annotations

import errno
from pathlib import Path

from . import descriptors
from .errors import one_line

_LIMITS = {
    errno.EMFILE: ("max_user_instances", 1024),
    errno.ENOSPC: ("max_user_watches", 524288),
}
"""For each error, the sysctl in ``fs.inotify`` and the value to set."""


def explained(error: OSError) -> str:
    """Why an inotify call failed, in one line, with the fix if it was a limit."""
    if descriptors.is_full() and (lack := descriptors.exhausted(error)):
        return str(lack)
    if error.errno not in _LIMITS:
        return one_line(error)
    name, value = _LIMITS[error.errno]
    limit = _current(name)
    shown = "" if limit is None else f", {limit},"
    raised = max(value, 2 * (limit or 0))
    return (
        f"the limit fs.inotify.{name}{shown} is exhausted "
        f"(run `sysctl -w fs.inotify.{name}={raised}` on the node)"
    )


def _current(name: str) -> int | None:
    try:
        return int(Path("/proc/sys/fs/inotify", name).read_text())
    except (OSError, ValueError):
        return None
