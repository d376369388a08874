"""A gRPC server on a unix socket with a fixed path, which no other process may lose."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from devhost.backend.errors import EnvironmentFailure

M = TypeVar("M", bound=Message)

MAX_SOCKET_PATH = 107
"""Longest path of a unix socket in bytes (unix(7), without the final zero byte)."""

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_allowed_incoming_connections", 16),
    ("grpc.max_concurrent_streams", 512),
    ("grpc.http.overload_protection", 0),  # as in devhost.kubelet.server
)
"""Connections and calls are bounded. An idle connection stays: a kubelet removes the slices of a driver whose
connection is closed."""


def check_path(path: Path, option: str) -> None:
    """Refuses a path that no socket can have.

    Args:
        option: the command line option with its directory.

    Raises:
        EnvironmentFailure: the path is too long.
    """
    if (length := len(os.fsencode(path))) > MAX_SOCKET_PATH:
        raise EnvironmentFailure(
            f"socket path {path} has {length} bytes; at most {MAX_SOCKET_PATH} are possible",
            f"choose a shorter {option} or dra.driver",
        )


class Listener:
    """Serves methods on one socket.

    A stale socket at the path is replaced. A socket on which a process listens, and a file that is no socket,
    are left alone.

    Args:
        path: the socket; its directory is created.
        services: the methods of each service, by its full name.
    """

    def __init__(
        self, path: Path, services: Mapping[str, Mapping[str, grpc.RpcMethodHandler[Any, Any]]]
    ) -> None:
        self.path = path
        self._services = services
        self._server: grpc.aio.Server | None = None
        self._inode: tuple[int, int] | None = None

    async def start(self) -> None:
        """Binds the socket with mode 0600 and serves.

        Raises:
            EnvironmentFailure: the path is in use, or no socket can be made there.
        """
        self._clear()
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(name, dict(methods))
                for name, methods in self._services.items()
            )
        )
        before = os.umask(0o177)  # bind() sets the socket's mode; a later chmod would leave a gap
        try:
            server.add_insecure_port(f"unix:{self.path}")
            found = self.path.stat()
        except (RuntimeError, OSError):
            raise EnvironmentFailure(
                f"cannot make socket {self.path}",
                "run devhost as root, with the directory mounted writable",
            ) from None
        finally:
            os.umask(before)
        await server.start()
        self._server, self._inode = server, (found.st_dev, found.st_ino)

    async def stop(self, grace: float) -> None:
        """Unlinks the socket, then ends the server within ``grace`` seconds. Safe to call twice."""
        server, self._server = self._server, None
        if server is None:
            return
        self._unlink()
        await server.stop(grace)

    def exists(self) -> bool:
        """Whether the socket is still at its path."""
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inode

    def _unlink(self) -> None:
        if self.exists():
            with suppress(OSError):  # it stays as a stale socket that the next start replaces
                self.path.unlink()

    def _clear(self) -> None:
        """Removes a socket on which no process listens."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot use directory {self.path.parent}: {error.strerror}", "run devhost as root"
            ) from None
        if not stat.S_ISSOCK(mode):
            raise EnvironmentFailure(f"{self.path} is not a socket", "remove it")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(os.fsencode(self.path))
            except ConnectionRefusedError:
                self.path.unlink(missing_ok=True)
                return
            except OSError:
                pass  # it is unknown whether a process listens
        raise EnvironmentFailure(
            f"another process serves {self.path}", "stop it, or choose another dra.driver"
        )


async def decoded(kind: type[M], data: bytes, context: Any) -> M:
    """The request in ``data``; if it cannot be decoded, the call fails with INVALID_ARGUMENT."""
    try:
        return kind.FromString(data)
    except DecodeError:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {kind.DESCRIPTOR.full_name}"
        )
        raise  # unreachable: abort() raises
