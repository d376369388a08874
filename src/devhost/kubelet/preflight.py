"""Checks at the start whether devhost can use the kubelet's directory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from devhost.backend.errors import EnvironmentFailure
from devhost.runtime.sockets import too_long

from .server import socket_name

HINT = "run devhost as root, with the directory mounted writable, or choose a writable --kubelet-dir"


def check_directory(directory: Path) -> None:
    """Checks that devhost can work in the kubelet's directory. A missing directory is no error.

    Raises ``EnvironmentFailure`` if it is not a directory, or is not writable.
    """
    try:
        found = directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        why = error.strerror or str(error)
        raise EnvironmentFailure(f"cannot reach the kubelet's directory {directory}: {why}", HINT) from None
    if not stat.S_ISDIR(found.st_mode):
        raise EnvironmentFailure(f"{directory} is not a directory", "choose another --kubelet-dir")
    for modes, what in ((os.R_OK, "read"), (os.W_OK | os.X_OK, "write to")):
        if not os.access(directory, modes):
            refused = errno.EROFS if os.statvfs(directory).f_flag & os.ST_RDONLY else errno.EACCES
            why = os.strerror(refused)
            raise EnvironmentFailure(f"cannot {what} the kubelet's directory {directory}: {why}", HINT)
    if wrong := too_long(directory / socket_name("")):
        raise EnvironmentFailure(wrong, "choose a shorter --kubelet-dir")
