"""Unix sockets: the longest path, the mode, whether a process listens on one, and which process that is."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_PATH = 107
"""Bytes of the longest path: ``sun_path`` holds 108 with the closing zero (unix(7))."""

LONGEST_PLACE = 40
"""Bytes of a temporary directory in which the path of a socket has fewer than :data:`MAX_PATH`."""

_CREDENTIALS = struct.Struct("iII")
"""``struct ucred`` of ``SO_PEERCRED`` (unix(7)): process, user and group."""


def too_long(path: Path) -> str:
    """What is wrong with the length of a socket's path; empty if Linux allows it."""
    if (length := len(os.fsencode(path))) <= MAX_PATH:
        return ""
    return f"the socket {path} would have a path of {length} bytes, and Linux allows {MAX_PATH}"


def short_place() -> str | None:
    """Where temporary directories have short paths; ``None`` for the directory that ``$TMPDIR`` names."""
    long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_PLACE
    return "/tmp" if long and os.access("/tmp", os.W_OK | os.X_OK) else None


@contextmanager
def private() -> Iterator[None]:
    """A socket that is bound within has mode 0600 from the first moment; a later chmod would leave a gap.

    The umask is that of the whole process, so nothing may be awaited within.
    """
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def peer(path: Path) -> int:
    """The process that listens on a socket. Connecting costs it no more than an accept; this never waits.

    The kernel reports the process id to every client (unix(7), ``SO_PEERCRED``). It is 0 if the process is
    outside the PID namespace of this one, as in a container without ``hostPID``.

    Raises:
        ConnectionRefusedError: no process listens on it.
        FileNotFoundError, NotADirectoryError: it does not exist.
        BlockingIOError: a process listens, and its queue of connections is full.
        OSError: it is unknown, for example without permission or without a free descriptor.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        probe.connect(os.fsencode(path))
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid


def live(path: Path) -> bool:
    """Whether a process listens on a socket; false if that is unknown."""
    try:
        peer(path)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return True


def refuses(path: Path) -> bool:
    """Whether a socket exists and no process listens on it; false if that is unknown."""
    try:
        peer(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def gone(path: Path) -> bool:
    """Whether a socket does not exist; false if that is unknown."""
    try:
        return not stat.S_ISSOCK(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def dead(path: Path) -> bool:
    """Whether a socket does not exist, or no process listens on it."""
    return refuses(path) or gone(path)


def clear(path: Path) -> None:
    """Removes a socket on which no process listens.

    Raises ``FileExistsError`` if a process listens on it, or it is another kind of file (see
    :func:`is_other_file`), and ``OSError`` if it is unknown whether a process listens, or it cannot be
    removed.
    """
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            peer(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except BlockingIOError:
        pass
    raise FileExistsError(path)


def is_other_file(path: Path) -> bool:
    """Whether a file exists that is no socket; false if that is unknown."""
    try:
        return not stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def described(path: Path) -> str:
    """A socket's name, with its process if that is visible: ``dh-1.sock (python3, pid 4711)``."""
    try:
        pid = peer(path)
    except OSError:
        pid = 0
    if not pid:
        return path.name
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        name = ""
    return f"{path.name} ({name}, pid {pid})" if name else f"{path.name} (pid {pid})"


def bind(path: Path) -> socket.socket:
    """A listening unix socket at ``path`` with mode 0600; a dead socket there is replaced.

    Raises ``FileExistsError`` as :func:`clear`, or if another process was faster.
    """
    clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with private():
            listener.bind(os.fsencode(path))
        listener.listen(16)
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise FileExistsError(path) from error
        raise
    return listener
