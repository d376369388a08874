"""File descriptors: whether this process may open as many as it needs, and the error if it may not."""

from __future__ import annotations

import errno
import os
import resource

from .errors import EnvironmentFailure

COMMAND = 16
"""Descriptors that a short-lived command needs."""

SERVING = 64
"""Descriptors that the daemon needs without any resource. gRPC alone takes about 12, and aborts the process
if it gets none."""

RESOURCE = 4
"""Descriptors for each resource: its socket, the kubelet's connection, and two while it registers."""

SUGGESTED = 65536
"""The limit to set; that of the systemd unit."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


def provide(least: int, wanted: int = 0) -> None:
    """Makes sure that this process can open more files, and raises its soft limit if necessary.

    Args:
        least: how many more it must be able to open.
        wanted: how many more it would use if it could.

    Raises:
        EnvironmentFailure: the hard limit does not allow ``least``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _used(soft)
    enough = used + max(least, wanted)
    if resource.RLIM_INFINITY in (soft, hard) or soft >= enough:
        return
    if hard > soft:
        soft = min(hard, enough)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < used + least:
        raise EnvironmentFailure(
            f"the limit of open files, RLIMIT_NOFILE, is {soft}, and devhost needs {used + least}", _fix()
        )


def exhausted(error: BaseException) -> EnvironmentFailure | None:
    """The error for a call that failed because no descriptor was left; ``None`` for any other failure."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(exhausted, error.exceptions)), None)
    if not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
        return None
    if error.errno == errno.ENFILE:
        return EnvironmentFailure("the node has no file descriptors left", "raise fs.file-max with sysctl")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return EnvironmentFailure(f"too many open files: the limit, RLIMIT_NOFILE, is {soft}", _fix())


def is_full() -> bool:
    """Whether this process cannot open another file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft != resource.RLIM_INFINITY and _used(soft) >= soft


def _fix() -> str:
    return f"run `ulimit -n {SUGGESTED}` before, or set LimitNOFILE={SUGGESTED} in the systemd unit"


def _used(limit: int) -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # one was the directory itself
    except OSError as error:
        return limit if error.errno in _EXHAUSTED else 3
