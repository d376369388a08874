"""``devhost discover``: lists this machine's devices and the resources that select them, without a
kubelet."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from devhost.backend import MissingDriver
from devhost.backend.errors import UsageError
from devhost.backend.files import missing_host_reason
from devhost.backend.model import Device, Health, unhealthy
from devhost.backend.sysfs import natural
from devhost.backend.where import show
from devhost.config.loader import load_or_everything
from devhost.config.root_directory import check_root
from devhost.discovery.health import worst
from devhost.host.shown.entries import EntryState, wanted
from devhost.planning.plan import Offer, PlannedResource, Refusal
from devhost.planning.settings import Of
from devhost.telemetry.document import members
from devhost.telemetry.tables import with_holders

from . import options as shared
from .options import VALUE, cut, table
from .running_host import ReportedHealth, View, held_by_key, view
from .scan_once import ScanResult

SHOWN_REFUSALS = 20
"""Refusals printed without ``--all``."""

OTHER_CONFIG = "the devhost on this node uses another configuration: HEALTH is the result of this probe"
"""Printed if the health that the running devhost reports belongs to another configuration."""


@click.command(
    "discover",
    help="""
    Scans for devices once and shows which resource gets which. Needs neither a kubelet nor root.

    RESOURCE limits the output to one resource. Without a configuration, every device of every installed
    backend is listed. Exits with 1 if a backend failed.

    HEALTH is the result of this scan and probe, and of verdicts. If a devhost runs on this node with the same
    root, or --status-socket names one, the table also shows who holds a device. With the same configuration,
    HEALTH is as it reports it to the kubelet.
    """,
)
@click.argument("resource", required=False)
@shared.config
@shared.root
@shared.status_socket
@shared.output
@click.option("--all", "everything", is_flag=True, help="Also list the devices that no resource selects.")
def command(
    resource: str | None,
    config: Path | None,
    root: Path,
    status_socket: Path | None,
    output: str,
    everything: bool,
) -> None:
    check_root(root)
    loaded = load_or_everything(config)
    shared.warn_of(loaded.catalog.refused)
    seen = asyncio.run(view(loaded, root, status_socket))
    found = seen.found
    names = _chosen(found, resource)
    if output == "json":
        click.echo(json.dumps(_document(seen, names), indent=2, default=members))
    else:
        _print(seen, names, everything or not found.settings.resources, resource)
        if not (seen.no_answer or seen.same_config) and found.settings.resources:
            click.echo(f"devhost: {OTHER_CONFIG}", err=True)
    if seen.refused:
        click.echo(f"devhost: {seen.warning()}", err=True)
    reasons = [d.condition.reason for d in found.scanners.values() if d.condition.reason]
    if output == "table" and not (reasons or found.devices()) and (nothing := missing_host_reason(root)):
        click.echo(f"devhost: {nothing}", err=True)
    for reason in reasons:
        click.echo(f"devhost: {reason}", err=True)
    if reasons:
        sys.exit(1)


def _chosen(found: ScanResult, resource: str | None) -> list[str]:
    if resource is None:
        return sorted(found.plan.resources, key=natural)
    if resource in found.plan.resources:
        return [resource]
    if resource in found.resources():
        return []
    if Path(resource).is_file():
        hint = f"run `devhost discover --config {resource}` to use it as the configuration"
        raise UsageError(f"{resource} is a file, not the name of a resource", hint)
    raise unknown_resource(found, resource)


def unknown_resource(found: ScanResult, name: str) -> UsageError:
    known = ", ".join(found.resources()) or "none"
    return UsageError(f"no resource is called {name!r}", f"known resources: {known}")


def _print(seen: View, names: list[str], everything: bool, resource: str | None) -> None:
    found = seen.found
    holders = () if seen.no_answer else ("HELD BY",)
    rows = [
        (resource.name, *_side(found, resource), offer.device.id, *_shown(seen, resource, offer))
        for resource in (found.plan.resources[name] for name in names)
        for offer in _offers(resource)
    ]
    if found.settings.resources:
        side = ("SERVE",) if found.settings.dra_driver else ()
        columns = ("RESOURCE", *side, "DEVICE", "HEALTH", "NUMA", "HANDED OUT", *holders)
        click.echo(table(*_with_reasons(columns, rows)))
    _print_empty(found, resource)
    refusals = _refusals(found)
    for refusal in refusals if everything else refusals[:SHOWN_REFUSALS]:
        entry = found.settings.resources[refusal.entry]
        why = with_holders(refusal.reason, refusal.held_by)
        click.echo(f"refused: {refusal.device} for {entry.name}: {why}")
    if len(refusals) > SHOWN_REFUSALS and not everything:
        click.echo(f"refused: {len(refusals) - SHOWN_REFUSALS} more (--all lists them)")
    for name, scanner in found.scanners.items():
        for flawed in sorted(scanner.condition.refused, key=lambda flawed: natural(flawed.device)):
            click.echo(f"refused: {flawed.device} of backend {name}: {flawed.reason}")
    left = _unmatched(found)
    if everything:
        if found.settings.resources:
            click.echo("")
        click.echo(
            table(
                ("BACKEND", "DEVICE WITHOUT RESOURCE", "HEALTH", "NUMA", *holders, "REASON, ATTRIBUTES"),
                [(name, device.id, *_unclaimed(seen, name, device)) for name, device in left],
            )
        )
    elif left:
        count = "1 device matches" if len(left) == 1 else f"{len(left)} devices match"
        click.echo(f"{count} no resource (--all lists them, `devhost explain DEVICE` shows why)")


def _side(found: ScanResult, resource: PlannedResource) -> tuple[str, ...]:
    """The cell with the side that a resource is on; none if all are on the same."""
    return (resource.entry.serve.value,) if found.settings.dra_driver else ()


def _print_empty(found: ScanResult, resource: str | None) -> None:
    """Prints why each entry lacks devices; only for ``resource`` if it is given."""
    outcomes = found.entries()
    for outcome in outcomes.all():
        if resource is not None and resource not in (outcome.entry.name, *outcome.resources):
            continue
        absent = " (optional: not on this node)" if outcome.state is EntryState.ABSENT else ""
        why = with_holders(outcome.reason, outcome.held_by) or outcomes.remarks().get(outcome.entry.index, "")
        if why:
            click.echo(f"{outcome.entry.name}: {why}{absent}")
    for one in found.skipped(resource):
        click.echo(f"{one['name']}: {one['reason']} (optional: not served)")
    for name, scanner in found.scanners.items() if resource is None else ():
        entries = [entry for entry in found.settings.resources if entry.backend == name]
        for lacking in scanner.condition.missing_drivers:
            if found.settings.resources and not wanted(lacking, entries):
                continue
            click.echo(without_driver(name, lacking))


def without_driver(backend: str, lacking: MissingDriver) -> str:
    """One line about hardware without its driver, or about what an option needs and the node lacks."""
    what = "without driver" if lacking.makes_device else "lacking"
    return f"{what}: {lacking.subject} of backend {backend}: {lacking.reason}"


def _offers(resource: PlannedResource) -> list[Offer]:
    return sorted(resource.offers, key=lambda offer: natural(offer.device.id))


def _refusals(found: ScanResult) -> list[Refusal]:
    return sorted(found.plan.refusals, key=lambda refusal: (refusal.entry, natural(refusal.device)))


def _unmatched(found: ScanResult) -> list[tuple[str, Device]]:
    taken = {
        (resource.entry.backend, offer.device.id)
        for resource in found.plan.resources.values()
        for offer in resource.offers
    }
    refused = {(refusal.backend, refusal.device) for refusal in found.plan.refusals}
    return [item for item in found.devices() if (item[0], item[1].id) not in taken | refused]


def _shown(seen: View, resource: PlannedResource, offer: Offer) -> tuple[str, ...]:
    """The cells of a device in a resource: health, NUMA nodes, number of replicas, holders, and reason."""
    entry, device = resource.entry, offer.device
    hidden = " (not sent)" if device.numa_nodes and not entry.topology else ""
    together = ", all together" if entry.share.of == Of.ALL else ""
    if offer.of is not None:
        together = f", as a member of {offer.of.unit}"
    most = entry.share.max_per_container
    limit = "" if most is None else f", at most {most} per container"
    health, reason = health_cells(device, *_verdict(seen, resource, offer), is_offered=True)
    cells = health, f"{_numa(device)}{hidden}", f"{offer.replicas}{together}{limit}"
    return (*cells, *_held_by(seen, entry.backend, device), reason)


def _health(seen: View, resource: PlannedResource, offer: Offer) -> Health:
    """The health of a device in a resource by this scan: it counts, too, whether its unit is complete."""
    own = seen.found.health_in(resource.entry, offer.device)
    return worst(own, unhealthy(offer.of.flaw)) if offer.of and offer.of.flaw else own


def _verdict(seen: View, resource: PlannedResource, offer: Offer) -> ReportedHealth:
    """The health of a device in a resource, as reported to the kubelet if that is known."""
    own, device = _health(seen, resource, offer), offer.device
    running = seen.health(resource.name, resource.entry.backend, device) if seen.same_config else None
    if running is None:
        return ReportedHealth(own)
    if running.health.healthy and not own.healthy:  # the running devhost has not probed since
        return ReportedHealth(running.health, f"Unhealthy when probed now: {own.reason}")
    return running


def _unclaimed(seen: View, backend: str, device: Device) -> tuple[str, ...]:
    """The cells of a device that no resource has: health, NUMA nodes, holders, reason and attributes."""
    health, reason = health_cells(device, seen.found.health(backend, device))
    last = "; ".join(filter(None, (reason, _attributes(device))))
    return health, _numa(device), *_held_by(seen, backend, device), last


def _held_by(seen: View, backend: str, device: Device) -> tuple[str, ...]:
    return () if seen.no_answer else (seen.held_by(backend, device),)


def _numa(device: Device) -> str:
    return ",".join(map(str, device.numa_nodes))


def withheld(device: Device, *, is_offered: bool) -> str:
    """Why a device is withheld; empty if it is not."""
    if is_offered and device.divided:
        return ""
    return device.withheld or ("" if is_offered else device.reserved) or ""


def _with_reasons(
    columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The columns and rows of a table whose cells may end in a reason, without it if there is none."""
    shown = [row if row[-1] else row[:-1] for row in rows]
    return (*columns, "REASON") if any(row[-1] for row in rows) else columns, shown


def health_cells(
    device: Device, health: Health, remark: str = "", *, is_offered: bool = False
) -> tuple[str, str]:
    """The health of a device, and its reason, a remark, or why it is withheld.

    ``remark`` is shown if it is healthy. ``is_offered`` is whether a resource has it, perhaps because of its
    special purpose.
    """
    if reason := withheld(device, is_offered=is_offered):
        return "Withheld", reason
    if health.healthy:
        return "Healthy", remark
    return "Unhealthy", health.reason or ""


def health_text(device: Device, health: Health, remark: str = "", *, is_offered: bool = False) -> str:
    """The same as text."""
    state, reason = health_cells(device, health, remark, is_offered=is_offered)
    if not reason:
        return state
    return f"{state} ({reason})" if state == "Healthy" else f"{state}: {reason}"


def _attributes(device: Device) -> str:
    return " ".join(f"{key}={cut(show(value), VALUE)}" for key, value in sorted(device.attributes.items()))


def _document(seen: View, names: list[str]) -> dict[str, object]:
    found = seen.found
    resources = [found.plan.resources[name] for name in names]
    return {
        "entries": found.entries().described(),
        "skipped": found.skipped(),
        "resources": [
            {
                "name": resource.name,
                "backend": resource.entry.backend,
                "entry": f"resources[{resource.entry.index}]",
                "serve": resource.entry.serve.value,
                "of": str(resource.entry.share.of),
                "maxPerContainer": resource.entry.share.max_per_container,
                "topology": resource.entry.topology,
                "permissions": resource.entry.permissions or None,
                "devices": [
                    {
                        **as_json(
                            seen,
                            resource.entry.backend,
                            offer.device,
                            _verdict(seen, resource, offer).health,
                            is_offered=True,
                        ),
                        "probe": health_as_json(_health(seen, resource, offer)),
                        "replicas": offer.replicas,
                    }
                    for offer in _offers(resource)
                ],
            }
            for resource in resources
        ],
        "refusals": [
            {
                "backend": refusal.backend,
                "device": refusal.device,
                "entry": f"resources[{refusal.entry}]",
                "kind": refusal.kind.value,
                "reason": refusal.reason,
                **held_by_key(refusal.held_by),
            }
            for refusal in _refusals(found)
        ],
        "unmatched": [
            as_json(seen, name, device, found.health(name, device)) for name, device in _unmatched(found)
        ],
        "backends": [
            {
                "name": name,
                "state": scanner.condition.state.value,
                "reason": scanner.condition.reason,
                "devices": len(scanner.devices),
                "missingDrivers": [
                    {"hardware": lacking.subject, "reason": lacking.reason}
                    for lacking in scanner.condition.missing_drivers
                ],
                "refusedDevices": [asdict(flawed) for flawed in scanner.condition.refused],
            }
            for name, scanner in found.scanners.items()
        ],
    }


def as_json(
    seen: View, backend: str, device: Device, health: Health, *, is_offered: bool = False
) -> dict[str, object]:
    """A device as the JSON outputs show it.

    ``probe`` is what this command found. ``running`` is what the running devhost reports, by resource, and
    ``heldBy`` the containers and claims that it names; both are ``None`` if no running devhost answers.
    ``is_offered`` is whether a resource has the device.
    """
    running = {name: _reported_as_json(one) for name, one in seen.everywhere(backend, device).items()}
    return {
        "backend": backend,
        "id": device.id,
        **health_as_json(health),
        "probe": health_as_json(seen.found.health(backend, device)),
        "running": None if seen.no_answer else running,
        "heldBy": seen.as_json(backend, device),
        "unusableFor": dict(device.unusable_for),
        "withheld": withheld(device, is_offered=is_offered),
        "numaNodes": list(device.numa_nodes),
        "pciePath": list(device.pcie_path),
        "attributes": {key: _plain(value) for key, value in sorted(device.attributes.items())},
        "leftOut": sorted(device.left_out),
        "claims": sorted(device.claims),
        "partOf": sorted(device.part_of),
    }


def health_as_json(health: Health) -> dict[str, str]:
    return {"health": "Healthy" if health.healthy else "Unhealthy", "reason": health.reason or ""}


def _reported_as_json(reported: ReportedHealth) -> dict[str, str]:
    return health_as_json(reported.health) | ({"remark": reported.remark} if reported.remark else {})


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
