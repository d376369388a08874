"""The path of the status socket: one directory per user, one file name per kubelet directory."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
from pathlib import Path

from devhost.backend.errors import EnvironmentFailure

from . import sockets

_SOCKETS = "/proc/net/unix"
_USUAL = re.compile(
    r"(?<= )(/run/devhost|/run/user/([0-9]+)/devhost|/tmp/devhost-([0-9]+))/[0-9a-f]{12}\.sock$", re.MULTILINE
)
"""The path of a status socket, with its directory and user."""

_OVERRIDE = "DEVHOST_RUNTIME_DIR"
_ELSEWHERE = "choose another path for the socket with --status-socket"


def runtime_dir() -> Path:
    """The directory of this user's status sockets, which need not exist.

    ``$DEVHOST_RUNTIME_DIR`` if set; ``/run/devhost`` for root; else ``devhost`` in
    ``$XDG_RUNTIME_DIR``, and ``/tmp/devhost-<uid>`` without one.
    """
    if chosen := os.environ.get(_OVERRIDE):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/run/devhost")
    if session := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(session, "devhost")
    return Path(f"/tmp/devhost-{os.geteuid()}")


def make_runtime_dir() -> Path:
    """The runtime directory, created if necessary, and accessible only to this user.

    If it belongs to this user, is writable by others and empty, its mode is changed: Kubernetes creates an
    emptyDir with mode 0777, and a hostPath of type DirectoryOrCreate with 0755. Raises ``EnvironmentFailure``
    if it cannot be made, or it is not safe.
    """
    path = runtime_dir()
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        mode = _mode_of_ours(path)
        if mode & 0o077:
            path.chmod(0o700)
        if mode & 0o022 and any(path.iterdir()):  # checked after others can no longer add files
            path.chmod(stat.S_IMODE(mode))
            raise _open_to_others(path)
    except FileExistsError as error:
        raise EnvironmentFailure(f"{path} is not a directory", f"remove it, or {_ELSEWHERE}") from error
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot use the runtime directory {path}: {error.strerror}", _ELSEWHERE
        ) from error
    return path


def _mode_of_ours(path: Path, hint: str = f"remove it, or {_ELSEWHERE}") -> int:
    """The mode of a directory that must belong to this user; ``hint`` is for another user's.

    In ``/tmp`` any user can create a directory of this name first.
    """
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise EnvironmentFailure(f"{path} is not a directory", f"remove it, or {_ELSEWHERE}")
    if found.st_uid != os.geteuid():
        raise EnvironmentFailure(
            f"{path} belongs to user {found.st_uid}, not to this user ({os.geteuid()})", hint
        )
    return found.st_mode


def _open_to_others(path: Path) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"{path} is writable by other users", f"run `chmod 700 {path}` if its content is yours"
    )


def socket_name(kubelet_dir: Path) -> str:
    """The file name for a kubelet directory: 12 hex digits of the hash of its real path."""
    real = os.fsencode(os.path.realpath(kubelet_dir))
    return f"{hashlib.sha256(real).hexdigest()[:12]}.sock"


def status_sockets() -> list[Path]:
    """Every socket file in the runtime directory, live or not; none if it does not exist.

    Raises ``EnvironmentFailure`` if the directory cannot be read, or it is not safe.
    """
    try:
        if _mode_of_ours(runtime_dir(), "run the command as the user of that devhost") & 0o022:
            raise _open_to_others(runtime_dir())
        return sorted(path for path in runtime_dir().iterdir() if path.suffix == ".sock")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise EnvironmentFailure(f"cannot read {runtime_dir()}: {error.strerror}", _ELSEWHERE) from error


def of_another_user() -> str:
    """Another user whose devhost runs on this node: ``root`` or ``user 1000``; empty if none is known.

    Only the usual runtime directories are searched. The kernel lists the paths of all sockets that processes
    listen on (``/proc/net/unix``, proc_net_unix(5)), also in directories that this user cannot read.
    """
    if _OVERRIDE in os.environ:
        return ""
    try:
        listed = Path(_SOCKETS).read_text(errors="replace")
    except OSError:
        return ""
    for found in _USUAL.finditer(listed):
        if Path(found[1]) != runtime_dir():
            user = found[2] or found[3] or "0"
            return "root" if user == "0" else f"user {user}"
    return ""


def bind(path: Path) -> socket.socket:
    """The listening status socket at ``path`` with mode 0600; a dead socket there is replaced.

    Raises ``FileExistsError`` if a live process listens there, and ``EnvironmentFailure`` if another file is
    there, the path is too long, or the directory does not allow it.
    """
    check_length(path)
    if sockets.is_other_file(path):
        raise EnvironmentFailure(f"{path} exists and is not a socket", f"remove it, or {_ELSEWHERE}")
    try:
        return sockets.bind(path)
    except FileExistsError:
        raise
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot create the status socket {path}: {error.strerror}", _ELSEWHERE
        ) from error


def check_length(path: Path) -> None:
    """Checks whether a path can be that of a socket. Raises ``EnvironmentFailure`` if it is too long."""
    if wrong := sockets.too_long(path):
        raise EnvironmentFailure(
            wrong, f"use a shorter path: `run --status-socket`, `status --socket` or ${_OVERRIDE}"
        )
