"""The expected state of a node after a quiet period, computed independently of the host.

The plan is computed from the state of the controlled backends. Only for a backend that fails now, the host's
devices are used, because only the host has its last valid answer.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from devhost_testing.kubelet import Allocation, ContainerStartError, UnexpectedAdmissionError
from devhost_testing.kubelet import events as ev
from soak_node import Node
from soak_toys import Toy
from status_values import status

from devhost.backend.model import Device
from devhost.discovery.scanner import BackendState
from devhost.host.host import Host
from devhost.kubelet.api import HEALTHY, KUBELET_SOCKET
from devhost.planning.plan import Plan, PlannedResource, units
from devhost.planning.planner import make_plan
from devhost.planning.tokens import numbered
from devhost.runtime.worker import MAX_ABANDONED

KEPT = "from before it was shared in this way"
"""The reason for a token whose device is held by containers from before its sharing was changed."""

LATE = "did not answer within"
"""The text for a backend that did not answer in time."""

PATIENCE = 60.0
"""Seconds after which a wrong state is a finding."""

CALM = 0.3
"""Seconds for which the state must then stay right, without a registration."""

EXTRA_TASKS = {"other": {"watch other"}, "prep": {"probe prep"}}
"""The tasks of a backend in addition to its scans."""


async def quiet(node: Node, *, all_well: bool) -> list[str]:
    """Waits until the state of the node is right; returns what was still wrong after :data:`PATIENCE`.

    Args:
        all_well: whether the faults of backends end, too; otherwise they are part of the expected state.
    """
    node.end_faults(backends=all_well)
    if not node.kubelet.running:
        await node.kubelet.start()
    elif not (node.kubelet.socket.exists() and node.pod_resources.exists()):
        await node.kubelet.restart()
    if node.valid() is None and all_well:
        node.write(node.good_config)
    if not node.host_runs:
        node.start_host()
    for name in node.toys:
        node.look(name)
    loop = asyncio.get_running_loop()
    end, began = loop.time() + PATIENCE, node.kubelet.events.position
    right_since: float | None = None
    registrations = 0
    while right_since is None or loop.time() < right_since + CALM:
        wrong = [*node.complaints, *problems(node)]
        if wrong and (node.complaints or loop.time() > end):
            return wrong
        before, registrations = registrations, len(node.kubelet.events.of(ev.RegisterReceived, since=began))
        if wrong or before != registrations:
            right_since = None
            if loop.time() > end:
                return ["all is right, and resources are registered again and again"]
        elif right_since is None:
            right_since = loop.time()
        await asyncio.sleep(0.02)
    return await pods_run(node)


def problems(node: Node) -> list[str]:
    """Everything that is not as it must be."""
    host = node.host
    if host is None or not node.host_runs:
        # Only a configuration that is wrong keeps it from running, and then nothing may be allocatable.
        left = {name: n for name, n in node.kubelet.allocatable().items() if n}
        return [f"no host runs, and yet there is {left}"] if left else []
    found = list(_configured(node, host))
    if found:
        return found
    node.candidates = [host.configuration.settings]
    plan = make_plan(dict(_devices(node, host)), host.configuration.settings, host.allocations.held())
    for name, planned in plan.resources.items():
        found += _resource(node, host, name, planned)
    found += _others(node, host, plan)
    found += _backends(node, host)
    found += _tasks(node, host)
    found += _document(node, host)
    return found


def _configured(node: Node, host: Host) -> Iterator[str]:
    """The file as it is now is in force; a wrong one is complained of, and one of the good ones stays."""
    valid = node.valid()
    if valid is not None and host.configuration.settings != valid:
        yield "the file is not in force"
    if valid is None and host.configuration.settings not in node.candidates:
        yield "settings that no file ever had are in force"
    complaints = host.configuration.last_reload.complaints
    if (valid is None) is not bool(complaints):
        yield f"the file is {'wrong' if valid is None else 'right'}: {complaints}"
    if sorted(host.scanners) != sorted(host.configuration.settings.backend_names()):
        yield f"backends {sorted(host.scanners)} run"


def _devices(node: Node, host: Host) -> Iterator[tuple[str, tuple[Device, ...]]]:
    for name, discovery in host.scanners.items():
        toy = node.toys[name]
        yield name, tuple((discovery.devices if toy.broken else toy.devices).values())


def _well(toy: Toy, device: Device) -> bool:
    probed = toy.probed.get(device.id)
    return not toy.broken and device.health.healthy and (probed is None or probed.healthy)


def _resource(node: Node, host: Host, name: str, planned: PlannedResource) -> Iterator[str]:
    service = host.services.get(name)
    if service is None:
        yield f"{name} is planned and not served"
        return
    toy = node.toys[planned.entry.backend]
    expected = {
        numbered(unit.id, number) if unit.numbered else unit.id: unit
        for unit in units(planned.entry.share.of, planned.offers)
        for number in range(unit.replicas)
    }
    kept = {
        token
        for token, entry in service.inventory.snapshot.entries.items()
        if KEPT in (entry.health.reason or "")
    }
    if kept and not node.kubelet.in_use(name):
        yield f"{name}: {kept} are kept back, and no pod has anything"
    well = {
        token: any(_well(toy, device) for device in unit.devices) and token not in kept
        for token, unit in expected.items()
    }
    listed = {device.id: device for device in node.kubelet.devices(name)}
    for name_, unit in expected.items():
        shown = listed.get(name_)
        if shown is None:
            yield f"{name}: {name_} is not listed"
        elif (shown.health == HEALTHY) is not well[name_]:
            yield f"{name}: {name_} is {shown.health}"
        elif shown.numa_nodes != tuple(node for node in unit.numa_nodes if node >= 0):
            yield f"{name}: {name_} is on {shown.numa_nodes}, not {unit.numa_nodes}"
    yield from _vanished(node, host, name, set(listed) - set(expected))
    healthy = sum(well.values())
    if node.kubelet.allocatable().get(name) != healthy:
        yield f"{name}: {node.kubelet.allocatable().get(name)} allocatable, not {healthy}"
    if node.kubelet.capacity().get(name) != len(listed):
        yield f"{name}: capacity {node.kubelet.capacity().get(name)}, listed {len(listed)}"


def _vanished(node: Node, host: Host, name: str, extra: set[str]) -> Iterator[str]:
    """Tokens without a device: those a pod holds stay, Unhealthy; all others leave."""
    healthy, in_use = node.kubelet.healthy(name), node.kubelet.in_use(name)
    for gone in sorted(extra):
        if gone in healthy:
            yield f"{name}: {gone} does not exist and is Healthy"
        if gone not in in_use:
            yield f"{name}: {gone} does not exist, no pod holds it, and it is listed"
    listed = {device.id for device in node.kubelet.devices(name)}
    for (resource, device), service in node.held.items():
        same = resource == name and service is host.services.get(name)
        if same and device in in_use and device not in listed:
            yield f"{name}: a pod holds {device}, and it is not listed"


def _others(node: Node, host: Host, plan: Plan) -> Iterator[str]:
    """Each service has one server and one stream; there are no other registrations or sockets."""
    entries = {(entry.backend, entry.name) for entry in host.configuration.settings.resources}
    for name, service in host.services.items():
        server = service.registration.server
        streams = node.kubelet.endpoints(name)
        if server is None or streams != (server.path.name,):
            yield f"{name}: streams {streams}, {service.registration.condition}"
        if name not in plan.resources:
            if (service.entry.backend, service.entry.name) not in entries:
                yield f"{name} is served, and no entry is for it"
            yield from _vanished(node, host, name, {device.id for device in node.kubelet.devices(name)})
    for name, count in node.kubelet.allocatable().items():
        if name not in host.services and (count or node.kubelet.endpoints(name)):
            yield f"{name} is not served, {count} allocatable, streams {node.kubelet.endpoints(name)}"
    if host.ready() != (True, ""):
        yield f"not ready: {host.ready()[1]}"
    servers = [service.registration.server for service in host.services.values()]
    wanted = sorted(server.path.name for server in servers if server is not None)
    if (there := sorted(path.name for path in node.kubelet.directory.iterdir() if path.is_socket())) != [
        *wanted,
        KUBELET_SOCKET,
    ]:
        yield f"sockets {there}, not {wanted}"


def _backends(node: Node, host: Host) -> Iterator[str]:
    for name, discovery in host.scanners.items():
        wanted = BackendState.DEGRADED if node.toys[name].broken else BackendState.OK
        if discovery.condition.state is not wanted:
            yield f"backend {name} is {discovery.condition}"
        if discovery.runner.hung > 3 * MAX_ABANDONED:  # one worker each for scans, probes and pods
            yield f"backend {name} has {discovery.runner.hung} hung threads"


def _tasks(node: Node, host: Host) -> Iterator[str]:
    wanted = {
        "kubelet",
        "config",
        "pod resources",
        "clear",
        "config copy",
        "device-info",
        "given",
        "labels",
        "releases",
        "rivals",
        "own sockets",
    } | {f"resource {name}" for name in host.services}
    for name in host.scanners:
        wanted |= {f"scan {name}", f"paths {name}"} | EXTRA_TASKS.get(name, set())
    if odd := host.tasks.named().keys() ^ wanted:
        yield f"tasks {sorted(odd)} too many or too few"
    if node.loose:
        yield f"{len(node.loose)} pods or strangers still wait"


def _document(node: Node, host: Host) -> Iterator[str]:
    document = json.loads(json.dumps(status(host)))
    capacity, allocatable = node.kubelet.capacity(), node.kubelet.allocatable()
    for resource in document["resources"]:
        name = resource["name"]
        shown = {d["id"]: d["health"] for d in resource["devices"]}
        listed = {device.id: device.health for device in node.kubelet.devices(name)}
        if shown != listed:
            yield f"{name}: status and kubelet differ: {set(shown.items()) ^ set(listed.items())}"
        if (resource["capacity"], resource["allocatable"]) != (capacity.get(name), allocatable.get(name)):
            yield f"{name}: status says {resource['allocatable']} of {resource['capacity']}"
        if (resource["state"], resource["streams"], resource["lastError"]) != ("registered", 1, ""):
            yield f"{name}: status says {resource['state']}, {resource['lastError']!r}"
        holders = {d["id"]: d["holder"] and d["holder"]["pod"] for d in resource["devices"] if d["allocated"]}
        pods = {d: a.pod for a in node.kubelet.allocations() if a.resource == name for d in a.device_ids}
        if holders != {device: pod for device, pod in pods.items() if device in shown}:
            yield f"{name}: status says {holders} hold it, and {pods} do"
        unexplained = [d["id"] for d in resource["devices"] if (d["health"] == HEALTHY) is bool(d["reason"])]
        if unexplained:
            yield f"{name}: {unexplained} are unhealthy without a reason, or healthy with one"
    if not document["kubelet"]["podResources"]["known"]:
        yield f"status says: {document['kubelet']['podResources']['reason']}"
    if sorted(r["name"] for r in document["resources"]) != sorted(host.services):
        yield "status does not show every resource"


async def pods_run(node: Node) -> list[str]:
    """A pod that asks for one free device of each resource gets exactly that one."""
    wrong = []
    for name, service in sorted(node.host.services.items() if node.host is not None else ()):
        if not node.kubelet.healthy(name) - node.kubelet.in_use(name):
            continue
        try:
            allocation = await _probed(node, name)
        except UnexpectedAdmissionError as error:
            wrong.append(f"{name}: a pod is rejected: {error}")
            continue
        (chosen,) = allocation.device_ids
        devices = ",".join(device for _, device in service.inventory.allocations.got(chosen))
        if not devices or dict(allocation.response.envs) != {"DEVICES": devices}:
            wrong.append(f"{name}: a pod for {chosen} got {dict(allocation.response.envs)}")
    return wrong + node.complaints


async def _probed(node: Node, resource: str) -> Allocation:
    """What a pod gets, which then ends. Retries, because the short deadlines may pass on a busy machine.

    Raises:
        UnexpectedAdmissionError: it is rejected.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE
    while True:
        try:
            allocation = await node.kubelet.admit("probe", "main", resource, 1)
            await node.kubelet.start_container("probe", "main")
        except (UnexpectedAdmissionError, ContainerStartError) as error:
            if LATE not in str(error) or loop.time() > end:
                raise
            await asyncio.sleep(CALM)
        else:
            return allocation
        finally:
            node.kubelet.release("probe")


def footprint() -> Mapping[str, int]:
    """The descriptors of this process, by their targets, and its worker threads."""
    kinds: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            kinds[re.sub(r"\d+", "", os.readlink(entry))] += 1  # noqa: PTH115 - some are no paths
        except OSError:
            continue  # the descriptor of this very listing
    kinds.update(
        f"thread {thread.name}"
        for thread in threading.enumerate()
        if thread.name.endswith(("-discover", "-probe", "-serve", "-watch", "reload"))
    )
    return kinds


async def leftovers(node: Node, before: Mapping[str, int]) -> list[str]:
    """Everything was ended: tasks, threads, sockets and descriptors that are still there."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE
    while (wrong := list(_left(node, before))) and loop.time() < end:
        await asyncio.sleep(0.02)
        gc.collect()  # gRPC closes a channel's descriptors when there is no reference to it
    return wrong + node.complaints


def _left(node: Node, before: Mapping[str, int]) -> Iterator[str]:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        yield f"tasks left: {sorted(_names(tasks))}"
    if node.sockets():
        yield f"sockets left: {node.sockets()}"
    more = {kind: (before.get(kind, 0), n) for kind, n in footprint().items() if n > before.get(kind, 0)}
    if more:
        yield f"descriptors or threads left (before, after): {more}"


def _names(tasks: Iterable[asyncio.Task[object]]) -> Iterator[str]:
    for task in tasks:
        yield f"{task.get_name()} {task.get_coro()}"
