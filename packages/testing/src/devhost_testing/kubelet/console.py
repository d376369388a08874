"""The commands for a running simulated kubelet."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from devhost.backend.errors import DevhostError, UsageError

from . import render
from .admission import ContainerStartError, UnexpectedAdmissionError
from .simulator import KubeletSimulator

CONTAINER = "main"
"""The name of the only container of each pod that a command starts."""

WAIT = 60.0
"""The default timeout of ``wait for`` in seconds."""

HELP = """\
allocate N of RESOURCE [for POD]   admit a pod that requests N devices, and start it
restart pod POD                    start the pod's container again, without a new Allocate
release POD                        end the pod and free its devices
pods                               pods and the devices they hold
devices [RESOURCE]                 devices, their health and the pods that hold them
capacity                           capacity and allocatable, as in the node status
wait for RESOURCE [SECONDS]        wait until the resource has a free healthy device
restart                            restart the kubelet: sockets are removed, plugins must register again
crash                              the same, but the old kubelet leaves its socket file behind
forget                             restart without the checkpoint: allocations are forgotten
stop / start                       the two halves of a restart
kill stream RESOURCE               cancel the ListAndWatch streams of a resource
help                               print this help
quit                               stop the kubelet and exit"""


class Quit(Exception):
    """The user quits."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a command: ``lines`` for people, ``value`` (plain JSON) for programs."""

    lines: tuple[str, ...] = ()
    value: Any = None


class Console:
    """Runs command lines on ``kubelet``, one after another, as a kubelet admits its pods."""

    def __init__(self, kubelet: KubeletSimulator) -> None:
        self._kubelet = kubelet
        self._pods = 0
        grammar: list[tuple[str, Callable[..., Awaitable[Answer]]]] = [
            (r"allocate (?P<count>\S+) of (?P<resource>\S+)(?: for (?P<pod>\S+))?", self._allocate),
            (r"restart pod (?P<pod>\S+)", self._restart_pod),
            (r"release (?P<pod>\S+)", self._release),
            (r"pods", self._list_pods),
            (r"devices(?: (?P<resource>\S+))?", self._devices),
            (r"capacity", self._capacity),
            (r"wait for (?P<resource>\S+)(?: (?P<seconds>\S+))?", self._wait),
            (r"restart", self._restart),
            (r"crash", self._crash),
            (r"forget", self._forget),
            (r"stop", self._stop),
            (r"start", self._start),
            (r"kill stream (?P<resource>\S+)", self._kill_stream),
            (r"help", self._help),
            (r"quit|exit", self._quit),
        ]
        self._grammar = [(re.compile(pattern), action) for pattern, action in grammar]

    async def execute(self, line: str) -> Answer:
        """Runs one line; an empty line, or one that begins with ``#``, does nothing.

        Raises ``UsageError`` if it is not a command, and ``Quit`` for ``quit``.
        """
        words = " ".join(line.split())
        if not words or words.startswith("#"):
            return Answer()
        for pattern, action in self._grammar:
            if found := pattern.fullmatch(words):
                return await action(**found.groupdict())
        raise UsageError(f"unknown command {words[:80]!r}", _hint(words))

    async def _allocate(self, count: str, resource: str, pod: str | None) -> Answer:
        number = _positive(count, "the number of devices", whole=True)
        name = pod or self._new_pod()
        # The events already show everything to people, also why a pod is rejected or cannot start.
        try:
            await self._kubelet.admit(name, CONTAINER, resource, int(number))
            await self._kubelet.start_container(name, CONTAINER)
        except (UnexpectedAdmissionError, ContainerStartError) as error:
            return Answer(value={"pod": name, "started": False, "reason": error.message})
        return Answer(value={"pod": name, "started": True, "reason": ""})

    def _new_pod(self) -> str:
        taken = {allocation.pod for allocation in self._kubelet.allocations()}
        while True:
            self._pods += 1
            if (name := f"pod-{self._pods}") not in taken:
                return name

    async def _restart_pod(self, pod: str) -> Answer:
        response = await self._kubelet.start_container(pod, CONTAINER)
        return Answer((f"{pod}/{CONTAINER} is restarted with", *render.response_lines(response)))

    async def _release(self, pod: str) -> Answer:
        if not self._kubelet.release(pod):
            raise UsageError(f"there is no pod {pod}", "run the command pods to list all pods")
        return Answer()

    async def _list_pods(self) -> Answer:
        held = self._kubelet.allocations()
        lines = tuple(f"{a.pod}/{a.container}  {a.resource}  {', '.join(a.device_ids)}" for a in held)
        value = [
            {"pod": a.pod, "container": a.container, "resource": a.resource, "device_ids": list(a.device_ids)}
            for a in held
        ]
        return Answer(lines or ("no pod holds a device",), value)

    async def _devices(self, resource: str | None) -> Answer:
        known = self._kubelet.capacity()
        if resource is not None and resource not in known:
            raise UsageError(
                f"no plugin has listed devices of {resource}",
                "run the command capacity to list all resources",
            )
        holders = {
            (a.resource, device): a.pod for a in self._kubelet.allocations() for device in a.device_ids
        }
        value = []
        for name in [resource] if resource else sorted(known):
            healthy = self._kubelet.healthy(name)
            value += [
                {
                    "resource": name,
                    "id": device.id,
                    "healthy": device.id in healthy,
                    "numa_nodes": list(device.numa_nodes),
                    "pod": holders.get((name, device.id), ""),
                }
                for device in self._kubelet.devices(name)
            ]
        return Answer(tuple(map(_device_line, value)) or ("no devices",), value)

    async def _capacity(self) -> Answer:
        capacity, allocatable = self._kubelet.capacity(), self._kubelet.allocatable()
        value = {
            name: {
                "capacity": capacity[name],
                "allocatable": allocatable[name],
                "in_use": len(self._kubelet.in_use(name)),
            }
            for name in sorted(capacity)
        }
        lines = tuple(
            f"{name}  capacity {n['capacity']}, allocatable {n['allocatable']}, in use {n['in_use']}"
            for name, n in value.items()
        )
        return Answer(lines or ("no plugin has registered a resource",), value)

    async def _wait(self, resource: str, seconds: str | None) -> Answer:
        limit = _positive(seconds, "the time to wait") if seconds else WAIT
        try:
            await self._kubelet.wait_for(
                lambda: self._kubelet.healthy(resource) - self._kubelet.in_use(resource), limit
            )
        except TimeoutError:
            raise DevhostError(f"{resource} had no free healthy device within {limit:g} s") from None
        return Answer()

    async def _restart(self) -> Answer:
        await self._kubelet.restart()
        return Answer()

    async def _crash(self) -> Answer:
        await self._kubelet.restart(crash=True)
        return Answer()

    async def _forget(self) -> Answer:
        await self._kubelet.restart(forget=True)
        return Answer()

    async def _stop(self) -> Answer:
        await self._kubelet.stop()
        return Answer()

    async def _start(self) -> Answer:
        await self._kubelet.start()
        return Answer()

    async def _kill_stream(self, resource: str) -> Answer:
        if not self._kubelet.kill_stream(resource):
            raise UsageError(
                f"{resource} has no open stream", "run the command capacity to list all resources"
            )
        return Answer()

    async def _help(self) -> Answer:
        return Answer(tuple(HELP.splitlines()), HELP)

    async def _quit(self) -> Answer:
        raise Quit


def _positive(text: str, what: str, whole: bool = False) -> float:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        number = 0
    if not 0 < number < 2**31:
        raise UsageError(f"{what} must be a {'whole ' if whole else ''}number above 0, not {text[:40]!r}")
    return number


def _hint(words: str) -> str:
    usages = {line.split("  ")[0].split(" [")[0]: line.split("  ")[0] for line in HELP.splitlines()}
    first = words.split()[0]
    verbs = {usage.split()[0]: usage for usage in reversed(usages.values())}
    close = difflib.get_close_matches(first, verbs, n=1)
    return f"did you mean: {verbs[close[0]]}" if close else "run the command help to list all commands"


def _device_line(device: dict[str, Any]) -> str:
    health = "healthy" if device["healthy"] else "unhealthy"
    numa = f"  NUMA {','.join(map(str, device['numa_nodes']))}" if device["numa_nodes"] else ""
    pod = f"  held by {device['pod']}" if device["pod"] else ""
    return f"{device['resource']}  {device['id']}  {health}{numa}{pod}"
