"""Converts the configuration file of the NVIDIA device plugin to devhost.yaml.

The input is the file itself, a ConfigMap that contains one or more, or the values of Helm charts that install
the plugin. Settings that the plugin reads but ignores (names by pattern, ``rename``, ``devices``) are omitted
with a remark, because pods request what the plugin serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NoReturn

from devhost.cli.importers.gojson import Remark
from devhost.cli.importers.kubernetes import (
    GUIDE,
    Object,
    at,
    config_map_entry,
    held,
    objects,
    opened,
    text_at,
    the_holder,
    unwrapped,
)
from devhost.cli.importers.notation import quoted, text
from devhost.cli.importers.workload import Container, containers
from devhost.config.diagnostics import Diagnostics, Place, one_line
from devhost.config.document import Fields, Node
from devhost.config.reader import WRONG, read_dataclass
from devhost.planning.settings import LABEL_DIRECTORY

from .config import Config
from .entries import Entries, Entry, Value
from .values import CHOOSE, Values, found_in, of_container, others, read_config, read_values, settled

CONFIG_KEY = "default"
"""The configuration in a ConfigMap that the plugin's chart uses for a node without a label."""

_VALUES = {
    "HelmRelease": ("spec", "values"),
    "HelmChart": ("spec", "valuesContent"),
    "HelmChartConfig": ("spec", "valuesContent"),
}
"""Objects of Flux and k3s that contain values of a chart."""


def convert(data: bytes, file_name: str, key: str = "", *, as_written: bool = False) -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's configuration, a ConfigMap that contains it, or values of a chart, as YAML or JSON.
        file_name: appears in the diagnostics.
        key: the configuration to read if there are several; if empty, the chart's default or
            :data:`CONFIG_KEY`.
        as_written: apply settings that the plugin reads but ignores.

    Raises:
        ConfigError: it is not a configuration, or the plugin would refuse it; with every error in it.
    """
    diagnostics = Diagnostics(file_name)
    notes: list[str] = []
    remarks: list[Remark] = []
    found = objects(data, diagnostics)
    started = [container for thing in found for container in containers(thing)]
    running = [one for one in started if _runs_it(one)]
    if len(running) > 1:
        message = "several containers run the NVIDIA device plugin; this is the second"
        running[1].place.diagnostics.fail(running[1].node.mark, message, "give only one of them")
    if running:
        (plugin,) = running
        # the chart's sidecar of the plugin knows the default configuration
        default = next(filter(None, (one.variable("DEFAULT_CONFIG") for one in started)), "")
        node, place = _beside(plugin, found, key or default, notes)
        config_node = read_config(node, place, remarks.append)
        read = settled(config_node, of_container(plugin), plugin.place, place)
    else:
        node, place = _document(found, key, notes)
        if (values := found_in(node, place)) is not None:
            read = read_values(*values, key, remarks.append)
        else:
            read = Values(read_config(node, place, remarks.append), place)
    node, place, notes = read.config, read.place, [*notes, *read.notes]
    config = read_dataclass(node, Config, place)
    if config is WRONG or diagnostics.found:
        for remark in remarks:  # they may explain the error
            place.diagnostics.add(remark.mark, remark.path, remark.message, remark.hint)
        raise (diagnostics if diagnostics.found else place.diagnostics).error()
    return "\n".join(_written(config, [*notes, *map(str, remarks)], as_written=as_written)) + "\n"


def _runs_it(container: Container) -> bool:
    """Whether it is the NVIDIA device plugin, not a helper from the same image."""
    image = container.image
    ours = "nvidia" in image and "k8s-device-plugin" in image
    return ours and container.program in ("", "nvidia-device-plugin")


def _beside(container: Container, found: Sequence[Object], key: str, notes: list[str]) -> tuple[Node, Place]:
    """The configuration file that a container reads; an empty one if it has only variables.

    Raises:
        ConfigError: it is not in the file.
    """
    for name, _ in container.variables():
        if name.startswith("DP_"):
            notes.append(f"{name}: see {GUIDE} for the equivalent option.")
    if any(one.kind == "ConfigMap" for one in found):
        return _document([one for one in found if one.kind == "ConfigMap"], key, notes)
    if container.variable("CONFIG_FILE") or any(flag.name == "config-file" for flag in container.flags()):
        message = "its configuration is in a ConfigMap, which is not in this file"
        container.place.diagnostics.fail(container.node.mark, message, "add the ConfigMap")
    return Fields(container.node.mark), container.place


def _document(found: Sequence[Object], key: str, notes: list[str]) -> tuple[Node, Place]:
    """The document that contains the configuration or the values.

    Raises:
        ConfigError: there is none.
    """
    policy = next((one for one in found if one.kind == "ClusterPolicy"), None)
    maps = [one for one in found if one.kind == "ConfigMap"]
    if policy is not None:
        section = at(policy.node, "spec", "devicePlugin", "config")
        name = text_at(section, "name") if section is not None else ""
        key = key or (text_at(section, "default") if section is not None else "")
        maps = [one for one in maps if one.name == name]
        if not maps:
            _point_to_map(policy, name, key)
        found = maps
    wanted = key or CONFIG_KEY
    holder = the_holder(found, config_map_key=wanted, fields=_VALUES)
    if holder.kind == "ConfigMap":
        chosen = config_map_entry(holder, wanted, CHOOSE, strict=bool(key))
        names = [*data.entries] if isinstance(data := at(holder.node, "data"), Fields) else []
        notes += others(chosen, names)
        return opened(*held(holder, "data", chosen))
    return unwrapped([holder], config_map_key=wanted, fields=_VALUES)


def _point_to_map(policy: Object, name: str, key: str) -> NoReturn:
    """Reports where to find the configuration that the GPU operator's object only names."""
    if name:
        which = f" --key {key}" if key else ""
        command = f"devhost import nvidia-device-plugin{which} -"
        hint = f"kubectl get configmap {name} -n NAMESPACE -o yaml | {command}"
        message = f"{policy} contains no configuration, it names the ConfigMap {name}"
    else:
        hint = f"see {GUIDE}"
        message = f"{policy} contains no configuration, and names none under spec.devicePlugin.config"
    policy.place.diagnostics.fail(policy.node.mark, message, hint)


def _written(config: Config, remarks: Sequence[str], *, as_written: bool) -> Iterator[str]:
    notes: list[str] = []
    options = dict(_options(config, notes))
    entries = list(Entries(config, as_written=as_written).all(notes))
    yield "# Converted from a configuration of the NVIDIA device plugin. Differences:"
    yield "# - with devhost an Unhealthy GPU becomes Healthy again, with the plugin only after a restart;"
    yield "# - devhost follows changes of GPUs and MIG instances, the plugin needs a restart."
    for note in [*remarks, *notes]:
        yield f"# {one_line(note)}"
    yield "version: 1"
    yield ""
    if options:
        yield "backends:"
        yield "  gpu:"
        yield from (f"    {name}: {_flow(value)}" for name, value in options.items())
        yield ""
    if (discovery := config.flags.gfd) is not None:
        directory = str(PurePosixPath(discovery.output_file or LABEL_DIRECTORY / "gfd").parent)
        elsewhere = "" if directory == str(LABEL_DIRECTORY) else f", directory: {text(directory)}"
        yield "# The labels of gpu-feature-discovery: remove that program, or both write them."
        yield f"labels: {{write: true{elsewhere}}}"
        yield ""
    yield "resources:"
    for entry in entries:
        yield from _entry(entry)


def _options(config: Config, notes: list[str]) -> Iterator[tuple[str, Value]]:
    """The options of the backend. Adds to ``notes`` what they cannot express."""
    flags, plugin = config.flags, config.flags.plugin
    strategies = _strategies(config, notes)
    if flags.nvidia_driver_root not in ("", "/"):
        yield "driverRoot", flags.nvidia_driver_root
    if flags.nvidia_dev_root not in ("", flags.nvidia_driver_root):
        yield "devRoot", flags.nvidia_dev_root
    if strategies != ["envvar"]:
        yield "deviceListStrategy", strategies if len(strategies) > 1 else strategies[0]
    if plugin.device_ID_strategy == "index":
        yield "deviceIDStrategy", "index"
    if "cdi" in strategies and plugin.nvidia_CTK_path:
        is_toolkit = PurePosixPath(plugin.nvidia_CTK_path).name == "nvidia-ctk"
        yield "nvidiaCTKPath" if is_toolkit else "nvidiaCDIHookPath", plugin.nvidia_CTK_path
    extras = {
        "gdsEnabled": flags.gds_enabled,
        "mofedEnabled": flags.mofed_enabled,
        "gdrcopyEnabled": flags.gdrcopy_enabled,
    }
    yield from ((name, True) for name, wanted in extras.items() if wanted)
    if config.imex.channel_IDs:
        yield "imexChannelIDs", config.imex.channel_IDs
        if config.imex.required:
            notes.append("imex.required is omitted: a container gets the channels that its node has.")
    notes += _without_place(config)


def _strategies(config: Config, notes: list[str]) -> list[str]:
    plugin = config.flags.plugin
    found = [one for one in plugin.strategies if not one.startswith("cdi-")]
    for_cdi = [one for one in plugin.strategies if one.startswith("cdi-")]
    if {"envvar", "volume-mounts"} <= set(found):
        found.remove("envvar")
        notes.append(
            "deviceListStrategy: together with volume-mounts the plugin ignores envvar; it is omitted."
        )
    if plugin.pass_device_specs and found:
        found.append("device-specs")
    elif plugin.pass_device_specs:
        notes.append("passDeviceSpecs: the plugin ignores it if CDI is the only strategy; it is omitted.")
    if for_cdi and "cdi-cri" not in for_cdi:
        notes.append(
            "cdi-annotations: devhost passes the names in the field for CDI devices, as with cdi-cri."
        )
    return [*found, "cdi"] if for_cdi else found


def _without_place(config: Config) -> Iterator[str]:
    flags, plugin = config.flags, config.flags.plugin
    if config.sharing.mps:
        yield (
            "sharing.mps: devhost does not start MPS servers, it uses those of the plugin's "
            "mps-control-daemon: keep it running."
        )
    if not flags.fail_on_init_error:
        yield "failOnInitError is omitted: devhost retries GPUs that cannot be used."
    if flags.device_discovery_strategy not in ("auto", "nvml"):
        strategy = flags.device_discovery_strategy
        yield f"deviceDiscoveryStrategy {strategy}: devhost serves only PCI GPUs."
    if plugin.container_driver_root:
        yield "containerDriverRoot is omitted: devhost resolves driverRoot below its --root."
    if plugin.cdi_annotation_prefix:
        yield "cdiAnnotationPrefix is omitted: devhost does not pass CDI names as annotations."


def _entry(entry: Entry) -> Iterator[str]:
    for remark in entry.remarks:
        yield f"  # {one_line(remark)}"
    yield f"  - name: {quoted(entry.name) if '{' in entry.name else text(entry.name)}"
    yield "    backend: gpu"
    blocks = [_block(where, entry.no) for where in entry.where]
    if len(blocks) == 1:
        yield f"    where: {blocks[0]}"
    else:
        yield "    where:"
        yield from (f"      - {block}" for block in blocks)
    if entry.overrides:
        yield "    share:"
        if entry.most:
            yield f"      maxPerContainer: {entry.most}"
        yield "      overrides:"
        for where, replicas in entry.overrides:
            yield f"        - {{where: {_block(where)}, replicas: {replicas}}}"
    elif entry.replicas > 1:
        limit = f", maxPerContainer: {entry.most}" if entry.most else ""
        yield f"    share: {{replicas: {entry.replicas}{limit}}}"
    if entry.mps_root:
        yield f"    mps: {{root: {text(entry.mps_root)}}}"
    if entry.prefer:
        yield f"    prefer: {entry.prefer}"


def _block(where: Mapping[str, Value], no: Mapping[str, Value] | None = None) -> str:
    parts = [f"{key}: {_flow(value)}" for key, value in where.items()]
    if no:
        parts.append(f"not: {_block(no)}")
    return f"{{{', '.join(parts)}}}"


def _flow(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return text(value) if isinstance(value, str) else f"[{', '.join(map(_flow, value))}]"
