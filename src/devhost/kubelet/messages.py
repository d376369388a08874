"""Between the model and the v1beta1 messages. Pure.

Facts are those of the DevicePlugin API v1beta1 (``api.proto`` beside this package).
"""

from __future__ import annotations

from collections.abc import Collection

from devhost.allocation.inventory import Snapshot
from devhost.backend.model import Edits

from .api import HEALTHY, UNHEALTHY, VERSION
from .api import api_pb2 as pb


def options(*, prepares: bool) -> pb.DevicePluginOptions:
    """What a resource wants to be asked. PreStartContainer only where it does something:

    while a plugin that asked for it is away, containers of running pods cannot restart.
    """
    return pb.DevicePluginOptions(pre_start_required=prepares, get_preferred_allocation_available=True)


def registration(endpoint: str, resource: str, *, prepares: bool) -> pb.RegisterRequest:
    """A Register request; ``endpoint`` is the socket's name within the kubelet's directory."""
    return pb.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource, options=options(prepares=prepares)
    )


def device_list(snapshot: Snapshot) -> pb.ListAndWatchResponse:
    """The complete list: each message replaces all that the kubelet knew of the resource."""
    response = pb.ListAndWatchResponse()
    add = response.devices.add  # in place: a list of messages would be copied, at twice the time
    for name, entry in snapshot.entries.items():
        device = add(ID=name, health=HEALTHY if entry.health.healthy else UNHEALTHY)
        for node in entry.numa_nodes:
            device.topology.nodes.add(ID=node)
    return response


def allocation(edits: Edits, left_out: Collection[str] = ()) -> pb.ContainerAllocateResponse:
    """What a container gets. ``left_out`` holds host paths of optional parts the host lacks."""
    return pb.ContainerAllocateResponse(
        envs=dict(edits.env),
        mounts=[
            pb.Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in edits.mounts
            if m.host_path not in left_out
        ],
        devices=[
            pb.DeviceSpec(
                container_path=n.container_path or n.path, host_path=n.path, permissions=n.permissions
            )
            for n in edits.nodes
            if n.path not in left_out
        ],
        annotations=dict(edits.annotations),
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
    )
