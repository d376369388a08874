"""``devhost import``: the configuration of another device plugin, as devhost.yaml."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from devhost.backend.errors import UsageError
from devhost.cli.options import Group
from devhost.config.diagnostics import Diagnostics, shown, suggest
from devhost.config.document import read_file, read_standard_input

from . import (
    akri,
    amd_device_plugin,
    cluster,
    generic_device_plugin,
    gke_device_plugin,
    intel_device_plugins,
    kubevirt,
    nvidia_device_plugin,
    rdma_shared_dev_plugin,
    smarter_device_manager,
    sriov_network_device_plugin,
)
from .source import GUIDE, INTEL, Source


class _Importers(Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in self.commands:
            hint = f"{suggest(cmd_name, self.commands, 'importers')}; for other plugins see {GUIDE}"
            raise UsageError(f"there is no importer {shown(cmd_name)}", hint)
        return self.commands[cmd_name]


command = _Importers(
    "import",
    help="""Converts the configuration of another device plugin to a devhost.yaml, and prints it.

    For plugins without an importer see docs/migration.md.
    """,
)


def _add(importer: ModuleType, reads: str, *options: click.Option, kinds: str = "", images: str = "") -> None:
    """Adds the command of an importer; ``kinds`` and ``images`` are what ``--from-cluster`` looks for."""
    name = re.sub("[._]", "-", importer.__name__.partition(".")[2])

    def run(file: str, *, from_cluster: bool, **options: Any) -> None:
        if from_cluster == bool(file):
            raise UsageError("give either FILE or --from-cluster", f"devhost import {name} --help")
        if from_cluster:
            data, label = cluster.objects(kinds.split(), images.split()), "<cluster>"
        elif file == "-":
            data, label = read_standard_input(Diagnostics("<stdin>")), "<stdin>"
        else:
            data, label = read_file(Path(file), Diagnostics(file)), file
        try:
            source = Source(data, label, name, options.pop("key", ""))
            click.echo(importer.convert(source, **options), nl=False)
        except ValueError as error:  # of an option
            raise click.BadParameter(str(error), param_hint="--services") from None

    purpose = (importer.__doc__ or "").partition("\n")[0]
    text = f"""{purpose} "-" reads standard input.

    FILE contains {reads}; also in a List, in several documents, in a HelmRelease, an
    Argo CD Application or a HelmChart, as printed by kubectl. The result offers the same resources;
    comments in it name the differences.
    """
    whole = "Read the plugin's objects with kubectl instead of a file."
    parameters = [
        click.Argument(["file"], default="", required=False), *options,
        click.Option(["--from-cluster"], is_flag=True, help=whole),
    ]  # fmt: skip
    command.add_command(click.Command(name, callback=run, params=parameters, help=text))


def _option(names: str, metavar: str, text: str, default: str = "") -> click.Option:
    text += f"  [default: {default}]" if default else ""
    return click.Option(names.split(), default="", metavar=metavar, help=text)


def _key(default: str) -> click.Option:
    return _option("--key", "KEY", "The entry of a ConfigMap to read, if it has several.", default)


_OF_NETWORK_OPERATOR = (
    "its file, a ConfigMap, its DaemonSet, a NicClusterPolicy or NicNodePolicy of the NVIDIA network "
    "operator, or values of the operator's chart"
)
_POLICIES = "nicclusterpolicies.mellanox.com nicnodepolicies.mellanox.com"
*_KINDS, _LAST_KIND = (f"{name.title()}DevicePlugin" for name in INTEL)

# fmt: off
_add(akri, "one or more Configurations of akri.sh", kinds="configurations.akri.sh")
_add(
    amd_device_plugin,
    "its DaemonSet, a DeviceConfig of the AMD GPU operator, or values of the operator's chart",
    kinds="deviceconfigs.amd.com", images="rocm/k8s-device-plugin",
)
_add(
    generic_device_plugin,
    "its file, the argument of its --device flag, a ConfigMap, its DaemonSet, or values of app-template",
    _option(
        "--domain", "DOMAIN", "Domain of the resources. Required if FILE does not contain it: the plugin's "
        f"default is {generic_device_plugin.DEFAULTS}.",
    ),
    _key("config.yaml"), images="generic-device-plugin",
)
_add(
    gke_device_plugin, "/etc/nvidia/gpu_config.json of a node, a ConfigMap, or the plugin's DaemonSet",
    _key(gke_device_plugin.CONFIG_KEY), images="nvidia-gpu-device-plugin device-plugin-gpu",
)
_add(
    intel_device_plugins,
    f"objects of the kinds {', '.join(_KINDS)} and {_LAST_KIND}, DaemonSets, or values of a chart",
    _option(
        "--services", "SERVICES", "Services of QAT devices of generation 4, in the format of cfg_services in "
        "sysfs.", f"the ConfigMap's in FILE, else {intel_device_plugins.DEFAULT_SERVICES}",
    ),
    kinds=" ".join(f"{name}deviceplugins.deviceplugin.intel.com" for name in sorted(INTEL)),
    images=" ".join(f"intel-{name}-plugin" for name in sorted(INTEL)),
)
_add(kubevirt, "a KubeVirt or HyperConverged object, or its spec", kinds="kubevirts.kubevirt.io")
_add(
    nvidia_device_plugin,
    "its file, a ConfigMap, its DaemonSet, a ClusterPolicy of the GPU operator, or values of a chart",
    _key("the chart's config.default, else default"),
    click.Option(
        ["--as-written"], is_flag=True,
        help="Apply settings that the plugin reads but ignores: names by pattern, rename, devices.",
    ),
    kinds="clusterpolicies.nvidia.com", images="nvidia/k8s-device-plugin",
)
_add(
    rdma_shared_dev_plugin, _OF_NETWORK_OPERATOR, _key("config.json"),
    kinds=_POLICIES, images="k8s-rdma-shared-dev-plugin",
)
_add(
    smarter_device_manager, "its file, a ConfigMap, or values of a chart",
    _key(smarter_device_manager.CONFIG_KEY), images="smarter-device-manager",
)
_add(
    sriov_network_device_plugin, _OF_NETWORK_OPERATOR, _key("config.json"),
    _option(
        "--resource-prefix prefix", "DOMAIN",
        "Domain of resources without a prefix, as in the plugin's flag of this name.",
        f"that of a DaemonSet in FILE, else {sriov_network_device_plugin.DEFAULT_PREFIX}",
    ),
    kinds=_POLICIES, images="sriov-network-device-plugin",
)
