"""``devhost schema``: prints the JSON schema of the configuration, for editors and other tools."""

from __future__ import annotations

import json
from pathlib import Path

import click

from devhost.config import backend_paths
from devhost.config.schema import schema
from devhost.discovery import catalog

from . import options as shared


@click.command(
    help="Prints the JSON schema of the configuration, with the options and attributes of every backend."
)
@click.option(
    "--config", type=shared.path, help="Include the drop-in backends that this configuration names."
)
def command(config: Path | None) -> None:
    found = catalog.load(backend_paths(config) if config else ())
    click.echo(json.dumps(schema(found), indent=2, ensure_ascii=False))
