# Generated from api.proto with grpcio-tools 1.85.1.
# fmt: off
# ruff: noqa: E501
from collections.abc import AsyncIterator

import grpc.aio

from devhost.kubelet.api import api_pb2

class RegistrationStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Register: grpc.aio.UnaryUnaryMultiCallable[api_pb2.RegisterRequest, api_pb2.Empty]

class RegistrationServicer:
    async def Register(self, request: api_pb2.RegisterRequest, context: grpc.aio.ServicerContext[api_pb2.RegisterRequest, api_pb2.Empty]) -> api_pb2.Empty: ...

def add_RegistrationServicer_to_server(
    servicer: RegistrationServicer, server: grpc.aio.Server
) -> None: ...

class DevicePluginStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    GetDevicePluginOptions: grpc.aio.UnaryUnaryMultiCallable[api_pb2.Empty, api_pb2.DevicePluginOptions]
    ListAndWatch: grpc.aio.UnaryStreamMultiCallable[api_pb2.Empty, api_pb2.ListAndWatchResponse]
    GetPreferredAllocation: grpc.aio.UnaryUnaryMultiCallable[api_pb2.PreferredAllocationRequest, api_pb2.PreferredAllocationResponse]
    Allocate: grpc.aio.UnaryUnaryMultiCallable[api_pb2.AllocateRequest, api_pb2.AllocateResponse]
    PreStartContainer: grpc.aio.UnaryUnaryMultiCallable[api_pb2.PreStartContainerRequest, api_pb2.PreStartContainerResponse]

class DevicePluginServicer:
    async def GetDevicePluginOptions(self, request: api_pb2.Empty, context: grpc.aio.ServicerContext[api_pb2.Empty, api_pb2.DevicePluginOptions]) -> api_pb2.DevicePluginOptions: ...
    def ListAndWatch(self, request: api_pb2.Empty, context: grpc.aio.ServicerContext[api_pb2.Empty, api_pb2.ListAndWatchResponse]) -> AsyncIterator[api_pb2.ListAndWatchResponse]: ...
    async def GetPreferredAllocation(self, request: api_pb2.PreferredAllocationRequest, context: grpc.aio.ServicerContext[api_pb2.PreferredAllocationRequest, api_pb2.PreferredAllocationResponse]) -> api_pb2.PreferredAllocationResponse: ...
    async def Allocate(self, request: api_pb2.AllocateRequest, context: grpc.aio.ServicerContext[api_pb2.AllocateRequest, api_pb2.AllocateResponse]) -> api_pb2.AllocateResponse: ...
    async def PreStartContainer(self, request: api_pb2.PreStartContainerRequest, context: grpc.aio.ServicerContext[api_pb2.PreStartContainerRequest, api_pb2.PreStartContainerResponse]) -> api_pb2.PreStartContainerResponse: ...

def add_DevicePluginServicer_to_server(
    servicer: DevicePluginServicer, server: grpc.aio.Server
) -> None: ...
