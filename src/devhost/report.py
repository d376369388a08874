"""The status document of a host: what is known, put together when somebody asks."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from . import __version__
from .discovery import Discovery
from .host import Host
from .service import ResourceService
from .telemetry.document import (
    BackendStatus,
    DeviceStatus,
    PlanRefusal,
    RefusedDevice,
    ResourceStatus,
    StatusDocument,
)

_STARTED = datetime.now(UTC)


def status(host: Host) -> StatusDocument:
    """Describes the host as it is now."""
    reload = host.last_reload
    return {
        "devhost": {
            "version": __version__,
            "pid": os.getpid(),
            "startedAt": _iso(_STARTED.timestamp()),
            "config": str(host.config),
            "generation": host.generation,
            "lastReload": {
                "at": _iso(reload.at),
                "result": "rejected" if reload.complaints else "ok",
                "complaints": list(reload.complaints),
            },
        },
        "kubelet": {
            "dir": str(host.kubelet.directory),
            "socket": "present" if host.kubelet.identity else "absent",
        },
        "resources": [_resource(service) for _, service in sorted(host.services.items())],
        "backends": [_backend(name, d) for name, d in sorted(host.discoveries.items())],
        "refusals": [
            PlanRefusal(
                backend=refusal.backend,
                device=refusal.device,
                reason=f"resources[{refusal.entry}]: {refusal.reason}",
            )
            for refusal in host.plan.refusals
        ],
    }


def _resource(service: ResourceService) -> ResourceStatus:
    snapshot = service.inventory.snapshot
    standing = service.registration.standing
    server = service.registration.server
    return {
        "name": service.name,
        "backend": service.entry.backend,
        "entry": f"resources[{service.entry.index}]",
        "capacity": len(snapshot.entries),
        "allocatable": snapshot.healthy,
        "revision": snapshot.revision,
        "socket": server.path.name if server else None,
        "state": standing.state.value,
        "streams": service.registration.streams,
        "registrations": standing.registrations,
        "lastRegistration": _iso(standing.last) if standing.last else None,
        "lastError": standing.error,
        "devices": [
            DeviceStatus(
                id=entry.token,
                device=entry.device.id,
                health="Healthy" if entry.health.healthy else "Unhealthy",
                reason=entry.health.reason,
                since=_iso(entry.since),
                numaNodes=list(entry.device.numa_nodes),
                allocated=service.inventory.is_allocated(entry.token),
            )
            for entry in snapshot.entries.values()
        ],
    }


def _backend(name: str, discovery: Discovery) -> BackendStatus:
    condition = discovery.condition
    return {
        "name": name,
        "state": condition.state.value,
        "reason": condition.reason,
        "since": _iso(condition.since),
        "devices": len(discovery.devices),
        "lastDiscovery": _iso(condition.last_look) if condition.last_look else None,
        "lastDiscoverySeconds": condition.seconds,
        "refusedDevices": [RefusedDevice(device=r.device, reason=r.reason) for r in condition.refused],
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
