# Generated from podresources.proto with grpcio-tools 1.85.1.
# fmt: off
# ruff: noqa: E501
import grpc.aio

from devhost.kubelet.api import podresources_pb2

class PodResourcesListerStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    List: grpc.aio.UnaryUnaryMultiCallable[podresources_pb2.ListPodResourcesRequest, podresources_pb2.ListPodResourcesResponse]
    GetAllocatableResources: grpc.aio.UnaryUnaryMultiCallable[podresources_pb2.AllocatableResourcesRequest, podresources_pb2.AllocatableResourcesResponse]

class PodResourcesListerServicer:
    async def List(self, request: podresources_pb2.ListPodResourcesRequest, context: grpc.aio.ServicerContext[podresources_pb2.ListPodResourcesRequest, podresources_pb2.ListPodResourcesResponse]) -> podresources_pb2.ListPodResourcesResponse: ...
    async def GetAllocatableResources(self, request: podresources_pb2.AllocatableResourcesRequest, context: grpc.aio.ServicerContext[podresources_pb2.AllocatableResourcesRequest, podresources_pb2.AllocatableResourcesResponse]) -> podresources_pb2.AllocatableResourcesResponse: ...

def add_PodResourcesListerServicer_to_server(
    servicer: PodResourcesListerServicer, server: grpc.aio.Server
) -> None: ...
