"""``devhost import``: the configuration of another device plugin, as devhost.yaml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from devhost.backend.errors import UsageError
from devhost.cli.importers.nvidia import device_plugin as nvidia
from devhost.config.diagnostics import Diagnostics, shown, suggest
from devhost.config.document import read_file, read_standard_input

from .importers import (
    akri,
    amd_device_plugin,
    cluster,
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


@click.group(
    "import",
    cls=_Importers,
    help="""
    Converts the configuration of another device plugin to a devhost.yaml, and prints it.

    For plugins without an importer see docs/migration.md.
    """,
)
def command() -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Importer:
    """An importer: what it converts, what it reads besides, and what ``--from-cluster`` looks for."""

    name: str
    convert: Callable[..., str]
    what: str
    reads: str
    options: Sequence[click.Option] = ()
    kinds: Sequence[str] = ()
    images: Sequence[str] = ()


def _key(default: str) -> click.Option:
    text = f"The entry of a ConfigMap to read, if it has several.  [default: {default}]"
    return click.Option(["--key"], default="", metavar="KEY", help=text)


_INTEL = ("dlb", "dsa", "fpga", "gpu", "iaa", "npu", "qat", "sgx")
_OF_NETWORK_OPERATOR = (
    "its file, a ConfigMap, its DaemonSet, a NicClusterPolicy or NicNodePolicy of the NVIDIA network "
    "operator, or values "
    "of the operator's chart"
)
_POLICIES = ("nicclusterpolicies.mellanox.com", "nicnodepolicies.mellanox.com")

_ALL = (
    _Importer(
        "akri", akri.convert, "Configurations of Akri for its udev handler", "one or more "
        "Configurations of akri.sh",
        kinds=("configurations.akri.sh",),
    ),
    _Importer(
        "amd-device-plugin", amd_device_plugin.convert, "the flags of the AMD GPU device plugin",
        "its DaemonSet, a DeviceConfig of the AMD GPU operator, or values of the operator's chart",
        kinds=("deviceconfigs.amd.com",), images=("rocm/k8s-device-plugin",),
    ),
    _Importer(
        "generic-device-plugin", generic_device_plugin.convert, "the YAML of generic-device-plugin",
        "its file, the argument of its --device flag, a ConfigMap, its DaemonSet, or values of the "
        "chart app-template",
        (
            click.Option(
                ["--domain"], default="", metavar="DOMAIN",
                help="Domain of the resources. Required if FILE does not contain it: the plugin's default is "
                f"{generic_device_plugin.FORMER_DOMAIN} before version 0.2.0 and "
                f"{generic_device_plugin.DEFAULT_DOMAIN} since.",
            ),
            _key("config.yaml"),
        ),
        images=("generic-device-plugin",),
    ),
    _Importer(
        "gke-device-plugin", gke_device_plugin.convert, "the configuration of the GKE GPU device plugin",
        "/etc/nvidia/gpu_config.json of a node, a ConfigMap, or the plugin's DaemonSet",
        (_key(gke_device_plugin.CONFIG_KEY),), images=("nvidia-gpu-device-plugin", "device-plugin-gpu"),
    ),
    _Importer(
        "intel-device-plugins", intel_device_plugins.convert, "the Intel device plugins and their "
        "operator's objects",
        "objects of the kinds GpuDevicePlugin, FpgaDevicePlugin, QatDevicePlugin, DsaDevicePlugin, "
        "IaaDevicePlugin, "
        "DlbDevicePlugin, SgxDevicePlugin and NpuDevicePlugin, DaemonSets, or values of a chart",
        (
            click.Option(
                ["--services"], default="", metavar="SERVICES",
                help="Services of QAT devices of generation 4, in the format of cfg_services in sysfs.  "
                "[default: the "
                f"ConfigMap's in FILE, else {intel_device_plugins.DEFAULT_SERVICES}]",
            ),
        ),
        tuple(f"{name}deviceplugins.deviceplugin.intel.com" for name in _INTEL),
        tuple(f"intel-{name}-plugin" for name in _INTEL),
    ),
    _Importer(
        "kubevirt", kubevirt.convert, "the permittedHostDevices of KubeVirt",
        "a KubeVirt or HyperConverged object, or its spec",
        kinds=("kubevirts.kubevirt.io",),
    ),
    _Importer(
        "nvidia-device-plugin", nvidia.convert, "the YAML of the NVIDIA device plugin",
        "its file, a ConfigMap, its DaemonSet, a ClusterPolicy of the GPU operator, or values of the "
        "chart of one of "
        "the two",
        (
            click.Option(
                ["--key"], default="", metavar="KEY",
                help="The configuration to read, if there are several.  "
                "[default: the chart's config.default, else default]",
            ),
            click.Option(
                ["--as-written"], is_flag=True,
                help="Apply settings that the plugin reads but ignores: names by pattern, rename, devices.",
            ),
        ),
        ("clusterpolicies.nvidia.com",), ("nvidia/k8s-device-plugin",),
    ),
    _Importer(
        "rdma-shared-dev-plugin", rdma_shared_dev_plugin.convert, "the JSON of k8s-rdma-shared-dev-plugin",
        _OF_NETWORK_OPERATOR, (_key("config.json"),), _POLICIES, ("k8s-rdma-shared-dev-plugin",),
    ),
    _Importer(
        "smarter-device-manager", smarter_device_manager.convert, "the conf.yaml of smarter-device-manager",
        "its file, a ConfigMap, or values of a chart",
        (_key(smarter_device_manager.CONFIG_KEY),), images=("smarter-device-manager",),
    ),
    _Importer(
        "sriov-network-device-plugin", sriov_network_device_plugin.convert, "the JSON of "
        "sriov-network-device-plugin",
        _OF_NETWORK_OPERATOR,
        (
            click.Option(
                ["--resource-prefix", "prefix"], default="", metavar="DOMAIN",
                help="Domain of resources without a prefix, as in the plugin's flag of this name.  "
                f"[default: that of a DaemonSet in FILE, else {sriov_network_device_plugin.DEFAULT_PREFIX}]",
            ),
            _key("config.json"),
        ),
        _POLICIES, ("sriov-network-device-plugin",),
    ),
)  # fmt: skip


def _as_command(one: _Importer) -> click.Command:
    def run(file: str, *, from_cluster: bool, **options: Any) -> None:
        if from_cluster == bool(file):
            raise UsageError("give either FILE or --from-cluster", f"devhost import {one.name} --help")
        data, name = (cluster.objects(one.kinds, one.images), "<cluster>") if from_cluster else _read(file)
        try:
            click.echo(one.convert(data, name, **options), nl=False)
        except ValueError as error:  # of an option
            raise click.BadParameter(str(error), param_hint="--services") from None

    text = f"""Converts {one.what}. "-" reads standard input.

    FILE contains {one.reads}; also in a List, in several documents, in a HelmRelease, an
    Argo CD Application or a HelmChart, as printed by kubectl. The result offers the same resources;
    comments in it name the differences.
    """
    whole = click.Option(
        ["--from-cluster"], is_flag=True, help="Read the plugin's objects with kubectl instead of a file."
    )
    parameters = [click.Argument(["file"], default="", required=False), *one.options, whole]
    return click.Command(one.name, callback=run, params=parameters, help=text)


def _read(file: str) -> tuple[bytes, str]:
    """The content of a file or of standard input, and its name in diagnostics."""
    if file == "-":
        return read_standard_input(Diagnostics("<stdin>")), "<stdin>"
    return read_file(Path(file), Diagnostics(file)), file


for _one in _ALL:
    command.add_command(_as_command(_one))
