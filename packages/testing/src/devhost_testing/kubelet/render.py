"""Events and protocol answers as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch

from devhost.kubelet.api import HEALTHY
from devhost.kubelet.api.api_pb2 import ContainerAllocateResponse

from . import events

SHOWN_IDS = 6
"""The maximum number of ids of a list that are printed."""


def abbreviated(ids: Sequence[str]) -> str:
    """``a, b, c and 97 more``; a dash for an empty list."""
    shown = ", ".join(ids[:SHOWN_IDS])
    more = len(ids) - SHOWN_IDS
    return f"{shown} and {more} more" if more > 0 else shown or "-"


def response_lines(response: ContainerAllocateResponse) -> Iterator[str]:
    """Everything that a container gets, one thing per line; nothing for an empty answer."""
    for device in response.devices:
        yield f"device      {_paths(device.host_path, device.container_path)} ({device.permissions or '-'})"
    for mount in response.mounts:
        mode = "read-only" if mount.read_only else "read-write"
        yield f"mount       {_paths(mount.host_path, mount.container_path)} ({mode})"
    for key, value in sorted(response.envs.items()):
        yield f"env         {key}={value}"
    for key, value in sorted(response.annotations.items()):
        yield f"annotation  {key}={value}"
    for name in response.cdi_devices:
        yield f"cdi         {name.name}"


def _paths(host: str, container: str) -> str:
    return host if host == container else f"{host} as {container}"


def listed(devices: Iterable[events.ListedDevice]) -> str:
    """The healthy and unhealthy devices of a list, with their numbers."""
    healthy: list[str] = []
    unhealthy: list[str] = []
    for device in devices:
        (healthy if device.health == HEALTHY else unhealthy).append(device.id)
    text = f"{len(healthy)} healthy, {len(unhealthy)} unhealthy"
    if healthy:
        text += f"; healthy: {abbreviated(healthy)}"
    if unhealthy:
        text += f"; unhealthy: {abbreviated(unhealthy)}"
    return text


@singledispatch
def lines(event: events.Event) -> list[str]:
    """The details of an event besides its kind and resource; the first line may be empty."""
    return [""]


@lines.register
def _(event: events.Started) -> list[str]:
    wiped = f", removed {abbreviated(event.wiped)}" if event.wiped else ""
    return [f"as kubelet {event.profile}{wiped}"]


@lines.register
def _(event: events.Stopped) -> list[str]:
    return ["crashed, its socket file is left behind" if event.crash else "cleanly"]


@lines.register
def _(event: events.PluginEvent) -> list[str]:
    return [event.endpoint]


@lines.register
def _(event: events.RegisterReceived) -> list[str]:
    return [f"{event.endpoint}, version {event.version}, options {_options(event)}"]


@lines.register
def _(event: events.OptionsRead) -> list[str]:
    return [f"{event.endpoint}, {_options(event)}"]


def _options(event: events.RegisterReceived | events.OptionsRead) -> str:
    wanted = (
        "pre-start" if event.pre_start_required else "",
        "preferred" if event.preferred_allocation else "",
    )
    return "+".join(filter(None, wanted)) or "none"


@lines.register
def _(event: events.RegisterRefused) -> list[str]:
    return [f"{event.endpoint}: {event.reason}"]


@lines.register
def _(event: events.StreamEnded) -> list[str]:
    return [f"{event.endpoint}: {event.reason}"]


@lines.register
def _(event: events.ListReceived) -> list[str]:
    return [f"{event.endpoint}: {listed(event.devices)}"]


@lines.register
def _(event: events.PreferenceAsked) -> list[str]:
    must = f" including {abbreviated(event.must_include)}" if event.must_include else ""
    asked = f"{event.size} of {len(event.available)}{must}"
    return [
        f"{event.pod}/{event.container}: requested {asked}; the plugin prefers {abbreviated(event.answer)}"
    ]


@lines.register(events.AllocateSent)
@lines.register(events.PreStarted)
def _(event: events.AllocateSent | events.PreStarted) -> list[str]:
    return [f"{event.pod}/{event.container}: {abbreviated(event.device_ids)}"]


@lines.register
def _(event: events.Allocated) -> list[str]:
    first = f"{event.pod}/{event.container} gets {', '.join(event.device_ids)}"
    return [first, *(response_lines(event.response) if event.response.ByteSize() else ["an empty answer"])]


@lines.register(events.AdmissionFailed)
@lines.register(events.StartFailed)
def _(event: events.AdmissionFailed | events.StartFailed) -> list[str]:
    return [f"{event.pod}/{event.container}: {event.reason}"]


@lines.register
def _(event: events.PodReleased) -> list[str]:
    return [event.pod]


@lines.register
def _(event: events.PodsListed) -> list[str]:
    return [event.reason or f"{event.pods} pods"]
