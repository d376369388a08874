"""``devhost discover``: what this machine has and what the configuration makes of it, offline."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection
from pathlib import Path

import click

from devhost.errors import UsageError
from devhost.files import hostless
from devhost.health import in_resource
from devhost.loading import load_or_everything
from devhost.model import Device
from devhost.plan import Offer, PlannedResource, Refusal
from devhost.settings import Of
from devhost.survey import Survey, survey
from devhost.sysfs import natural
from devhost.where import show

from . import _options
from ._table import table

SHOWN_REFUSALS = 20
"""Refusals printed without ``--all``: enough to see what is wrong, few enough to be read."""


@click.command("discover")
@click.argument("resource", required=False)
@_options.config
@_options.root
@_options.output
@click.option("--all", "everything", is_flag=True, help="Also list the devices that no resource takes.")
def command(resource: str | None, config: Path | None, root: Path, output: str, everything: bool) -> None:
    """Looks for devices once and shows which resource gets which, without a kubelet and without root.

    With RESOURCE only that one is shown. Without a configuration, every device of every installed
    backend is listed. Exits with 1 if a backend failed.
    """
    _options.check_root(root)
    found = asyncio.run(survey(load_or_everything(config), root))
    names = _chosen(found, resource)
    if output == "json":
        click.echo(json.dumps(_document(found, names), indent=2))
    else:
        _print(found, names, everything or not found.settings.resources)
    reasons = [d.condition.reason for d in found.discoveries.values() if d.condition.reason]
    if output == "table" and not (reasons or found.devices()) and (nothing := hostless(root)):
        click.echo(f"devhost: {nothing}", err=True)
    for reason in reasons:
        click.echo(f"devhost: {reason}", err=True)
    if reasons:
        sys.exit(1)


def _chosen(found: Survey, resource: str | None) -> list[str]:
    if resource is None:
        return sorted(found.plan.resources, key=natural)
    if resource in found.plan.resources:
        return [resource]
    if any(entry.name == resource for entry in found.settings.resources):
        return []
    if Path(resource).is_file():
        hint = f"`devhost discover --config {resource}` reads it as the configuration"
        raise UsageError(f"{resource} is a file, and not the name of a resource", hint)
    known = ", ".join(sorted(found.plan.resources)) or "none"
    raise UsageError(f"no resource is called {resource!r}", f"there are: {known}")


def _print(found: Survey, names: list[str], everything: bool) -> None:
    rows = [
        (name, offer.device.id, *_facts(offer.device, resource.entry.uses), _times(resource, offer))
        for name, resource in ((name, found.plan.resources[name]) for name in names)
        for offer in _offers(resource)
    ]
    if found.settings.resources:
        click.echo(table(("RESOURCE", "DEVICE", "HEALTH", "NUMA", "HANDED OUT"), rows))
    refusals = _refusals(found)
    for refusal in refusals if everything else refusals[:SHOWN_REFUSALS]:
        entry = found.settings.resources[refusal.entry]
        click.echo(f"refused: {refusal.device} for {entry.name}: {refusal.reason}")
    if len(refusals) > SHOWN_REFUSALS and not everything:
        click.echo(f"refused: {len(refusals) - SHOWN_REFUSALS} more (--all lists them)")
    for name, discovery in found.discoveries.items():
        for flawed in sorted(discovery.condition.refused, key=lambda flawed: natural(flawed.device)):
            click.echo(f"refused: {flawed.device} of backend {name}: {flawed.reason}")
    left = _unmatched(found)
    if everything:
        if found.settings.resources:
            click.echo("")
        click.echo(
            table(
                ("BACKEND", "DEVICE WITHOUT RESOURCE", "HEALTH", "NUMA", "ATTRIBUTES"),
                [(name, device.id, *_facts(device), _attributes(device)) for name, device in left],
            )
        )
    elif left:
        count = "1 device matches" if len(left) == 1 else f"{len(left)} devices match"
        click.echo(f"{count} no resource (--all lists them, `devhost explain DEVICE` tells why)")


def _offers(resource: PlannedResource) -> list[Offer]:
    return sorted(resource.offers, key=lambda offer: natural(offer.device.id))


def _refusals(found: Survey) -> list[Refusal]:
    return sorted(found.plan.refusals, key=lambda refusal: (refusal.entry, natural(refusal.device)))


def _unmatched(found: Survey) -> list[tuple[str, Device]]:
    taken = {
        (resource.entry.backend, offer.device.id)
        for resource in found.plan.resources.values()
        for offer in resource.offers
    }
    refused = {(refusal.backend, refusal.device) for refusal in found.plan.refusals}
    return [item for item in found.devices() if (item[0], item[1].id) not in taken | refused]


def _times(resource: PlannedResource, offer: Offer) -> str:
    together = ", all together" if resource.entry.share.of is Of.ALL else ""
    return f"{offer.replicas}{together}"


def _facts(device: Device, uses: Collection[str] = ()) -> tuple[str, str]:
    return standing(device, uses), ",".join(map(str, device.numa_nodes))


def standing(device: Device, uses: Collection[str] = ()) -> str:
    """Whether a device can be had, in a few words: its health, or why its backend withholds it.

    Args:
        uses: what the resource hands out in which it is looked at.
    """
    if device.withheld:
        return f"Withheld: {device.withheld}"
    health = in_resource(device, device.health, uses)
    return "Healthy" if health.healthy else f"Unhealthy: {health.reason}"


def _attributes(device: Device) -> str:
    return " ".join(f"{key}={show(value)}" for key, value in sorted(device.attributes.items()))


def _document(found: Survey, names: list[str]) -> dict[str, object]:
    resources = [found.plan.resources[name] for name in names]
    return {
        "resources": [
            {
                "name": resource.name,
                "backend": resource.entry.backend,
                "entry": f"resources[{resource.entry.index}]",
                "of": resource.entry.share.of.value,
                "devices": [
                    {
                        **as_json(resource.entry.backend, offer.device, resource.entry.uses),
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
            }
            for refusal in _refusals(found)
        ],
        "unmatched": [as_json(name, device) for name, device in _unmatched(found)],
        "backends": [
            {
                "name": name,
                "state": discovery.condition.state.value,
                "reason": discovery.condition.reason,
                "devices": len(discovery.devices),
                "refusedDevices": [
                    {"device": flawed.device, "reason": flawed.reason}
                    for flawed in discovery.condition.refused
                ],
            }
            for name, discovery in found.discoveries.items()
        ],
    }


def as_json(backend: str, device: Device, uses: Collection[str] = ()) -> dict[str, object]:
    """A device with all that is known of it, for JSON; ``uses`` as for :func:`standing`."""
    health = in_resource(device, device.health, uses)
    return {
        "backend": backend,
        "id": device.id,
        "health": "Healthy" if health.healthy else "Unhealthy",
        "reason": health.reason,
        "unusableFor": dict(device.unusable_for),
        "withheld": device.withheld,
        "numaNodes": list(device.numa_nodes),
        "pciePath": list(device.pcie_path),
        "attributes": {key: _plain(value) for key, value in sorted(device.attributes.items())},
        "claims": sorted(device.claims),
        "partOf": sorted(device.part_of),
    }


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
