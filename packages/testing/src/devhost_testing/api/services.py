"""The classes of gRPC services, made from their descriptors. Their types are in the ``.pyi`` files."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass


def classes(messages: ModuleType) -> dict[str, Any]:
    """What protoc would generate for the services in a module with messages, by name.

    These are a class to call each service, one to implement it, and a function that adds it to a server.
    """
    found: dict[str, Any] = {}
    for name, service in messages.DESCRIPTOR.services_by_name.items():
        found[f"{name}Stub"] = _stub(name, service)
        found[f"{name}Servicer"] = type(f"{name}Servicer", (), {})
        found[f"add_{name}Servicer_to_server"] = _adder(service)
    return found


def _stub(name: str, service: ServiceDescriptor) -> type:
    def __init__(self: Any, channel: Any) -> None:
        for one in service.methods:
            kind = channel.unary_stream if one.server_streaming else channel.unary_unary
            call = kind(
                f"/{service.full_name}/{one.name}",
                request_serializer=GetMessageClass(one.input_type).SerializeToString,
                response_deserializer=GetMessageClass(one.output_type).FromString,
            )
            setattr(self, one.name, call)

    return type(f"{name}Stub", (), {"__init__": __init__})


def _adder(service: ServiceDescriptor) -> Any:
    def add(servicer: Any, server: Any) -> None:
        handlers = {}
        for one in service.methods:
            kind = (
                grpc.unary_stream_rpc_method_handler
                if one.server_streaming
                else grpc.unary_unary_rpc_method_handler
            )
            if (answer := getattr(servicer, one.name, None)) is not None:
                asked, answered = GetMessageClass(one.input_type), GetMessageClass(one.output_type)
                handlers[one.name] = kind(answer, asked.FromString, answered.SerializeToString)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    return add
