"""Converts values of Helm charts that install the NVIDIA device plugin to the resulting configuration.

The charts are the plugin's own and that of the NVIDIA GPU operator. A chart sets variables from some values,
and for the plugin a variable takes precedence over its file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from devhost.cli.importers.gojson import Remark
from devhost.cli.importers.kubernetes import GUIDE, at, opened, some, text_at
from devhost.cli.importers.workload import Container
from devhost.config.diagnostics import Place, suggest
from devhost.config.document import Entry, Fields, Items, Node, Scalar
from devhost.config.reader import WRONG, keys, read

from .config import Config, Flags, Plugin, pruned

CHOOSE = "choose one with --key"

_OTHERWISE: Mapping[tuple[str, ...], str] = {
    ("compatWithCPUManager",): "PASS_DEVICE_SPECS",
    ("mps", "root"): "MPS_ROOT",
    ("devicePlugin", "mps", "root"): "",
    ("cdi", "nvidiaHookPath"): "NVIDIA_CDI_HOOK_PATH",
}
"""Settings whose variables have other names than the chart's keys."""

_SWITCHES = frozenset(
    {"pass-device-specs", "fail-on-init-error", "gdrcopy-enabled", "gds-enabled", "mofed-enabled"}
)
"""Flags that need no value."""

_PLUGIN = ("flags", "plugin")
_SETTINGS: Mapping[tuple[str, ...], tuple[tuple[str, ...], str]] = {
    ("migStrategy",): (("flags",), "migStrategy"),
    ("mig", "strategy"): (("flags",), "migStrategy"),
    ("failOnInitError",): (("flags",), "failOnInitError"),
    ("nvidiaDriverRoot",): (("flags",), "nvidiaDriverRoot"),
    ("nvidiaDevRoot",): (("flags",), "nvidiaDevRoot"),
    ("gdrcopyEnabled",): (("flags",), "gdrcopyEnabled"),
    ("gdsEnabled",): (("flags",), "gdsEnabled"),
    ("mofedEnabled",): (("flags",), "mofedEnabled"),
    ("deviceDiscoveryStrategy",): (("flags",), "deviceDiscoveryStrategy"),
    ("mps", "root"): (("flags",), "mpsRoot"),
    ("devicePlugin", "mps", "root"): (("flags",), "mpsRoot"),
    ("compatWithCPUManager",): (_PLUGIN, "passDeviceSpecs"),
    ("deviceListStrategy",): (_PLUGIN, "deviceListStrategy"),
    ("deviceIDStrategy",): (_PLUGIN, "deviceIDStrategy"),
    ("cdi", "nvidiaHookPath"): (_PLUGIN, "nvidiaCTKPath"),
}
"""Where the charts have a setting, and where the plugin's file has it."""

_BOTH = frozenset({"config", "devicePlugin", "gfd"})
"""Further keys that this module reads."""

_OPERATOR = frozenset({
    "ccManager", "daemonsets", "dcgm", "dcgmExporter", "driver", "gdrcopy", "gds", "hostPaths",
    "kataManager", "mig", "migManager", "nodeStatusExporter", "operator", "platform", "psa", "psp",
    "sandboxDevicePlugin", "sandboxWorkloads", "toolkit", "validator", "vfioManager",
    "vgpuDeviceManager", "vgpuManager",
})  # fmt: skip
"""Keys of the operator's chart, which starts gpu-feature-discovery unless its values disable it."""

_OF_PODS = frozenset({
    "affinity", "allowDefaultNamespace", "componentSelectorLabels", "fullnameOverride", "global",
    "image", "imagePullSecrets", "legacyDaemonsetAPI", "nameOverride", "namespaceOverride", "nfd",
    "nodeSelector", "podAnnotations", "podSecurityContext", "priorityClassName", "resources",
    "runtimeClassName", "securityContext", "selectorLabelsOverride", "serviceAccount", "tolerations",
    "updateStrategy",
})  # fmt: skip
"""Keys for the plugin's pods, which many charts have."""

_IDENTIFYING = (
    *(("config", key) for key in ("map", "name", "default", "fallbackStrategies")),
    ("devicePlugin", "config"),
    ("gfd", "enabled"),
    *((key,) for key in ("dcgmExporter", "migManager", "nodeStatusExporter", "sandboxDevicePlugin")),
)
"""Keys that, besides the settings, identify values of these charts."""

_SUBCHARTS = ("nvidia-device-plugin", "gpu-operator")
"""Keys under which a chart with one of the two as a subchart has its values."""


@dataclass(slots=True)
class Values:
    """The configuration that results from the values, and remarks."""

    config: Fields
    place: Place
    notes: list[str] = field(default_factory=list)


def found_in(node: Node, place: Place) -> tuple[Fields, Place] | None:
    """The values in a document; ``None`` if it is something else."""
    if not isinstance(node, Fields):
        return None
    for key in _SUBCHARTS:
        inner = at(node, key)
        if isinstance(inner, Fields):
            return inner, place.key(key)
    if node.entries.keys() & {"version", "flags", "sharing", "imex"}:
        return None
    found = any(at(node, *path) is not None for path in (*_SETTINGS, *_IDENTIFYING))
    return (node, place) if found else None


def read_config(node: Node, place: Place, remark: Callable[[Remark], None]) -> Fields:
    """The plugin's configuration without keys that it ignores. Calls ``remark`` for each of them.

    Raises:
        ConfigError: it is not a mapping, or it has no key that the plugin knows.
    """
    if isinstance(node, Fields) and node.entries and not _is_known(node):
        hint = f"known keys: {', '.join(sorted(keys(Config)))}; for other plugins see {GUIDE}"
        message = "it has no key of the NVIDIA device plugin's configuration"
        place.diagnostics.fail(node.mark, message, hint)
    config = pruned(node, Config, place, remark)
    if not isinstance(config, Fields):
        place.diagnostics.fail(node.mark, f"must be a mapping, not {node}", f"see {GUIDE}")
    return config


def _is_known(node: Fields) -> bool:
    """Whether the plugin reads any of the keys. ``resources`` of a chart is not the key of the plugin."""
    names = {name.lower() for name in keys(Config)}
    for name, entry in node.entries.items():
        inner = {one.lower() for one in entry.value.entries} if isinstance(entry.value, Fields) else set()
        foreign = name.lower() == "resources" and inner and not inner & {"gpus", "mig"}
        if name.lower() in names and not foreign:
            return True
    return False


def settled(config: Fields, values: Fields, place: Place, where: Place, notes: Sequence[str] = ()) -> Values:
    """A configuration with the settings of the values.

    Args:
        config: the configuration, which is changed.
        values: the values.
        place: the place of the values.
        where: the place of the configuration.
        notes: remarks so far.
    """
    for path, name, value in _given(values, place):
        _set(config, path, name, value)
    return Values(config, where, list(notes))


def read_values(values: Fields, place: Place, key: str, remark: Callable[[Remark], None]) -> Values:
    """The configuration of a node without a label, or the requested one.

    Args:
        values: the values.
        place: the place of the values.
        key: which of several configurations; if empty, the chart's choice.
        remark: called with each key that is ignored.

    Raises:
        ConfigError: the configuration is elsewhere, or it is ambiguous.
    """
    of_operator = bool(values.entries.keys() & _OPERATOR) or at(values, "devicePlugin", "config") is not None
    notes: list[str] = []
    node, where = _chosen(values, place, key, notes)
    config = read_config(node, where, remark)
    known = {path[0] for path in _SETTINGS} | _BOTH | _OPERATOR | _OF_PODS
    for name, entry in values.entries.items():
        if name not in known:
            message = "the chart ignores this unknown key"
            remark(Remark(entry.mark, place.key(name).path, message, suggest(name, known, "keys")))
    _features(values, config, of_operator=of_operator, notes=notes)
    ignored = sorted(values.entries.keys() & (_OF_PODS | _OPERATOR) - {"mig"})
    if ignored:
        notes.append(
            f"{', '.join(ignored)}: settings of the chart's pods; for those of devhost see deploy/README.md."
        )
    return settled(config, values, place, where, notes)


def of_container(container: Container) -> Fields:
    """A container's variables and flags, as the values of the chart that lead to them."""
    names = {_variable(path): path for path in _SETTINGS if path != ("mig", "strategy")}
    values = Fields(container.node.mark)
    given = [(flag.name, flag.value) for flag in container.flags(switches=_SWITCHES)]
    for name, value in [*container.variables(), *given]:  # a flag takes precedence over a variable
        path = names.get(name.upper().replace("-", "_"))
        if path is None:
            continue
        kind = "bool" if value.text.lower() in ("true", "false") else value.kind
        switched = not value.text and name in _SWITCHES
        node = Scalar(value.mark, "true" if switched else value.text.strip(), "bool" if switched else kind)
        _set(values, path[:-1], path[-1], node)
    return values


def _variable(path: tuple[str, ...]) -> str:
    """The plugin's variable for a setting of the chart; its flag is the same in lower case."""
    if path in _OTHERWISE:
        return _OTHERWISE[path]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path[-1]).upper()


def _chosen(values: Fields, place: Place, key: str, notes: list[str]) -> tuple[Node, Place]:
    """The text of one of the named configurations, in the order in which the chart looks for one."""
    path: tuple[str, ...] = ("config",)
    listed = "map"
    if at(values, "devicePlugin", "config") is not None:
        path, listed = ("devicePlugin", "config"), "data"
    section = at(values, *path)
    here = place
    for step in path:
        here = here.key(step)
    default = text_at(section, "default") if section is not None else ""
    named = text_at(section, "name") if section is not None else ""
    configs = at(section, listed) if section is not None else None
    names = [*configs.entries] if isinstance(configs, Fields) else []
    if not names:
        if named and section is not None:
            message = f"the configuration is in the ConfigMap {named}"
            which = f" --key {default}" if default else ""
            hint = f"kubectl get configmap {named} -o yaml | devhost import nvidia-device-plugin{which} -"
            place.diagnostics.fail(section.mark, message, hint)
        if key:
            place.diagnostics.fail(values.mark, f"it has no {here.key(listed).key(key).path}")
        return Fields(values.mark), place
    assert isinstance(configs, Fields)
    strategies = at(section, "fallbackStrategies") if section is not None else None
    fallbacks = (
        [one.text for one in strategies.items if isinstance(one, Scalar)]
        if isinstance(strategies, Items)
        else ["named", "single"]
    )
    wanted = key or default
    if not wanted and "named" in fallbacks and "default" in names:
        wanted = "default"
    if not wanted and "single" in fallbacks and len(names) == 1:
        wanted = names[0]
    if not wanted and "empty" in fallbacks:
        notes.append(f"A node without a label uses none of the configurations {some(names)}: {CHOOSE}.")
        return Fields(values.mark), place
    if wanted not in names:
        message = (
            f"it has no {here.key(listed).key(wanted).path}" if wanted else "no configuration is the default"
        )
        place.diagnostics.fail(configs.mark, message, f"{CHOOSE}, which may be {some(names)}")
    notes += others(wanted, names)
    return opened(configs.entries[wanted].value, here.key(listed).key(wanted))


def others(chosen: str, names: list[str]) -> Iterator[str]:
    """The remark if there are more configurations than the one that was read."""
    left = [name for name in names if name != chosen]
    if left:
        yield (
            f"This is the configuration {chosen}. For nodes with another one in the label "
            f"nvidia.com/device-plugin.config ({some(left)}), import it with --key."
        )


def _given(values: Fields, place: Place) -> Iterator[tuple[tuple[str, ...], str, Node]]:
    """The settings that the charts pass to the plugin as variables, without invalid ones."""
    kinds = {("flags",): keys(Flags), _PLUGIN: keys(Plugin)}
    for path, (section, name) in _SETTINGS.items():
        value, here = at(values, *path), place
        for step in path:
            here = here.key(step)
        if value is None or (isinstance(value, Scalar) and value.kind == "null"):
            continue
        if name == "deviceListStrategy" and isinstance(value, Scalar) and "," in value.text:
            parts = (Scalar(value.mark, part.strip(), "str") for part in value.text.split(","))
            value = Items(value.mark, tuple(parts))
        if read(value, kinds[section][name][1], here) is not WRONG:
            yield section, name, value


def _features(values: Fields, config: Fields, *, of_operator: bool, notes: list[str]) -> None:
    """gpu-feature-discovery, which the chart starts or not, regardless of the file."""
    enabled = text_at(values, "gfd", "enabled").lower() or ("true" if of_operator else "false")
    flags = at(config, "flags")
    if enabled == "true":
        if at(config, "flags", "gfd") is None:
            _set(config, ("flags",), "gfd", Fields(values.mark))
    elif isinstance(flags, Fields) and "gfd" in flags.entries:
        del flags.entries["gfd"]
        notes.append(
            "flags.gfd: the chart does not start gpu-feature-discovery (gfd.enabled), so no labels are "
            "written."
        )


def _set(config: Fields, path: tuple[str, ...], name: str, value: Node) -> None:
    section = config
    for step in path:
        inner = at(section, step)
        if not isinstance(inner, Fields):
            inner = Fields(value.mark)
            section.entries[step] = Entry(value.mark, inner)
        section = inner
    section.entries[name] = Entry(value.mark, value)
