# Generated from dra_v1beta1.proto with grpcio-tools 1.85.1.
# fmt: off
# ruff: noqa: E501
import grpc.aio

from devhost.dra.api import dra_v1beta1_pb2

class DRAPluginStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    NodePrepareResources: grpc.aio.UnaryUnaryMultiCallable[dra_v1beta1_pb2.NodePrepareResourcesRequest, dra_v1beta1_pb2.NodePrepareResourcesResponse]
    NodeUnprepareResources: grpc.aio.UnaryUnaryMultiCallable[dra_v1beta1_pb2.NodeUnprepareResourcesRequest, dra_v1beta1_pb2.NodeUnprepareResourcesResponse]

class DRAPluginServicer:
    async def NodePrepareResources(self, request: dra_v1beta1_pb2.NodePrepareResourcesRequest, context: grpc.aio.ServicerContext[dra_v1beta1_pb2.NodePrepareResourcesRequest, dra_v1beta1_pb2.NodePrepareResourcesResponse]) -> dra_v1beta1_pb2.NodePrepareResourcesResponse: ...
    async def NodeUnprepareResources(self, request: dra_v1beta1_pb2.NodeUnprepareResourcesRequest, context: grpc.aio.ServicerContext[dra_v1beta1_pb2.NodeUnprepareResourcesRequest, dra_v1beta1_pb2.NodeUnprepareResourcesResponse]) -> dra_v1beta1_pb2.NodeUnprepareResourcesResponse: ...

def add_DRAPluginServicer_to_server(
    servicer: DRAPluginServicer, server: grpc.aio.Server
) -> None: ...
