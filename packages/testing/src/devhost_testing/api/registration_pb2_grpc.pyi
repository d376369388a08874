# Generated from registration.proto with grpcio-tools 1.85.1.
# fmt: off
# ruff: noqa: E501
import grpc.aio

from devhost.dra.api import registration_pb2

class RegistrationStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    GetInfo: grpc.aio.UnaryUnaryMultiCallable[registration_pb2.InfoRequest, registration_pb2.PluginInfo]
    NotifyRegistrationStatus: grpc.aio.UnaryUnaryMultiCallable[registration_pb2.RegistrationStatus, registration_pb2.RegistrationStatusResponse]

class RegistrationServicer:
    async def GetInfo(self, request: registration_pb2.InfoRequest, context: grpc.aio.ServicerContext[registration_pb2.InfoRequest, registration_pb2.PluginInfo]) -> registration_pb2.PluginInfo: ...
    async def NotifyRegistrationStatus(self, request: registration_pb2.RegistrationStatus, context: grpc.aio.ServicerContext[registration_pb2.RegistrationStatus, registration_pb2.RegistrationStatusResponse]) -> registration_pb2.RegistrationStatusResponse: ...

def add_RegistrationServicer_to_server(
    servicer: RegistrationServicer, server: grpc.aio.Server
) -> None: ...
