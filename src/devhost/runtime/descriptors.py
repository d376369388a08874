"""File descriptors: whether this process may open as many as it needs."""

from __future__ import annotations

import os
import resource

from devhost.backend.errors import MORE_OPEN_FILES, EnvironmentFailure, exhausted

COMMAND = 16
"""Descriptors that a short-lived command needs."""

SERVING = 64
"""Descriptors that the daemon needs without any resource. gRPC alone takes about 12, and aborts the process
if it gets none."""

RESOURCE = 4
"""Descriptors for each resource: its socket, the kubelet's connection, and two while it registers."""

DRIVER = 12
"""Descriptors for each DRA driver but the first: its sockets, and connections of the kubelet and to the API
server."""


def provide(least: int, wanted: int = 0) -> None:
    """Makes sure that this process can open more files, and raises its soft limit if necessary.

    It must be able to open ``least`` more, and would use ``wanted`` more if it could. Raises
    ``EnvironmentFailure`` if the hard limit does not allow ``least``.
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
            f"the limit of open files, RLIMIT_NOFILE, is {soft}, and devhost needs {used + least}",
            MORE_OPEN_FILES,
        )


def _used(limit: int) -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # one was the directory itself
    except OSError as error:
        return limit if exhausted(error) else 3
