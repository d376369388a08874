# Generated from health_v1.proto with grpcio-tools 1.85.1.
# fmt: off
# ruff: noqa: E501
from collections.abc import AsyncIterator

import grpc.aio

from devhost.dra.api import health_v1_pb2

class DRAResourceHealthStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    NodeWatchResources: grpc.aio.UnaryStreamMultiCallable[health_v1_pb2.NodeWatchResourcesRequest, health_v1_pb2.NodeWatchResourcesResponse]

class DRAResourceHealthServicer:
    def NodeWatchResources(self, request: health_v1_pb2.NodeWatchResourcesRequest, context: grpc.aio.ServicerContext[health_v1_pb2.NodeWatchResourcesRequest, health_v1_pb2.NodeWatchResourcesResponse]) -> AsyncIterator[health_v1_pb2.NodeWatchResourcesResponse]: ...

def add_DRAResourceHealthServicer_to_server(
    servicer: DRAResourceHealthServicer, server: grpc.aio.Server
) -> None: ...
