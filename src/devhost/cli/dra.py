"""``devhost dra``: what the administrator of a cluster needs for Dynamic Resource Allocation."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import click

from devhost.backend.errors import BackendError, UsageError
from devhost.backend.sysfs import natural
from devhost.config.loader import DEFAULT, Loaded, load
from devhost.config.root_directory import check_root
from devhost.planning.device_classes import ClassesOverlap, DeviceClass, device_classes
from devhost.planning.naming import fields
from devhost.planning.settings import ResourceSettings, Serve

from . import options as shared
from .scan_once import scan_once

_PLAIN = re.compile(r"[A-Za-z][\w.-]*[./][\w./-]*")
"""Text that no YAML parser takes for anything else."""


_COUNTED = "# its devices may exclude each other: shared counters in slices keep claims from having both"


@click.group("dra", cls=shared.Group, help="Prints what a cluster needs for Dynamic Resource Allocation.")
def command() -> None:
    pass


@command.command(
    "classes",
    help="""
    Prints the DeviceClasses of resources with `serve: dra`, for `kubectl apply -f -`.

    A name template gets a class for each name on this machine.
    """,
)
@shared.config
@shared.root
@shared.output_of("yaml", "json", help="Format of the objects.")
def classes(config: Path | None, root: Path, output: str) -> None:
    loaded = load(config or DEFAULT)
    shared.warn_of(loaded.catalog.refused)
    settings = loaded.settings
    for backend, hint in settings.not_installed().items():
        click.echo(
            f"devhost: entries of backend {backend} are left out: it is not installed ({hint})", err=True
        )
    entries = [entry for entry in settings.resources if entry.serve is Serve.DRA]
    if not entries:
        which = "other resource" if settings.skipped else "resource"
        click.echo(f"devhost: no {which} has `serve: dra`, so there is no DeviceClass to print", err=True)
    try:
        found = device_classes(_named(loaded, entries, root))
    except ClassesOverlap as overlap:
        names = " and ".join(overlap.resources)
        raise UsageError(
            f"{names} have the same DeviceClass {overlap.name}, and {overlap.reason}",
            "give one entry another dra.class or name",
        ) from None
    if output == "json":
        manifests = [one.manifest() for one in found]
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2))
    elif found:
        click.echo("---\n".join(map(_yaml, found)), nl=False)


def _named(
    loaded: Loaded, entries: Sequence[ResourceSettings], root: Path
) -> list[tuple[str, ResourceSettings]]:
    """The names of the entries; those of templates are the names of devices on this machine."""
    if not any(fields(entry.name) for entry in entries):
        return [(entry.name, entry) for entry in entries]
    check_root(root)
    scan = asyncio.run(scan_once(loaded, root))
    named = []
    for entry in entries:
        if not fields(entry.name):
            named.append((entry.name, entry))
            continue
        if reason := scan.scanners[entry.backend].condition.reason:
            raise BackendError(f"the names of {entry.name} are not known: {reason}")
        made = [one.name for one in scan.plan.resources.values() if one.entry.index == entry.index]
        if not made:
            click.echo(
                f"devhost: no DeviceClass for {entry.name}: its names come from devices, and this machine "
                "has none (run the command on a node with such devices)",
                err=True,
            )
        named += [(name, entry) for name in sorted(made, key=natural)]
    return named


def _yaml(found: DeviceClass) -> str:
    manifest = found.manifest()
    lines = [
        *(f"# a claim may request {words}" for words in found.amounts),
        *([_COUNTED] if found.counters else ()),
        f"apiVersion: {manifest['apiVersion']}",
        f"kind: {manifest['kind']}",
        "metadata:",
        f"  name: {_scalar(found.name)}",
        "spec:",
        "  selectors:",
        "  - cel:",
        f"      expression: {found.expression()}",
    ]
    if found.extended_name:
        lines.append(f"  extendedResourceName: {_scalar(found.extended_name)}")
    return "\n".join(lines) + "\n"


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
