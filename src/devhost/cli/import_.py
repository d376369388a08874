"""``devhost import``: the configuration of another device plugin, as devhost.yaml."""

from __future__ import annotations

from pathlib import Path

import click

from devhost.backend.errors import UsageError
from devhost.cli.importers.nvidia import device_plugin as nvidia_plugin
from devhost.config.diagnostics import Diagnostics, shown, suggest
from devhost.config.document import read_file, read_standard_input

from .importers import (
    akri,
    amd_device_plugin,
    generic_device_plugin,
    gke_device_plugin,
    intel_device_plugins,
    kubevirt,
    rdma_shared_dev_plugin,
    smarter_device_manager,
    sriov_network_device_plugin,
)
from .importers.source import GUIDE


class _Importers(click.Group):
    """The group ``devhost import``, with one command for each plugin."""

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
    """Converts the configuration of another device plugin to a devhost.yaml, and prints it.

    For plugins without an importer see docs/migration.md.
    """


@click.command("generic-device-plugin")
@click.argument("file")
@click.option(
    "--domain",
    default="",
    metavar="DOMAIN",
    help="Domain of the resources. Required if FILE does not contain it: the plugin's default is "
    f"{generic_device_plugin.FORMER_DOMAIN} before version 0.2.0 and {generic_device_plugin.DEFAULT_DOMAIN} "
    "since.",
)
@click.option(
    "--key",
    default="",
    metavar="KEY",
    help="The entry of a ConfigMap to read, if it has several.  [default: config.yaml]",
)
def generic(file: str, domain: str, key: str) -> None:
    """Converts the YAML of generic-device-plugin. "-" reads standard input.

    FILE is its configuration file, the argument of its --device flag, a ConfigMap with the file, or the
    DaemonSet, as printed by kubectl, together or alone.
    """
    click.echo(generic_device_plugin.convert(*_read(file), domain, key), nl=False)


@click.command("nvidia-device-plugin")
@click.argument("file")
@click.option(
    "--key",
    default="",
    metavar="KEY",
    help="The configuration to read, if there are several.  [default: the chart's config.default, else "
    "default]",
)
@click.option(
    "--as-written",
    is_flag=True,
    help="Apply settings that the plugin reads but ignores: names by pattern, rename, devices.",
)
def nvidia(file: str, key: str, as_written: bool) -> None:
    """Converts the YAML of the NVIDIA device plugin. "-" reads standard input.

    FILE is its configuration file, a ConfigMap that contains one or more, the plugin's DaemonSet, or the
    values of the Helm chart of the plugin or of the GPU operator. The result offers the same resources;
    comments in it name the differences.
    """
    click.echo(nvidia_plugin.convert(*_read(file), key, as_written=as_written), nl=False)


@click.command("rdma-shared-dev-plugin")
@click.argument("file")
def rdma_shared(file: str) -> None:
    """Converts the JSON of k8s-rdma-shared-dev-plugin. "-" reads standard input.

    FILE is its configuration, a ConfigMap that contains it, or a NicClusterPolicy or NicNodePolicy of the
    NVIDIA network operator, as printed by kubectl. The result offers the same resources; comments in it name
    the differences.
    """
    click.echo(rdma_shared_dev_plugin.convert(*_read(file)), nl=False)


@click.command("sriov-network-device-plugin")
@click.argument("file")
@click.option(
    "--resource-prefix",
    "prefix",
    default="",
    metavar="DOMAIN",
    help="Domain of resources without a prefix, as in the plugin's flag of this name.  "
    f"[default: that of a DaemonSet in FILE, else {sriov_network_device_plugin.DEFAULT_PREFIX}]",
)
@click.option(
    "--key",
    default="config.json",
    show_default=True,
    help="The entry of a ConfigMap to read, if it has several: for example a node's name.",
)
def sriov_network(file: str, prefix: str, key: str) -> None:
    """Converts the JSON of sriov-network-device-plugin. "-" reads standard input.

    FILE is its configuration, a ConfigMap that contains it, or a NicClusterPolicy or NicNodePolicy of the
    NVIDIA network operator, as printed by kubectl. The result offers the same functions; comments in it name
    the differences.
    """
    click.echo(sriov_network_device_plugin.convert(*_read(file), prefix, key), nl=False)


@click.command("akri")
@click.argument("file")
def akri_udev(file: str) -> None:
    """Converts Configurations of Akri for its udev handler. "-" reads standard input.

    FILE contains one or more Configurations of akri.sh, as printed by kubectl. The result offers the same
    devices under the Configuration's name; comments in it name the differences.
    """
    click.echo(akri.convert(*_read(file)), nl=False)


@click.command("amd-device-plugin")
@click.argument("file")
def amd(file: str) -> None:
    """Converts the flags of the AMD GPU device plugin. "-" reads standard input.

    FILE contains the plugin's DaemonSet, or a DeviceConfig of the AMD GPU operator, as printed by kubectl.
    The result offers the same resources; comments in it name the differences.
    """
    click.echo(amd_device_plugin.convert(*_read(file)), nl=False)


@click.command("gke-device-plugin")
@click.argument("file")
@click.option(
    "--key",
    default=gke_device_plugin.CONFIG_KEY,
    show_default=True,
    help="The entry of a ConfigMap to read, if it has several.",
)
def gke(file: str, key: str) -> None:
    """Converts the configuration of the GKE GPU device plugin. "-" reads standard input.

    FILE is /etc/nvidia/gpu_config.json of a node, a ConfigMap that contains it, or the plugin's DaemonSet.
    The result offers the same resources; comments in it name the differences.
    """
    click.echo(gke_device_plugin.convert(*_read(file), key), nl=False)


@click.command("intel-device-plugins")
@click.argument("file")
@click.option(
    "--services",
    default="",
    metavar="SERVICES",
    help="Services of QAT devices of generation 4, in the format of cfg_services in sysfs.  "
    f"[default: the ConfigMap's in FILE, else {intel_device_plugins.DEFAULT_SERVICES}]",
)
def intel(file: str, services: str) -> None:
    """Converts the objects of the Intel device plugins operator. "-" reads standard input.

    FILE contains one or more objects of the kinds GpuDevicePlugin, FpgaDevicePlugin, QatDevicePlugin,
    DsaDevicePlugin, IaaDevicePlugin, DlbDevicePlugin, SgxDevicePlugin and NpuDevicePlugin, as printed by
    kubectl. The result offers the same resources; comments in it name the differences.
    """
    try:
        click.echo(intel_device_plugins.convert(*_read(file), services), nl=False)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--services") from None


@click.command("kubevirt")
@click.argument("file")
def kubevirt_devices(file: str) -> None:
    """Converts the permittedHostDevices of KubeVirt. "-" reads standard input.

    FILE is a KubeVirt or HyperConverged object as printed by kubectl, or its spec. The result offers the same
    resources to virtual machines; comments in it name the differences.
    """
    click.echo(kubevirt.convert(*_read(file)), nl=False)


@click.command("smarter-device-manager")
@click.argument("file")
@click.option(
    "--key",
    default=smarter_device_manager.CONFIG_KEY,
    show_default=True,
    help="The entry of a ConfigMap to read, if it has several.",
)
def smarter(file: str, key: str) -> None:
    """Converts the conf.yaml of smarter-device-manager. "-" reads standard input.

    FILE is its configuration, or a ConfigMap that contains it. The result offers the same device nodes;
    comments in it name the differences.
    """
    click.echo(smarter_device_manager.convert(*_read(file), key), nl=False)


def _read(file: str) -> tuple[bytes, str]:
    """The content of a file or of standard input, and its name in diagnostics."""
    if file == "-":
        return read_standard_input(Diagnostics("<stdin>")), "<stdin>"
    return read_file(Path(file), Diagnostics(file)), file


for one in (
    akri_udev,
    amd,
    generic,
    gke,
    intel,
    kubevirt_devices,
    nvidia,
    rdma_shared,
    smarter,
    sriov_network,
):
    command.add_command(one)
