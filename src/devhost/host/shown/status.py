"""The status document of a host, made on request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from devhost import __version__
from devhost.allocation.allocations import Holding
from devhost.allocation.inventory import Entry, Snapshot
from devhost.backend.files import digest
from devhost.backend.model import Holder
from devhost.discovery.scanner import BackendNow
from devhost.planning.claims import Key, users
from devhost.planning.settings import Of
from devhost.runtime.log import iso
from devhost.telemetry.document import (
    BackendStatus,
    CopyStatus,
    DepartedStatus,
    DeviceStatus,
    DraStatus,
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
)

from .entries import place
from .now import Now, ObserverNow, PodsNow, ResourceNow
from .problems import problems
from .shortages import Orphan, orphans, refusal_reason

if TYPE_CHECKING:
    from devhost.host.host import Host

NOT_HELD: tuple[Sequence[Key], Holder | None] = ((), None)


def captured(host: Host) -> Callable[[], StatusDocument]:
    """Takes the current state of the host; the result makes the document of it, on any thread."""
    return document(host.now())


def document(now: Now) -> Callable[[], StatusDocument]:
    """The document; the result adds rows of devices and DRA, on any thread: 100 000 take about a second."""
    reload = now.last_reload
    served = sorted(now.resources.items())
    rows = [_devices_of(service, now.holdings.get(name)) for name, service in served]
    document = StatusDocument(
        devhost=HostStatus(
            version=__version__,
            pid=os.getpid(),
            started_at=iso(now.started),
            root=str(now.root.absolute()),
            config=str(now.configuration.file),
            config_digest=digest(now.configuration.read_from),
            generation=now.generation,
            last_reload=Reload(iso(reload.at), "rejected" if reload.complaints else "ok", reload.complaints),
            copy=CopyStatus(str(now.configuration.copied.file), now.configuration.copied.at)
            if now.configuration.copied
            else None,
        ),
        kubelet=KubeletStatus(
            dir=str(now.kubelet.directory),
            socket="present" if now.kubelet.identity else "absent",
            pod_resources=_pod_resources(now.pod_resources),
        ),
        entries=now.shortages.outcomes.described(),
        resources=[_resource(service, now) for _, service in served],
        held=[_orphan(one) for one in orphans(now)],
        backends=[
            *(_backend(name, one, now) for name, one in sorted(now.backends.items())),
            *(_not_installed(name, hint, reload.at) for name, hint in now.settings.not_installed().items()),
        ],
        observers=[_observer(observer) for observer in now.observers],
        verdicts=list(_verdicts(now)),
        refusals=[
            PlanRefusal(
                backend=refusal.backend,
                device=refusal.device,
                kind=refusal.kind.value,
                reason=refusal_reason(refusal),
                held_by=held_by(refusal.held_by),
            )
            for refusal in now.plan.refusals
        ],
        dra=None,
        problems=[
            ProblemStatus(
                kind=problem.kind,
                subject=problem.subject,
                reason=problem.reason,
                since=iso(problem.since) if problem.since else None,
                count=problem.count,
                held_by=held_by(problem.held_by),
            )
            for problem in problems(now).shown
        ],
    )

    def made() -> StatusDocument:
        listed = zip(document.resources, rows, strict=True)
        resources = [replace(one, devices=devices()) for one, devices in listed]
        return replace(document, resources=resources, dra=_dra(now))

    return made


def _dra(now: Now) -> DraStatus | None:
    if now.dra is None or not now.dra.drivers:
        return None
    from devhost.dra.now import report  # only where DRA is used

    return report(now.dra)


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
        listed=iso(condition.last) if condition.last else None,
    )


def _resource(service: ResourceNow, now: Now) -> ResourceStatus:
    snapshot, condition = service.snapshot, service.condition
    removals = now.memory.removals.get(service.name)
    return ResourceStatus(
        name=service.name,
        backend=service.entry.backend,
        entry=place(service.entry),
        capacity=len(snapshot.entries),
        allocatable=snapshot.healthy,
        revision=snapshot.revision,
        socket=service.socket,
        state=condition.state.value,
        streams=service.streams,
        registrations=condition.registrations,
        last_registration=iso(condition.last) if condition.last else None,
        last_error=condition.error,
        devices=[],
        together=[] if service.entry.share.of == Of.EACH else _together(snapshot),
        departed=[
            DepartedStatus(device=device, reason=reason.text, at=iso(at), held_by=held_by(reason.held_by))
            for device, reason, at in (removals.recent(now.at) if removals else ())
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
            since=iso(entry.since),
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


def _backend(name: str, scanner: BackendNow, now: Now) -> BackendStatus:
    condition, labels, released = scanner.condition, now.labels.get(name), now.released.get(name, "")
    return BackendStatus(
        name=name,
        state="released" if released else condition.state.value,
        reason=released or condition.reason,
        since=iso(condition.since),
        devices=len(scanner.devices),
        last_discovery=iso(condition.last_scan) if condition.last_scan else None,
        last_discovery_seconds=condition.duration,
        refused_devices=[RefusedDevice(one.device, one.reason) for one in condition.refused],
        provisioning=_provisioning(now, name),
        labels=LabelsStatus(str(labels.file), labels.count, labels.reason) if labels else None,
    )


def _not_installed(name: str, hint: str, since: float) -> BackendStatus:
    return BackendStatus(
        name=name,
        state="not installed",
        reason=hint,
        since=iso(since),
        devices=0,
        last_discovery=None,
        last_discovery_seconds=None,
        refused_devices=[],
        provisioning=None,
        labels=None,
    )


def _provisioning(now: Now, name: str) -> ProvisioningStatus | None:
    if (condition := now.provisioning.get(name)) is None:
        return None
    return ProvisioningStatus(
        state=condition.state.value,
        reason=condition.reason,
        since=iso(condition.since),
        held_by=held_by(users(condition.held, now.held)),
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
        since=iso(condition.since),
        calls=condition.calls,
        failures=condition.failures,
        waiting=observer.waiting,
        dropped=condition.dropped,
    )


def _verdicts(now: Now) -> Iterator[VerdictStatus]:
    if not now.verdicts.in_force:
        return
    from devhost.discovery.verdicts import matched  # most nodes have no verdicts

    for one in matched(now.backends, now.verdicts.in_force, now.verdicts.ends):
        verdict = one.verdict
        yield VerdictStatus(
            file=verdict.file,
            kind=verdict.kind.value,
            by=verdict.by,
            reason=verdict.reason,
            since=iso(verdict.since),
            until=None if verdict.until is None else iso(verdict.until),
            devices=[JudgedStatus(*each) for each in one.devices],
        )
