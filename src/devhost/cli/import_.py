"""``devhost import``: the configuration of another device plugin, as devhost.yaml."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from devhost.config.complaints import Complaints
from devhost.config.document import MAX_BYTES, read_file
from devhost.importers import generic_device_plugin, rdma_shared_dev_plugin


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
    click.echo(generic_device_plugin.convert(*_read(file), domain), nl=False)


@click.command("rdma-shared-dev-plugin")
@click.argument("file")
def rdma_shared(file: str) -> None:
    """Reads the JSON of k8s-rdma-shared-dev-plugin; "-" reads standard input.

    FILE is its configuration, a ConfigMap that holds it, or a NicClusterPolicy of NVIDIA's network operator
    as kubectl prints them. The result offers the same resources, and says in comments what differs.
    """
    click.echo(rdma_shared_dev_plugin.convert(*_read(file)), nl=False)


def _read(file: str) -> tuple[bytes, str]:
    """The content of a file or of standard input, and what complaints call it."""
    if file == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>"
    return read_file(Path(file), Complaints(file)), file


command.add_command(generic)
command.add_command(rdma_shared)
