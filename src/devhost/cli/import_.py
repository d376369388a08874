"""``devhost import``: the configuration of another device plugin, as devhost.yaml."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from devhost.config.complaints import Complaints, shown, suggest
from devhost.config.document import MAX_BYTES, read_file
from devhost.errors import UsageError
from devhost.importers import (
    generic_device_plugin,
    nvidia_device_plugin,
    rdma_shared_dev_plugin,
    sriov_network_device_plugin,
)
from devhost.importers.kubernetes import GUIDE


class _Importers(click.Group):
    """The commands of ``devhost import``, one for each plugin."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            hint = suggest(args[0], self.commands, "importers")
            raise UsageError(
                f"there is no importer {shown(args[0])}", f"{hint}; for other plugins see {GUIDE}"
            )
        return super().resolve_command(ctx, args)


@click.group("import", cls=_Importers)
def command() -> None:
    """Prints the configuration of another device plugin as a devhost.yaml.

    The plugins for GPUs of AMD and Intel have flags and no file: docs/migration.md tells what to write.
    """


@click.command("generic-device-plugin")
@click.argument("file")
@click.option(
    "--domain",
    default="",
    metavar="DOMAIN",
    help="Domain of the resources. Required where FILE does not say it: the plugin's default is "
    f"{generic_device_plugin.FORMER_DOMAIN} before version 0.2.0 and {generic_device_plugin.DEFAULT_DOMAIN} "
    "since.",
)
@click.option(
    "--key",
    default="",
    metavar="KEY",
    help="Which entry of a ConfigMap to read, if it has several.  [default: config.yaml]",
)
def generic(file: str, domain: str, key: str) -> None:
    """Reads the YAML of generic-device-plugin; "-" reads standard input.

    FILE is its configuration file, what its --device flag is given, a ConfigMap with the file, or the
    DaemonSet as kubectl prints them, together or alone.
    """
    click.echo(generic_device_plugin.convert(*_read(file), domain, key), nl=False)


@click.command("nvidia-device-plugin")
@click.argument("file")
@click.option(
    "--key",
    default="",
    metavar="KEY",
    help="Which configuration to read, if there are several.  [default: the chart's config.default, else "
    f"{nvidia_device_plugin.CONFIG_KEY}]",
)
@click.option(
    "--as-written",
    is_flag=True,
    help="Heeds what the plugin reads and ignores: names by pattern, rename, devices.",
)
def nvidia(file: str, key: str, as_written: bool) -> None:
    """Reads the YAML of NVIDIA's device plugin; "-" reads standard input.

    FILE is its configuration file, a ConfigMap that holds one or several, or the values of the Helm chart of
    the plugin or of the GPU operator. The result offers the same resources, and says in comments what
    differs.
    """
    click.echo(nvidia_device_plugin.convert(*_read(file), key, as_written=as_written), nl=False)


@click.command("rdma-shared-dev-plugin")
@click.argument("file")
def rdma_shared(file: str) -> None:
    """Reads the JSON of k8s-rdma-shared-dev-plugin; "-" reads standard input.

    FILE is its configuration, a ConfigMap that holds it, or a NicClusterPolicy or NicNodePolicy of NVIDIA's
    network operator as kubectl prints them. The result offers the same resources, and says in comments what
    differs.
    """
    click.echo(rdma_shared_dev_plugin.convert(*_read(file)), nl=False)


@click.command("sriov-network-device-plugin")
@click.argument("file")
@click.option(
    "--resource-prefix",
    "prefix",
    default="",
    metavar="DOMAIN",
    help="Domain of resources that have none of their own: what the plugin's flag of this name says.  "
    f"[default: that of a DaemonSet in FILE, else {sriov_network_device_plugin.DEFAULT_PREFIX}]",
)
@click.option(
    "--key",
    default=sriov_network_device_plugin.CONFIG_KEY,
    show_default=True,
    help="Which entry of a ConfigMap to read, if it has several: for example a node's name.",
)
def sriov_network(file: str, prefix: str, key: str) -> None:
    """Reads the JSON of sriov-network-device-plugin; "-" reads standard input.

    FILE is its configuration, a ConfigMap that holds it, or a NicClusterPolicy or NicNodePolicy of NVIDIA's
    network operator as kubectl prints them. The result offers the same functions, and says in comments what
    differs.
    """
    click.echo(sriov_network_device_plugin.convert(*_read(file), prefix, key), nl=False)


def _read(file: str) -> tuple[bytes, str]:
    """The content of a file or of standard input, and what complaints call it."""
    if file == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>"
    return read_file(Path(file), Complaints(file)), file


command.add_command(generic)
command.add_command(nvidia)
command.add_command(rdma_shared)
command.add_command(sriov_network)
