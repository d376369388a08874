"""``devhost plugins`` and ``devhost schema``: what is installed, for people and for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from devhost.backend.base import OPTIONAL_METHODS, overrides
from devhost.config import backend_paths
from devhost.config.diagnostics import one_line
from devhost.config.schema import options_of, plain, resource_options_of, schema
from devhost.discovery import catalog

from . import options as shared


@click.command(
    "plugins",
    help="Lists the installed backends with their options and attributes, observers, and refused plugins.",
)
@click.option("--config", type=shared.path, help="Include the drop-in plugins that this configuration names.")
@shared.output
def plugins(config: Path | None, output: str) -> None:
    found = catalog.load(backend_paths(config) if config else ())
    backends = [_describe(name, one) for name, one in sorted(found.installed.items())]
    observers = [
        {"name": one.name, "version": one.version, "origin": one.origin, "hooks": list(one.hooks)}
        for one in found.observers
    ]
    refused = [
        {"origin": one.origin, "version": one.version, "backend": one.backend, "reason": one_line(one.reason)}
        for one in found.refused
    ]
    if output == "json":
        document = {"backends": backends, "observers": observers, "refused": refused}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for line in _lines(backends, observers, refused):
        click.echo(line)


@click.command(
    "schema",
    help="Prints the JSON schema of the configuration, with the options and attributes of every backend.",
)
@click.option(
    "--config", type=shared.path, help="Include the drop-in backends that this configuration names."
)
def print_schema(config: Path | None) -> None:
    found = catalog.load(backend_paths(config) if config else ())
    click.echo(json.dumps(schema(found), indent=2, ensure_ascii=False))


def _describe(name: str, found: catalog.Installed) -> dict[str, Any]:
    backend = found.backend
    schema, own = options_of(backend), resource_options_of(backend)
    return {
        "name": name,
        "version": found.version,
        "origin": found.origin,
        "apiVersion": backend.api_version,
        "hooks": list(found.hooks),
        "optionalMethods": [method for method in OPTIONAL_METHODS if overrides(backend, method)],
        "subsystems": sorted(backend.subsystems),
        "options": schema.get("properties", {}),
        "requiredOptions": schema.get("required", []),
        "resourceOptions": own["properties"],
        "requiredResourceOptions": own["required"],
        "attributes": {
            key: {
                "type": attribute.type.__name__,
                "meaning": attribute.meaning,
                "example": plain(attribute.example),
                "words": list(attribute.words),
            }
            for key, attribute in backend.attributes.items()
        },
    }


def _lines(
    backends: list[dict[str, Any]], observers: list[dict[str, Any]], refused: list[dict[str, str]]
) -> Iterator[str]:
    if not backends:
        yield "no backend is installed"
    for backend in backends:
        version = f" {backend['version']}" if backend["version"] else ""
        yield f"{backend['name']}{version} from {backend['origin']}"
        methods = [f"{method}()" for method in backend["optionalMethods"]]
        yield f"  hooks: {', '.join([*backend['hooks'], *methods])}"
        yield f"  subsystems: {', '.join(backend['subsystems']) or 'none'}"
        for title, options, required in (
            ("options", "options", "requiredOptions"),
            ("resource options", "resourceOptions", "requiredResourceOptions"),
        ):
            rows = [_option(key, one, backend[required]) for key, one in backend[options].items()]
            yield from _table(title, rows)
        yield from _table(
            "attributes",
            [
                (key, a["type"], f"{a['meaning'].rstrip('.')}, {_values(a)}")
                for key, a in backend["attributes"].items()
            ],
        )
    for observer in observers:
        version = f" {observer['version']}" if observer["version"] else ""
        yield f"observer {observer['name']}{version} from {observer['origin']}"
        yield f"  hooks: {', '.join(observer['hooks'])}"
    for one in refused:
        name = " ".join(filter(None, (one["origin"], one["version"])))
        # if a drop-in raised an error, the reason begins with the file and its line
        where = "" if one["reason"].startswith(f"{name}:") else f"{name}: "
        yield f"refused: {where}{one['reason']}"


def _values(attribute: dict[str, Any]) -> str:
    words = attribute["words"]
    return f"one of {', '.join(map(_json, words))}" if words else f"e.g. {_json(attribute['example'])}"


def _option(key: str, schema: dict[str, Any], required: list[str]) -> tuple[str, str, str]:
    kind = " or ".join(_kinds(schema))
    note = f"default {_json(schema['default'])}" if "default" in schema else ""
    notes = [schema.get("description", "").rstrip("."), "required" if key in required else note]
    return key, kind, ", ".join(filter(None, notes))


def _kinds(schema: dict[str, Any]) -> Iterator[str]:
    if "enum" in schema:
        yield " | ".join(map(str, schema["enum"]))
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _kinds(one)
    else:
        yield schema.get("type", "any")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _table(title: str, rows: list[tuple[str, str, str]]) -> Iterator[str]:
    if not rows:
        yield f"  {title}: none"
        return
    yield f"  {title}:"
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:2], widths, strict=True)]
        yield f"    {'  '.join([*cells, row[2]])}".rstrip()
