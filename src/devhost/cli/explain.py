"""``devhost explain``: shows for one device what each entry of the configuration decides, and why."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from devhost.backend import MissingDriver
from devhost.backend.errors import AllocationError, UsageError, counted
from devhost.backend.model import HEALTHY, Device, Edits, Health
from devhost.backend.sysfs import natural
from devhost.backend.where import objection, show
from devhost.config.loader import load_or_everything
from devhost.config.root_directory import check_root
from devhost.config.schema import given, plain
from devhost.discovery.health import in_resource, worst
from devhost.discovery.named import Match, alike, named
from devhost.discovery.unserved import resolved, why_unserved
from devhost.host.shown.entries import place, wanted
from devhost.planning.affinity import unproven
from devhost.planning.affinity.topology import Candidate, Topology, between
from devhost.planning.plan import EntryMatch, as_one, explain, units
from devhost.planning.settings import Of, ResourceSettings, Serve
from devhost.runtime.log import printable
from devhost.telemetry.document import EntryStatus, members
from devhost.telemetry.tables import reason, with_holders

from . import options as shared
from .discover import as_json, health_text, unknown_resource, without_driver
from .options import CELL, cut
from .running_host import Published, View, held_by_key, view
from .scan_once import ScanResult


@click.command(
    "explain",
    help="""
    Shows why DEVICE is offered or not: its attributes, and the decision of each resource.

    DEVICE is an id as printed by `devhost discover`, or the value of an attribute that identifies the
    device: for example a device node (/dev/fuse), a serial number, or a PCI address in upper or lower case.

    Hardware without its driver is shown with what is missing. For anything else that the kernel knows by this
    name, such as a network interface, the error explains why no backend lists it. For the name of a resource,
    each of its entries is shown with the devices that it just misses.

    If a choice among linked devices is not always proven best, the last line of their entry shows from which
    number of devices on.

    Its health is the result of this scan and probe, and of verdicts. If a devhost runs on this node with the
    same root, or --status-socket names one, the output also shows where that devhost reports a different
    health, and which containers hold the device. What a container holds, no other resource gets. If this
    cannot be taken into account, the last line gives the reason.
    """,
)
@click.argument("device")
@shared.config
@shared.root
@shared.status_socket
@shared.output
def command(device: str, config: Path | None, root: Path, status_socket: Path | None, output: str) -> None:
    check_root(root)
    loaded = load_or_everything(config)
    shared.warn_of(loaded.catalog.refused)
    seen = asyncio.run(view(loaded, root, status_socket, everything=True, links=True))
    full = resolved(root, device)
    matches = _matches(seen.found, [device, full])
    lacking = _without_driver(seen.found, {device, full, *(one.id for _, one in matches)})
    entries = [] if matches or lacking else _entries(seen.found, device)
    skipped = [] if matches or lacking else seen.found.skipped(device)
    if not (matches or lacking or entries or skipped):
        raise unknown(seen.found, root, device)
    if output == "json":
        documents: list[object] = [_document(seen, name, match) for name, match in matches]
        documents += [_missing(seen.found, name, one) for name, one in lacking]
        documents += [*entries, *skipped]
        click.echo(json.dumps(documents, indent=2, default=members))
    else:
        for number, (name, match) in enumerate(matches):
            if number:
                click.echo("")
            _print(seen, name, match)
        for name, one in lacking:
            click.echo(without_driver(name, one))
            for entry, why in _chances(seen.found, name, one):
                click.echo(f"{entry.name} ({place(entry)}): no, {why}")
        for status in entries:
            click.echo(_entry(status))
            for resource in status.resources:
                _print_preference(seen.found, resource)
        for left in skipped:
            click.echo(f"{left['name']} ({left['entry']}): {left['reason']}")
    if seen.no_answer and seen.found.settings.resources:
        click.echo(seen.warning(), err=output == "json")


def _entries(found: ScanResult, text: str) -> list[EntryStatus]:
    """The entries with this name, or with a resource of this name."""
    return [one for one in found.entries().described() if text in (one.name, *one.resources)]


def _entry(status: EntryStatus) -> str:
    """One line about an entry: the number of its devices, why it lacks some, and what it just misses."""
    why = reason(status) or "; ".join(filter(None, [counted(status.devices, "device"), status.remark]))
    return printable(f"{status.name} ({status.entry}): {why}")


def _matches(found: ScanResult, texts: Sequence[str]) -> list[Match]:
    """The devices that the first of the texts names that names any."""
    matches = named(found.backends, texts)
    return next((matches[text] for text in texts if text in matches), [])


def _without_driver(found: ScanResult, texts: Collection[str]) -> list[tuple[str, MissingDriver]]:
    """The hardware without its driver that has one of these addresses, or an attribute with such a value.

    Another backend may list the same hardware as a device.
    """
    folded = {text.lower() for text in texts}
    return [
        (name, one)
        for name, scanner in found.scanners.items()
        for one in scanner.condition.missing_drivers
        if not folded.isdisjoint((one.subject.lower(), one.subject.partition(" ")[0].lower()))
        or any(str(value).lower() in folded for value in one.attributes.values())
    ]


def _chances(
    found: ScanResult, backend: str, lacking: MissingDriver
) -> Iterator[tuple[ResourceSettings, str]]:
    """Each entry of a backend, and why it does not serve hardware without its driver."""
    for entry in found.settings.resources if lacking.makes_device else ():
        if entry.backend == backend:
            may = wanted(lacking, [entry])
            why = "its driver is missing" if may else objection(entry.where, lacking.attributes)
            yield entry, why or "it does not select it"


def _missing(found: ScanResult, backend: str, lacking: MissingDriver) -> dict[str, object]:
    return {
        "backend": backend,
        "hardware": lacking.subject,
        "reason": lacking.reason,
        "attributes": {key: show(value) for key, value in sorted(lacking.attributes.items())},
        "verdicts": [
            {"entry": place(entry), "resource": entry.name, "taken": False, "reason": why}
            for entry, why in _chances(found, backend, lacking)
        ],
    }


def unknown(found: ScanResult, root: Path, text: str) -> UsageError:
    """The error for a name that no backend knows: what it is, or what is called nearly so."""
    folded = text.lower()
    for name, scanner in found.scanners.items():
        for flawed in scanner.condition.refused:
            if flawed.device.lower() == folded:
                return UsageError(f"{flawed.device} of backend {name} cannot be used: {flawed.reason}")
    failed = [d.condition.reason for d in found.scanners.values() if d.condition.reason]
    failed += dict.fromkeys(one["reason"] for one in found.skipped())
    if unserved := why_unserved(root, text):
        why, hint = unserved
        asked = f"backends asked: {', '.join(sorted(found.scanners)) or 'none'}"
        return UsageError(f"{text} is not served: {why}", "; ".join(filter(None, [*failed, hint, asked])))
    twins = [device.id for _, device in alike(found.backends, [text]).get(text, ())[:3]]
    known = {device.id for _, device in found.devices()}
    close = twins or difflib.get_close_matches(text, sorted(known), n=3)
    if (
        "/" in text[1:]
        and not text.startswith("/")
        and not close
        and text.split("/")[0] not in found.scanners
    ):
        return unknown_resource(found, text)
    hint = (
        (f"did you mean {' or '.join(close)}?")
        if close
        else "run `devhost discover --all` to list all devices"
    )
    return UsageError(f"no backend has a device {text!r}", "; ".join([*failed, hint]))


def _print(seen: View, backend: str, device: Device) -> None:
    found = seen.found
    health = health_text(
        device, found.health(backend, device), is_offered=_is_offered(found, backend, device)
    )
    click.echo(f"{device.id} of backend {backend}: {health}")
    for key, value in sorted(device.attributes.items()):
        click.echo(f"  {key}: {cut(show(value), CELL)}")
    for key in sorted(device.left_out):
        click.echo(f"  {printable(key)}: left out, because it is not one line of printable text")
    for title, claims in (("claims", device.claims), ("part of", device.part_of)):
        if claims:
            click.echo(f"  {title}: {', '.join(sorted(claims, key=natural))}")
    for resource, container in seen.holders(backend, device):
        click.echo(f"  held by: {container} through {resource}")
    if moving := seen.moving(backend, device):
        click.echo(f"  moving: {reason(moving)}")
    for one in seen.published(backend, device):
        click.echo(f"  slice: {one.slice or 'not published yet'}")
        click.echo(f"  pool: {one.pool}, device {one.name}")
        if one.in_use:
            click.echo(f"  in use: {one.in_use}")
        for key, value in _attributes(seen, one, backend, device).items():
            click.echo(f"    {key}: {cut(value, CELL)}")
    for resource, running in seen.everywhere(backend, device).items():
        if running.remark or running.health != _own(found, resource, backend, device):
            text = health_text(device, *running, is_offered=True)
            click.echo(f"  running devhost: {text} in {resource}")
    matches = explain(found.plan, found.settings, backend, device)
    if not matches:
        click.echo("No resource is configured.")
    for match in matches:
        mark = "yes" if match.taken else "no"
        click.echo(f"{match.resource} ({place(match.entry)}): {mark}, {_shown(found, match, device)}")
        for key, value in given(match.entry.options).items():
            click.echo(f"  {key}: {json.dumps(value, ensure_ascii=False)}")
        if match.taken:
            for line in gives.lines() if (gives := _gives(found, match, device)) else ():
                click.echo(f"  gives: {line}")
            _print_preference(found, match.resource)


class _Gives:
    """What an entry gives a container with one device, or its unit, besides what the backend gives."""

    def __init__(self, found: ScanResult, match: EntryMatch, device: Device) -> None:
        from devhost.planning.give.edits import given  # only where an entry gives something

        self._exists = found.scanners[match.entry.backend].runner.existence.exists
        self._edits = Edits()
        self._refusal = ""
        offers, of = found.plan.resources[match.resource].offers, match.entry.share.attribute
        (unit,) = (one.unit for one in offers if one.device.id == device.id)
        devices = [one.device for one in offers if one.unit == unit]
        try:
            self._edits = given(match.entry.give, devices, match.resource, len(offers), of)
        except AllocationError as error:
            self._refusal = error.message

    def lines(self) -> Iterator[str]:
        """One line for each thing, without characters that do not print."""
        found = [f"refused: {self._refusal}"] if self._refusal else []
        found += (self._line(node.path, node.container_path, node.required) for node in self._edits.nodes)
        for mount in self._edits.mounts:
            access = "read-only" if mount.read_only else "read-write"
            found.append(self._line(mount.host_path, mount.container_path, mount.required, f" {access}"))
        for pairs in (self._edits.env, self._edits.annotations):
            found += (f"{name}={value}" for name, value in pairs.items())
        yield from map(printable, (*found, *self._edits.cdi_devices))

    def _line(self, host: str, container: str, required: bool, access: str = "") -> str:
        at = "" if container in ("", host) else f" at {container}"
        missing = "does not exist" if required else "omitted, as it does not exist"
        return f"{host}{at}{access}" + ("" if self._exists(host) else f" ({missing})")

    def document(self) -> dict[str, Any]:
        """The same in the terms of JSON."""
        return {
            "refused": self._refusal,
            "nodes": [
                {
                    **self._thing(node.path, node.container_path, node.required),
                    "permissions": node.permissions,
                }
                for node in self._edits.nodes
            ],
            "mounts": [
                {
                    **self._thing(mount.host_path, mount.container_path, mount.required),
                    "readOnly": mount.read_only,
                }
                for mount in self._edits.mounts
            ],
            "env": dict(self._edits.env),
            "annotations": dict(self._edits.annotations),
            "cdiDevices": list(self._edits.cdi_devices),
        }

    def _thing(self, host: str, container: str, required: bool) -> dict[str, object]:
        exists = self._exists(host)
        return {
            "path": host,
            "containerPath": container or host,
            "optional": not required,
            "exists": exists,
        }


def _gives(found: ScanResult, match: EntryMatch, device: Device) -> _Gives | None:
    """``None`` if the entry does not take the device or gives nothing."""
    return _Gives(found, match, device) if match.taken and match.entry.give else None


def _print_preference(found: ScanResult, resource: str) -> None:
    if remark := _preference(found, resource):
        click.echo(f"  preference: {remark}")


def _preference(found: ScanResult, resource: str) -> str:
    """Which choices among the devices of a resource are not proven best; empty if there are none."""
    planned = found.plan.resources.get(resource)
    if planned is None or planned.entry.serve is not Serve.PLUGIN or planned.entry.share.of == Of.ALL:
        return ""
    made = units(planned.entry.share.of, planned.offers)
    links = between(
        found.scanners[planned.entry.backend].runner.links,
        {device.id: one.id for one in made for device in one.devices},
    )
    topology = Topology(
        {one.id: Candidate(one.id, as_one(one.id, one.devices), one.replicas) for one in made}
    )
    least = unproven(planned.entry.prefer, topology, links)
    return (
        f"a choice of {least} or more of the {len(made)} linked devices is not proven best" if least else ""
    )


def _attributes(seen: View, one: Published, backend: str, device: Device) -> Mapping[str, str]:
    """The attributes and capacities of a device in its slice, as a CEL expression finds them."""
    from devhost.dra.aliases import aliased  # only where DRA is used
    from devhost.dra.slices import Offered, Pool

    planned = seen.found.plan.resources.get(one.resource)
    if planned is None or not planned.entry.driver:
        return {}
    own = next((offer for offer in planned.offers if offer.device.id == device.id), None)
    if own is None:
        return {}
    counts, amounts = planned.entry.counts, planned.entry.share.amounts
    offers = [offer for offer in planned.offers if counts or offer.unit == own.unit]  # counters need all
    made = units(planned.entry.share.of, offers)
    (unit,) = (one for one in made if one.id == own.unit)
    extra = aliased(planned.entry.dra, one.resource, unit.device, seen.found.scanners[backend].devices)
    pool = Pool(planned.entry.driver, one.node, one.resource, backend)
    slices, _ = pool.slices(
        [
            Offered(other.device, HEALTHY, other.replicas, extra, counters=counts, amounts=amounts)
            for other in made
        ],
        dropped=one.dropped,
        rejected=[(unit.id, name) for name in one.left_out],
    )
    slot = pool.slot(unit.id)
    if slot is None:
        return {}
    found = {key: show(next(iter(value.values()))) for key, value in slot.body["attributes"].items()}
    for key, value in slot.body.get("capacity", {}).items():
        found[f"{key} (capacity)" if key in found else key] = str(value["value"])
    sets = {shared["name"]: shared["counters"] for one in slices for shared in one.counters}
    for taken in slot.body.get("consumesCounters", ()):
        for key, value in taken["counters"].items():
            most = sets[taken["counterSet"]][key]["value"]
            found[f"{key} (counter of {taken['counterSet']})"] = f"{value['value']} of {most}"
    return found


def _is_offered(found: ScanResult, backend: str, device: Device) -> bool:
    return any(found.plan.holders(backend, device.id))


def _own(found: ScanResult, resource: str, backend: str, device: Device) -> Health:
    planned = found.plan.resources.get(resource)
    return found.health_in(planned.entry, device) if planned else found.health(backend, device)


def _shown(found: ScanResult, match: EntryMatch, device: Device) -> str:
    return with_holders(_why(found, match, device), match.held_by)


def _why(found: ScanResult, match: EntryMatch, device: Device) -> str:
    """The reason of a match, and why the device is Unhealthy only in that resource."""
    entry = match.entry
    own = in_resource(device, HEALTHY, entry.uses)
    absent = found.scanners[entry.backend].health.absent
    health = worst(own, entry.condition(device), entry.given(absent, device))
    if not match.taken or health.healthy:
        return match.reason
    return f"{match.reason}, and is Unhealthy there: {health.reason}"


def _document(seen: View, backend: str, device: Device) -> dict[str, object]:
    found = seen.found
    return {
        **as_json(
            seen,
            backend,
            device,
            found.health(backend, device),
            is_offered=_is_offered(found, backend, device),
        ),
        "published": [
            {
                "resource": one.resource,
                "slice": one.slice,
                "pool": one.pool,
                "device": one.name,
                "attributes": dict(_attributes(seen, one, backend, device)),
                "claims": list(one.claims),
                **({"inUse": one.in_use} if one.in_use else {}),
            }
            for one in seen.published(backend, device)
        ],
        "moving": moving.reason if (moving := seen.moving(backend, device)) else "",
        "verdicts": [
            {
                "entry": f"resources[{match.entry.index}]",
                "resource": match.resource,
                "taken": match.taken,
                "reason": _why(found, match, device),
                **held_by_key(match.held_by),
                "options": plain(match.entry.options) or {},
                "preference": _preference(found, match.resource) if match.taken else "",
                **({"gives": gives.document()} if (gives := _gives(found, match, device)) else {}),
            }
            for match in explain(found.plan, found.settings, backend, device)
        ],
    }
