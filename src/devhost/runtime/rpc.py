"""gRPC over unix sockets: a server on one socket, and a channel to one."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from devhost.backend.errors import EnvironmentFailure, exhausted, words

from .sockets import private, too_long

M = TypeVar("M", bound=Message)

Methods = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
Option = tuple[str, int]

_CLIENT = (
    ("grpc.default_authority", "localhost"),  # the default is the socket's path, which is not legal
    ("grpc.use_local_subchannel_pool", 1),  # a new server must not inherit the previous server's back-off
    ("grpc.http2.bdp_probe", 0),  # it pings, and kubelets count pings as abuse
)


def channel(path: Path, *options: Option) -> grpc.aio.Channel:
    """A new channel to the process that listens on ``path``; its first call connects it."""
    return grpc.aio.insecure_channel(f"unix:{path}", options=(*_CLIENT, *options))


class Server:
    """Serves methods on one unix socket.

    No file may be at ``path``. ``services`` has the methods of each service, by its full name. They get the
    bytes of a request and call :func:`decoded`: with a deserializer, gRPC would log a traceback for each
    undecodable request. ``shorter`` is the option of the command line to choose a shorter path with.
    """

    def __init__(
        self, path: Path, services: Mapping[str, Methods], options: Sequence[Option], shorter: str
    ) -> None:
        self.path = path
        self._services = services
        self._options = options
        self._shorter = shorter
        self._server: grpc.aio.Server | None = None
        self._inode: tuple[int, int] | None = None

    async def start(self) -> None:
        """Binds the socket with mode 0600 and serves.

        Raises ``EnvironmentFailure`` if the path is too long, no socket can be made there, or no descriptor
        is left.
        """
        if wrong := too_long(self.path):
            raise EnvironmentFailure(wrong, f"choose a shorter {self._shorter}")
        server = grpc.aio.server(options=self._options)
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(name, dict(methods))
                for name, methods in self._services.items()
            )
        )
        try:
            with private():
                server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError:
            raise _cannot(self.path) from None
        with suppress(OSError):  # another process may have removed the file already
            found = self.path.stat()
            self._inode = found.st_dev, found.st_ino
        await server.start()
        self._server = server

    async def stop(self, grace: float) -> None:
        """Ends the server within ``grace`` seconds; gRPC removes the file at its path. Safe to call twice."""
        server, self._server = self._server, None
        self._inode = None  # a file system gives the number to another file
        if server is not None:
            await server.stop(grace)

    def exists(self) -> bool:
        """Whether the socket is still at its path, and no other file."""
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inode


def _cannot(path: Path) -> EnvironmentFailure:
    """Why a socket cannot be made, which gRPC does not report."""
    why = ""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.bind(os.fsencode(path))
        path.unlink()
    except OSError as error:
        if lack := exhausted(error):
            return lack
        why = f": {error.strerror or error}"
    return EnvironmentFailure(
        f"cannot make a socket in {path.parent}{why}",
        "run devhost as root, with the directory mounted writable",
    )


def undecodable(message: type[Message], error: DecodeError) -> str:
    return f"the request is not a {message.DESCRIPTOR.full_name}: {words(error)}"


async def decoded(message: type[M], data: bytes, context: Any) -> M:
    """The request in ``data``; if it cannot be decoded, the call fails with INVALID_ARGUMENT."""
    try:
        return message.FromString(data)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, undecodable(message, error))
        raise  # unreachable: abort() raises
