"""Unix sockets: whether a process listens on one, which process that is, and a gRPC channel to it."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

import grpc.aio

_OPTIONS = (
    ("grpc.default_authority", "localhost"),  # the default is the socket's path, which is not legal
    ("grpc.use_local_subchannel_pool", 1),  # a new server must not inherit the previous server's back-off
    ("grpc.http2.bdp_probe", 0),  # it pings, and kubelets count pings as abuse
)

_CREDENTIALS = struct.Struct("iII")
"""``struct ucred`` of ``SO_PEERCRED`` (unix(7)): process, user and group."""


def refuses(path: Path) -> bool:
    """Whether no process listens on a socket. Connecting costs the listener no more than an accept."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(os.fsencode(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # absent, not permitted, queue full or no descriptor left: unknown
    return False


def gone(path: Path) -> bool:
    """Whether a socket does not exist; false if that cannot be determined."""
    try:
        return not stat.S_ISSOCK(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def dead(path: Path) -> bool:
    """Whether a socket does not exist, or no process listens on it."""
    return refuses(path) or gone(path)


def listener(path: Path) -> str:
    """The process that listens on a socket, such as ``python3, pid 4711``; empty if it is not visible.

    The kernel reports the process id to every client (unix(7), ``SO_PEERCRED``). It is 0 if the process is
    outside the PID namespace of this one, as in a container without ``hostPID``.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(os.fsencode(path))
            peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return ""
    pid, _, _ = _CREDENTIALS.unpack(peer)
    if not pid:
        return ""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        name = ""
    return f"{name}, pid {pid}" if name else f"pid {pid}"


def described(path: Path) -> str:
    """A socket's name, with the process that listens on it if that is visible."""
    process = listener(path)
    return f"{path.name} ({process})" if process else path.name


def channel(path: Path, *options: tuple[str, int]) -> grpc.aio.Channel:
    """A new channel to the process that listens on ``path``; its first call connects it."""
    return grpc.aio.insecure_channel(f"unix:{path}", options=(*_OPTIONS, *options))
