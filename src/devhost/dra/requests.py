"""Requests that any process may send: decoding without tracebacks."""

from __future__ import annotations

from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

M = TypeVar("M", bound=Message)


async def decoded(kind: type[M], data: bytes, context: Any) -> M:
    """The request in ``data``; if it cannot be decoded, the call fails with INVALID_ARGUMENT."""
    try:
        return kind.FromString(data)
    except DecodeError:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {kind.DESCRIPTOR.full_name}"
        )
        raise  # unreachable: abort() raises
