"""The configuration file of NVIDIA's device plugin → devhost.yaml.

Read are the file itself, a ConfigMap that holds one or several, and the values of Helm charts that install
the plugin. What the plugin reads and then ignores (names by pattern, ``rename``, ``devices``) is left out
with a remark, for pods ask for what it serves.
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
"""Which of several configurations in a ConfigMap the plugin's chart takes for a node without a label."""

_VALUES = {
    "HelmRelease": ("spec", "values"),
    "HelmChart": ("spec", "valuesContent"),
    "HelmChartConfig": ("spec", "valuesContent"),
}
"""Objects of Flux and k3s that hold values of a chart."""


def convert(data: bytes, file_name: str, key: str = "", *, as_written: bool = False) -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's configuration, a ConfigMap that holds it, or values of a chart, as YAML or JSON.
        file_name: stands in the diagnostics.
        key: which configuration, where there are several; the default of the chart, or :data:`CONFIG_KEY`, if
            empty.
        as_written: heeds what the plugin reads and ignores.

    Raises:
        ConfigError: the plugin would refuse it, or it is none; with everything wrong in it.
    """
    diagnostics = Diagnostics(file_name)
    notes: list[str] = []
    remarks: list[Remark] = []
    found = objects(data, diagnostics)
    started = [container for thing in found for container in containers(thing)]
    running = [one for one in started if _runs_it(one)]
    if len(running) > 1:
        message = "several containers run NVIDIA's device plugin: here is the second"
        running[1].place.diagnostics.fail(running[1].node.mark, message, "give it one of them")
    if running:
        (plugin,) = running
        # the chart's helper beside the plugin knows which configuration is the default
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
        for remark in remarks:  # they may be what is wrong
            place.diagnostics.add(remark.mark, remark.path, remark.message, remark.hint)
        raise (diagnostics if diagnostics.found else place.diagnostics).error()
    return "\n".join(_written(config, [*notes, *map(str, remarks)], as_written=as_written)) + "\n"


def _runs_it(container: Container) -> bool:
    """Whether it is NVIDIA's plugin, and no helper from the same image."""
    image = container.image
    ours = "nvidia" in image and "k8s-device-plugin" in image
    return ours and container.program in ("", "nvidia-device-plugin")


def _beside(container: Container, found: Sequence[Object], key: str, notes: list[str]) -> tuple[Node, Place]:
    """The configuration that a container reads beside its variables; an empty one where it reads none.

    Raises:
        ConfigError: it is not in the file.
    """
    for name, _ in container.variables():
        if name.startswith("DP_"):
            notes.append(f"{name}: see {GUIDE} for the option that does the same.")
    if any(one.kind == "ConfigMap" for one in found):
        return _document([one for one in found if one.kind == "ConfigMap"], key, notes)
    if container.variable("CONFIG_FILE") or any(flag.name == "config-file" for flag in container.flags()):
        message = "its configuration is in a ConfigMap, which is not in this file"
        container.place.diagnostics.fail(container.node.mark, message, "add the ConfigMap")
    return Fields(container.node.mark), container.place


def _document(found: Sequence[Object], key: str, notes: list[str]) -> tuple[Node, Place]:
    """The document that holds the configuration or the values.

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
    """Says where the configuration is that the GPU operator's object only names."""
    if name:
        which = f" --key {key}" if key else ""
        command = f"devhost import nvidia-device-plugin{which} -"
        hint = f"kubectl get configmap {name} -n NAMESPACE -o yaml | {command}"
        message = f"{policy} holds no configuration, it names the ConfigMap {name}"
    else:
        hint = f"see {GUIDE}"
        message = f"{policy} holds no configuration, and names none under spec.devicePlugin.config"
    policy.place.diagnostics.fail(policy.node.mark, message, hint)


def _written(config: Config, remarks: Sequence[str], *, as_written: bool) -> Iterator[str]:
    notes: list[str] = []
    options = dict(_options(config, notes))
    entries = list(Entries(config, as_written=as_written).all(notes))
    yield "# Made from a configuration of NVIDIA's device plugin. What differs there:"
    yield "# - a GPU that turned Unhealthy stays so until a restart; here it returns when it is well;"
    yield "# - GPUs and MIG instances that come, go or change need a restart; here they do not."
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
        yield "# The labels of gpu-feature-discovery: remove that program, or both will write them."
        yield f"labels: {{write: true{elsewhere}}}"
        yield ""
    yield "resources:"
    for entry in entries:
        yield from _entry(entry)


def _options(config: Config, notes: list[str]) -> Iterator[tuple[str, Value]]:
    """The options of the backend; ``notes`` hears what has no place among them."""
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
            notes.append(
                "imex.required has no place here: a container gets those channels that its node has."
            )
    notes += _without_place(config)


def _strategies(config: Config, notes: list[str]) -> list[str]:
    plugin = config.flags.plugin
    found = [one for one in plugin.strategies if not one.startswith("cdi-")]
    for_cdi = [one for one in plugin.strategies if one.startswith("cdi-")]
    if {"envvar", "volume-mounts"} <= set(found):
        found.remove("envvar")
        notes.append("deviceListStrategy: beside volume-mounts envvar has no effect there; it is left out.")
    if plugin.pass_device_specs and found:
        found.append("device-specs")
    elif plugin.pass_device_specs:
        notes.append("passDeviceSpecs: the plugin ignores it with CDI alone, and so does this.")
    if for_cdi and "cdi-cri" not in for_cdi:
        notes.append("cdi-annotations: the names stand in a field of their own, as with cdi-cri.")
    return [*found, "cdi"] if for_cdi else found


def _without_place(config: Config) -> Iterator[str]:
    flags, plugin = config.flags, config.flags.plugin
    if config.sharing.mps:
        yield (
            "sharing.mps: devhost starts no MPS server, it gives containers those of the plugin's "
            "mps-control-daemon: keep that."
        )
    if not flags.fail_on_init_error:
        yield "failOnInitError has no place here: GPUs that cannot be used are tried again until they can."
    if flags.device_discovery_strategy not in ("auto", "nvml"):
        strategy = flags.device_discovery_strategy
        yield f"deviceDiscoveryStrategy {strategy}: only GPUs that are on PCI are served."
    if plugin.container_driver_root:
        yield "containerDriverRoot has no place here: devhost looks below its --root for driverRoot."
    if plugin.cdi_annotation_prefix:
        yield "cdiAnnotationPrefix has no place here: CDI names are not given as annotations."


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
