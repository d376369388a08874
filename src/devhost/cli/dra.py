"""``devhost dra``: what the administrator of a cluster needs for Dynamic Resource Allocation."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from devhost.backend.errors import BackendError, UsageError
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import natural
from devhost.config.loader import DEFAULT, Loaded, load
from devhost.config.root_directory import check_root
from devhost.planning.naming import device_class, fields, resource_attribute
from devhost.planning.settings import ResourceSettings, Serve

from . import options as shared
from .scan_once import scan_once

API_VERSION = "resource.k8s.io/v1"
"""The API group and version of the objects, in Kubernetes since 1.34."""


@frozen
class DeviceClass:
    """One class: its name, and the resources whose devices it selects, by their driver.

    ``extended_name`` is the resource whose name pods without claims may request; empty if they may not.
    ``amounts`` is what a claim may request of each device, in words, if claims share by amount. ``counters``
    is whether devices that exclude each other are offered together.
    """

    name: str
    resources: Mapping[str, Sequence[str]]
    extended_name: str = ""
    amounts: tuple[str, ...] = ()
    counters: bool = False

    def expression(self) -> str:
        """The CEL expression that is true for the devices of the class.

        Each part protects the next: an attribute that a device lacks would stop the scheduler otherwise.
        """
        parts = [_selects(driver, resources) for driver, resources in self.resources.items()]
        return parts[0] if len(parts) == 1 else " || ".join(f"({part})" for part in parts)

    def manifest(self) -> dict[str, Any]:
        """The object in the terms of JSON."""
        spec: dict[str, Any] = {"selectors": [{"cel": {"expression": self.expression()}}]}
        if self.extended_name:
            spec["extendedResourceName"] = self.extended_name
        return {
            "apiVersion": API_VERSION,
            "kind": "DeviceClass",
            "metadata": {"name": self.name},
            "spec": spec,
        }


class ClassesOverlap(Exception):
    """Two resources have one class, which must not be: ``reason`` is why."""

    def __init__(self, name: str, resources: Sequence[str], reason: str) -> None:
        super().__init__(name)
        self.name = name
        self.resources = resources
        self.reason = reason


def _selects(driver: str, resources: Sequence[str]) -> str:
    attribute = f'device.attributes["{driver}"].resource'
    values = [f'"{resource_attribute(resource)}"' for resource in resources]
    wanted = f"== {values[0]}" if len(values) == 1 else f"in [{', '.join(values)}]"
    return f'device.driver == "{driver}" && has({attribute}) && {attribute} {wanted}'


def device_classes(resources: Iterable[tuple[str, ResourceSettings]]) -> list[DeviceClass]:
    """The classes of resources, in the order of their first resource.

    ``resources`` are names without a template, each with its entry. Raises ``ClassesOverlap`` if a class with
    an extended name has several resources, or the same class is made of the names of several.
    """
    members: dict[str, dict[str, bool]] = {}
    drivers: dict[str, dict[str, list[str]]] = {}
    amounts: dict[str, dict[str, None]] = {}
    counted: set[str] = set()
    made: dict[str, dict[str, None]] = {}
    for name, entry in resources:
        if not (title := entry.dra.device_class):
            title = device_class(name)
            made.setdefault(title, {})[name] = None
        amounts.setdefault(title, {}).update((one.words, None) for one in entry.share.amounts)
        if entry.counts:
            counted.add(title)
        found = members.setdefault(title, {})
        if name not in found:
            drivers.setdefault(title, {}).setdefault(entry.driver, []).append(name)
        found[name] = found.get(name, False) or entry.dra.extended_name
    classes = []
    for title, found in members.items():
        extended = [name for name, wanted in found.items() if wanted]
        if extended and len(found) > 1:
            raise ClassesOverlap(title, tuple(found), "extendedName allows one of them")
        if len(alike := made.get(title, ())) > 1:
            raise ClassesOverlap(title, tuple(alike), "claims could get devices of both")
        classes.append(
            DeviceClass(title, drivers[title], "".join(extended), tuple(amounts[title]), title in counted)
        )
    return classes


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
