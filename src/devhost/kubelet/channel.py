"""A connection to a gRPC server of this machine."""

from __future__ import annotations

from pathlib import Path

import grpc.aio

_OPTIONS = (
    ("grpc.default_authority", "localhost"),  # the socket's path, the default, is not a legal one
    ("grpc.use_local_subchannel_pool", 1),  # a new server must not inherit the back-off of the one before it
    ("grpc.http2.bdp_probe", 0),  # it pings, and kubelets count pings as abuse
)


def local(socket: Path, *options: tuple[str, int]) -> grpc.aio.Channel:
    """A channel of its own to whoever listens on ``socket``; connected by its first call."""
    return grpc.aio.insecure_channel(f"unix:{socket}", options=(*_OPTIONS, *options))
