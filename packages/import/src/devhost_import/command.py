"""``devhost import``: the configuration of another device plugin, as devhost.yaml.

With ``--from-cluster`` it reads objects with the user's own ``kubectl``; devhost needs no rights for it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from devhost.backend import process
from devhost.backend.errors import UsageError
from devhost.cli.options import Group
from devhost.config.diagnostics import Diagnostics, shown, suggest
from devhost.config.document import read_file, read_standard_input

from . import akri, amd, generic, gke, intel, kubevirt, nvidia, rdma, smarter, sriov
from .source import GUIDE, INTEL, Source

_PATIENCE = 60.0  # seconds that one call of kubectl may take
_LIMIT = 1 << 26  # bytes that it may print
_CONFIG_MAP = re.compile(r"\.(configMap(Key)?(Ref)?|devicePlugin\.config)\.name$|\.provisioningConfig$")


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


def _objects(kinds: str = "", images: str = "") -> bytes:
    """The plugin's objects and workloads and the ConfigMaps that they name, as a List. ``kinds`` are custom
    resources of the plugin and its operator. One of ``images`` is in the image of each container that runs
    the plugin; its parts between slashes may also be in names, for the image of a mirror."""
    found = [one for kind in kinds.split() for one in _get(kind)]
    for one in _get("daemonsets.apps"):
        pods, name = one["spec"]["template"]["spec"]["containers"], one["metadata"]["name"]
        texts = [f"{name} {each.get('name')} {each.get('image')}" for each in pods]
        if any(all(part in text for part in word.split("/")) for word in images.split() for text in texts):
            found.append(one)
    if not found:
        what = ", ".join((*kinds.split(), *(f"DaemonSets with the image {word}" for word in images.split())))
        raise UsageError(f"the cluster has none of: {what}", "give a file, or check kubectl's context")
    pairs = [(name, one["metadata"].get("namespace")) for one in found for name in _config_maps(one)]
    for name, namespace in dict.fromkeys(pairs):
        where = ("-n", namespace) if namespace else ("-A",)
        found += _get("configmaps", "--field-selector", f"metadata.name={name}", where=where)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": found}).encode()


def _config_maps(node: Any, path: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, one in node.items():
            yield from _config_maps(one, f"{path}.{key}")
    elif isinstance(node, list):
        for one in node:
            yield from _config_maps(one, path)
    elif _CONFIG_MAP.search(path):
        yield str(node)


def _get(kind: str, *more: str, where: Sequence[str] = ("-A",)) -> list[dict[str, Any]]:
    """The objects of a kind; none if the cluster does not know the kind."""
    command = ["kubectl", "get", kind, *where, *more, "-o", "json"]
    if shutil.which("kubectl") is None:
        raise UsageError("kubectl is not installed", "install it, or give a file")
    here = ["env", "-C", str(Path.cwd())]  # KUBECONFIG may be a relative path
    try:
        done = process.run([*here, *command], deadline=_PATIENCE, name="kubectl", limit=_LIMIT)
    except process.OutputTooLarge:
        raise UsageError(f"{' '.join(command)} printed more than {_LIMIT >> 20} MiB", "give a file") from None
    except process.ProcessError:
        raise UsageError(f"kubectl did not answer within {_PATIENCE:g} s", "check its context") from None
    if done.status:
        reason = done.errors.decode(errors="replace").strip().rpartition("\n")[2]  # after its log
        if "the server doesn't have a resource type" in reason:
            return []
        raise UsageError(f"{' '.join(command)} failed: {reason}", "check kubectl's context and your rights")
    try:
        return [one for one in json.loads(done.output)["items"] if isinstance(one, dict)]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{' '.join(command)} printed no list", "check kubectl") from None


def _add(name: str, importer: ModuleType, reads: str, *options: click.Option, **wanted: str) -> None:
    """Adds the command of an importer; ``wanted`` is what ``--from-cluster`` looks for."""

    def run(file: str, *, from_cluster: bool, **options: Any) -> None:
        if from_cluster == bool(file):
            raise UsageError("give either FILE or --from-cluster", f"devhost import {name} --help")
        if from_cluster:
            data, label = _objects(**wanted), "<cluster>"
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
    cluster = click.Option(["--from-cluster"], is_flag=True, help=whole)
    parameters = [click.Argument(["file"], default="", required=False), *options, cluster]
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
*_KINDS, _LAST_KIND = INTEL

# fmt: off
_add("akri", akri, "one or more Configurations of akri.sh", kinds="configurations.akri.sh")
_add("amd-device-plugin", amd,
     "its DaemonSet, a DeviceConfig of the AMD GPU operator, or values of the operator's chart",
     kinds="deviceconfigs.amd.com", images="rocm/k8s-device-plugin")
_add("generic-device-plugin", generic,
     "its file, the argument of its --device flag, a ConfigMap, its DaemonSet, or values of app-template",
     _option("--domain", "DOMAIN", "Domain of the resources. Required if FILE does not contain it: the "
             f"plugin's default is {generic.DEFAULTS}."),
     _key("config.yaml"), images="generic-device-plugin")
_add("gke-device-plugin", gke,
     "/etc/nvidia/gpu_config.json of a node, a ConfigMap, or the plugin's DaemonSet",
     _key(gke.CONFIG_KEY), images="nvidia-gpu-device-plugin device-plugin-gpu")
_add("intel-device-plugins", intel,
     f"objects of the kinds {', '.join(_KINDS)} and {_LAST_KIND}, DaemonSets, or values of a chart",
     _option("--services", "SERVICES", "Services of QAT devices of generation 4, in the format of "
             "cfg_services in sysfs.", f"the ConfigMap's in FILE, else {intel.DEFAULT_SERVICES}"),
     kinds=" ".join(f"{name}deviceplugins.deviceplugin.intel.com" for name in sorted(INTEL.values())),
     images=" ".join(f"intel-{name}-plugin" for name in sorted(INTEL.values())))
_add("kubevirt", kubevirt, "a KubeVirt or HyperConverged object, or its spec", kinds="kubevirts.kubevirt.io")
_add("nvidia-device-plugin", nvidia,
     "its file, a ConfigMap, its DaemonSet, a ClusterPolicy of the GPU operator, or values of a chart",
     _key("the chart's config.default, else default"),
     click.Option(["--as-written"], is_flag=True, help="Apply settings that the plugin reads but ignores: "
                  "names by pattern, rename, devices."),
     kinds="clusterpolicies.nvidia.com", images="nvidia/k8s-device-plugin")
_add("rdma-shared-dev-plugin", rdma, _OF_NETWORK_OPERATOR, _key("config.json"),
     kinds=_POLICIES, images="k8s-rdma-shared-dev-plugin")
_add("smarter-device-manager", smarter, "its file, a ConfigMap, or values of a chart",
     _key(smarter.CONFIG_KEY), images="smarter-device-manager")
_add("sriov-network-device-plugin", sriov, _OF_NETWORK_OPERATOR, _key("config.json"),
     _option("--resource-prefix prefix", "DOMAIN", "Domain of resources without a prefix, as in the plugin's "
             "flag of this name.", f"that of a DaemonSet in FILE, else {sriov.DEFAULT_PREFIX}"),
     kinds=_POLICIES, images="sriov-network-device-plugin")
