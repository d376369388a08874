"""The reference for Allocate: a separate server process that answers at once. ``python -m bench.empty``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio

from devhost.kubelet.api import api_pb2 as pb


async def _allocate(_request: pb.AllocateRequest, _context: Any) -> pb.AllocateResponse:
    return pb.AllocateResponse()


async def serve(path: str) -> None:
    """Serves Allocate on a unix socket until killed."""
    method = grpc.unary_unary_rpc_method_handler(
        _allocate, pb.AllocateRequest.FromString, pb.AllocateResponse.SerializeToString
    )
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", {"Allocate": method}),)
    )
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
