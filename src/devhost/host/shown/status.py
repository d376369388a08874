"""The status document of a host, made on request."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from devhost import __version__
from devhost.allocation.allocations import Holding
from devhost.allocation.inventory import Entry, Snapshot
from devhost.backend.files import digest
from devhost.backend.model import Holder
from devhost.discovery.scanner import BackendNow
from devhost.host.node_labels import LabelFile
from devhost.planning.claims import Key, users
from devhost.planning.settings import Of
from devhost.planning.tokens import unit_of
from devhost.telemetry.document import (
    BackendStatus,
    CopyStatus,
    DepartedStatus,
    DeviceStatus,
    HeldStatus,
    HostStatus,
    JudgedStatus,
    KubeletStatus,
    LabelsStatus,
    MemberStatus,
    ObserverStatus,
    PlanRefusal,
    PodResourcesStatus,
    ProblemStatus,
    ProvisioningStatus,
    RefusedDevice,
    Reload,
    ResourceStatus,
    StatusDocument,
    VerdictStatus,
    held_by,
    holder_status,
    json_line,
)

from .now import Now, ObserverNow, PodsNow, ResourceNow
from .orphans import Orphan, orphans
from .problems import problems
from .shortages import refusal_reason

if TYPE_CHECKING:
    from devhost.discovery.maintenance.judge import Applied

NOT_HELD: tuple[Sequence[Key], Holder | None] = ((), None)


class Collecting(Protocol):
    """A host."""

    def now(self) -> Now:
        """Everything that is true now."""


def status(host: Collecting) -> dict[str, Any]:
    """The current state of the host, as its JSON."""
    found: dict[str, Any] = json.loads(json_line(captured(host)()))
    return found


def captured(host: Collecting) -> Callable[[], StatusDocument]:
    """Takes the current state of the host; the result makes the document of it, on any thread."""
    return document(host.now())


def document(host: Now) -> Callable[[], StatusDocument]:
    """The document; the result adds the rows of devices, on any thread: 100 000 take about a second."""
    reload = host.last_reload
    served = sorted(host.resources.items())
    rows = [_devices_of(service, host.holdings.get(name)) for name, service in served]
    document = StatusDocument(
        devhost=HostStatus(
            version=__version__,
            pid=os.getpid(),
            started_at=_iso(host.started),
            root=str(host.root.absolute()),
            config=str(host.configuration.file),
            config_digest=digest(host.configuration.read_from),
            generation=host.generation,
            last_reload=Reload(_iso(reload.at), "rejected" if reload.complaints else "ok", reload.complaints),
            copy=CopyStatus(str(host.configuration.copied.file), host.configuration.copied.at)
            if host.configuration.copied
            else None,
        ),
        kubelet=KubeletStatus(
            dir=str(host.kubelet.directory),
            socket="present" if host.kubelet.identity else "absent",
            pod_resources=_pod_resources(host.pod_resources),
        ),
        entries=host.shortages.outcomes.described(),
        resources=[_resource(service) for _, service in served],
        held=[_orphan(one) for one in orphans(host)],
        backends=[
            _backend(
                name,
                d,
                _provisioning(host, name),
                host.labels.get(name),
                host.released.get(name, ""),
            )
            for name, d in sorted(host.backends.items())
        ]
        + [_not_installed(name, hint, reload.at) for name, hint in host.settings.not_installed().items()],
        observers=[_observer(observer) for observer in host.observers],
        verdicts=[_verdict(one) for one in host.verdicts.applied()],
        refusals=[
            PlanRefusal(
                backend=refusal.backend,
                device=refusal.device,
                kind=refusal.kind.value,
                reason=refusal_reason(refusal),
                held_by=held_by(refusal.held_by),
            )
            for refusal in host.plan.refusals
        ],
        dra=host.dra.report(),
        problems=[
            ProblemStatus(
                kind=problem.kind,
                subject=problem.subject,
                reason=problem.reason,
                since=_iso(problem.since) if problem.since else None,
                count=problem.count,
                held_by=held_by(problem.held_by),
            )
            for problem in problems(host).shown
        ],
    )

    def made() -> StatusDocument:
        listed = zip(document.resources, rows, strict=True)
        return replace(document, resources=[replace(one, devices=devices()) for one, devices in listed])

    return made


def holders(now: Now) -> Iterator[tuple[str, str, Holder | None]]:
    """Who holds what: resource, device and container, each once.

    These are devices, not tokens: a container with two shares of one device holds one. If the devices of a
    token are unknown, the name in the token is used.
    """
    for resource, holding in now.holdings.items():
        found = {
            (device, group.holder)
            for group in holding.groups
            for device in {device for _, device in group.keys} or set(map(unit_of, group.tokens))
        }
        for device, holder in sorted(found, key=str):
            yield resource, device, holder


def _orphan(one: Orphan) -> HeldStatus:
    return HeldStatus(
        resource=one.resource,
        id=one.token,
        devices=one.devices,
        holder=holder_status(one.holder),
        reason=one.reason.text,
        held_by=held_by(one.reason.held_by),
    )


def _pod_resources(poller: PodsNow) -> PodResourcesStatus:
    condition = poller.condition
    return PodResourcesStatus(
        socket=str(poller.socket),
        known=not condition.reason,
        reason=condition.reason,
        listed=_iso(condition.last) if condition.last else None,
    )


def _resource(service: ResourceNow) -> ResourceStatus:
    snapshot, condition = service.snapshot, service.condition
    return ResourceStatus(
        name=service.name,
        backend=service.entry.backend,
        entry=f"resources[{service.entry.index}]",
        capacity=len(snapshot.entries),
        allocatable=snapshot.healthy,
        revision=snapshot.revision,
        socket=service.socket,
        state=condition.state.value,
        streams=service.streams,
        registrations=condition.registrations,
        last_registration=_iso(condition.last) if condition.last else None,
        last_error=condition.error,
        devices=[],
        together=[] if service.entry.share.of == Of.EACH else _together(snapshot),
        departed=[
            DepartedStatus(device=device, reason=reason.text, at=_iso(at), held_by=held_by(reason.held_by))
            for device, reason, at in service.departed
        ],
    )


def _devices_of(service: ResourceNow, holding: Holding | None) -> Callable[[], list[DeviceStatus]]:
    """The tokens of a resource; the result makes their rows, on any thread."""

    def row(entry: Entry, held: Mapping[str, tuple[Sequence[Key], Holder | None]]) -> DeviceStatus:
        given, holder = held.get(entry.token, NOT_HELD)
        return DeviceStatus(
            id=entry.token,
            device=entry.unit,
            health="Healthy" if entry.health.healthy else "Unhealthy",
            reason=entry.health.reason or "",
            since=_iso(entry.since),
            numa_nodes=entry.numa_nodes,
            allocated=entry.token in held,
            given=[device for _, device in given],
            holder=holder_status(holder),
            held_by=held_by(entry.held_by),
        )

    def rows() -> list[DeviceStatus]:
        held = holding.leased() if holding else {}
        return [row(entry, held) for entry in service.snapshot.entries.values()]

    return rows


def _together(snapshot: Snapshot) -> list[MemberStatus]:
    """The devices behind tokens that represent several; all tokens of one unit have the same ones."""
    units = {entry.unit: entry for entry in snapshot.entries.values() if entry.gone_at is None}
    return [
        MemberStatus(
            device=member.device.id,
            health="Healthy" if member.health.healthy else "Unhealthy",
            reason=member.health.reason or "",
            numa_nodes=member.device.numa_nodes,
        )
        for entry in units.values()
        for member in entry.members
    ]


def _backend(
    name: str,
    scanner: BackendNow,
    provisioning: ProvisioningStatus | None,
    labels: LabelFile | None,
    released: str,
) -> BackendStatus:
    condition = scanner.condition
    return BackendStatus(
        name=name,
        state="released" if released else condition.state.value,
        reason=released or condition.reason,
        since=_iso(condition.since),
        devices=len(scanner.devices),
        last_discovery=_iso(condition.last_scan) if condition.last_scan else None,
        last_discovery_seconds=condition.duration,
        refused_devices=[RefusedDevice(one.device, one.reason) for one in condition.refused],
        provisioning=provisioning,
        labels=LabelsStatus(str(labels.file), labels.count, labels.reason) if labels else None,
    )


def _not_installed(name: str, hint: str, since: float) -> BackendStatus:
    return BackendStatus(
        name=name,
        state="not installed",
        reason=hint,
        since=_iso(since),
        devices=0,
        last_discovery=None,
        last_discovery_seconds=None,
        refused_devices=[],
        provisioning=None,
        labels=None,
    )


def _provisioning(host: Now, name: str) -> ProvisioningStatus | None:
    if (condition := host.provisioning.get(name)) is None:
        return None
    return ProvisioningStatus(
        state=condition.state.value,
        reason=condition.reason,
        since=_iso(condition.since),
        held_by=held_by(users(condition.held, host.held)),
    )


def _observer(observer: ObserverNow) -> ObserverStatus:
    plugin, condition = observer.plugin, observer.condition
    return ObserverStatus(
        name=plugin.name,
        origin=plugin.origin,
        version=plugin.version,
        hooks=plugin.hooks,
        state=condition.state.value,
        reason=condition.reason,
        since=_iso(condition.since),
        calls=condition.calls,
        failures=condition.failures,
        waiting=observer.waiting,
        dropped=condition.dropped,
    )


def _verdict(applied: Applied) -> VerdictStatus:
    verdict = applied.verdict
    return VerdictStatus(
        file=verdict.file,
        kind=verdict.kind.value,
        by=verdict.by,
        reason=verdict.reason,
        since=_iso(verdict.since),
        until=None if verdict.until is None else _iso(verdict.until),
        devices=[JudgedStatus(*one) for one in applied.devices],
    )


@lru_cache(1024)  # devices that appeared together have the same times
def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
