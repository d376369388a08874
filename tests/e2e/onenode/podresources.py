"""The kubelet's podresources service: who holds which device, with only the fields in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

DESCRIPTION = """
name: "podresources.proto" package: "v1" syntax: "proto3"
message_type { name: "ListPodResourcesRequest" }
message_type { name: "ListPodResourcesResponse"
  field { name: "pods" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".v1.Pod" } }
message_type { name: "Pod"
  field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "namespace" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "containers" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".v1.Container" } }
message_type { name: "Container"
  field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "devices" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".v1.Devices" } }
message_type { name: "Devices"
  field { name: "resource" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "ids" number: 2 label: LABEL_REPEATED type: TYPE_STRING } }
"""
"""Names are not sent; numbers and types are those of podresources v1."""


def _messages() -> dict[str, Any]:
    file = text_format.Parse(DESCRIPTION, descriptor_pb2.FileDescriptorProto())
    return message_factory.GetMessages([file], pool=descriptor_pool.DescriptorPool())


def devices_of_pods(socket: Path) -> dict[tuple[str, str], set[str]]:
    """Ids of the devices by pod and resource.

    Raises:
        grpc.RpcError: the kubelet does not answer.
    """
    messages = _messages()
    with grpc.insecure_channel(
        f"unix:{socket}", options=[("grpc.default_authority", "localhost")]
    ) as channel:
        ask = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=messages["v1.ListPodResourcesRequest"].SerializeToString,
            response_deserializer=messages["v1.ListPodResourcesResponse"].FromString,
        )
        answer = ask(messages["v1.ListPodResourcesRequest"](), timeout=120)
    held: dict[tuple[str, str], set[str]] = {}
    for pod in answer.pods:
        for container in pod.containers:
            for devices in container.devices:
                held.setdefault((pod.name, devices.resource), set()).update(devices.ids)
    return held
