"""``devhost import``: the configuration of another device plugin, as devhost.yaml."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from devhost.config.complaints import Complaints
from devhost.config.document import MAX_BYTES, read_file
from devhost.importers import generic_device_plugin


@click.group("import")
def command() -> None:
    """Prints the configuration of another device plugin as a devhost.yaml."""


@click.command("generic-device-plugin")
@click.argument("file")
@click.option(
    "--domain",
    default="",
    metavar="DOMAIN",
    help=f"Domain of the resources.  [default: the file's, else {generic_device_plugin.DEFAULT_DOMAIN}]",
)
def generic(file: str, domain: str) -> None:
    """Reads the YAML of generic-device-plugin; "-" reads standard input.

    FILE is its configuration file, or what its --device flag is given: one device or a list of them.
    """
    data = sys.stdin.buffer.read(MAX_BYTES + 1) if file == "-" else read_file(Path(file), Complaints(file))
    label = "<stdin>" if file == "-" else file
    click.echo(generic_device_plugin.convert(data, label, domain), nl=False)


command.add_command(generic)
