"""Finds the settings of the NVIDIA device plugin: its file, and the flags and variables that win over it.

They are set by a workload, by values of the plugin's chart, or by the GPU operator, whose ``ClusterPolicy``
has the keys of its chart's values (``TransformDevicePlugin`` in ``controllers/object_controls.go``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from devhost.config.diagnostics import suggest
from devhost.config.document import Fields, Scalar
from devhost.config.reader import keys

from .nvidia_config import Config, Flags, Imex, Plugin
from .source import CHOOSE, GUIDE, HELM, UNKNOWN_KEY, Object, Source, Value, has_key, node_at, some, text_at
from .workload import Container, Options, containers, file_of, the_container, typed

CONFIG_KEY = "default"  # the configuration that the plugin's chart uses for a node without a label
_MARKS = ("flags", "imex", "resources.gpus", "resources.mig", "sharing", "version")  # keys of the file

# the place and the type of each key of the file that variables and flags set as well
_SETTINGS = {
    name: ((*section, name), wanted)
    for section, cls in ((("flags",), Flags), (("flags", "plugin"), Plugin), (("imex",), Imex))
    for name, (_, wanted) in keys(cls).items()
    if name not in ("useNodeFeatureAPI", "plugin", "gfd")
}
# variables that do not have the name of the key (cmd/nvidia-device-plugin/main.go)
_VARIABLES = {
    "nvidiaCTKPath": ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
    "containerDriverRoot": ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
    "channelIDs": ("IMEX_CHANNEL_IDS",),
    "required": ("IMEX_REQUIRED",),
}
_NOT_IN_CHART = (
    "cdiAnnotationPrefix", "channelIDs", "containerDriverRoot", "required", "sharedDevicesAllocationPolicy",
)  # fmt: skip
_IN_CHART = {name: name for name in _SETTINGS if name not in _NOT_IN_CHART} | {
    "passDeviceSpecs": "compatWithCPUManager", "nvidiaCTKPath": "cdi.nvidiaHookPath", "mpsRoot": "mps.root",
}  # fmt: skip
_OF_CHART = {*(path.partition(".")[0] for path in _IN_CHART.values()), "config", "devicePlugin", "gfd"}
_DISCOVERY = {"nfd", "node-feature-discovery"}  # both charts have these
_OF_OPERATOR = _DISCOVERY | {  # parts of the operator in its chart and in the ClusterPolicy
    "ccManager", "clusterPolicy", "dcgm", "dcgmExporter", "draDriver", "driver", "extraObjects", "gdrcopy",
    "gds", "gpuCluster", "kataManager", "kataSandboxDevicePlugin", "migManager", "nodeStatusExporter",
    "operator", "platform", "psa", "psp", "sandboxDevicePlugin", "sandboxWorkloads", "toolkit", "validator",
    "vfioManager", "vgpuDeviceManager", "vgpuManager",
}  # fmt: skip
_SECTIONS = {  # keys with settings of the plugin, of which some are read later
    "cdi": (), "devicePlugin": ("args", "config", "env", "mps"), "gfd": (), "hostPaths": (), "mig": (),
    "mps": (),
}  # fmt: skip
_IN_OPERATOR = {  # where the operator has what the plugin's own chart has at the top
    "compatWithCPUManager": "devicePlugin.env, with PASS_DEVICE_SPECS", "config": "devicePlugin.config",
    "deviceIDStrategy": "devicePlugin.env, with DEVICE_ID_STRATEGY", "migStrategy": "mig.strategy",
    "deviceListStrategy": "devicePlugin.env, with DEVICE_LIST_STRATEGY", "mps": "devicePlugin.mps",
    "nvidiaDriverRoot": "hostPaths.driverInstallDir",
}  # fmt: skip
_OF_VALUES = (  # places by which values of one of the charts are recognized
    *_IN_CHART.values(), "config.map", "config.name", "config.default", "config.fallbackStrategies",
    "devicePlugin.config", "devicePlugin.env", "gfd.enabled", "mig.strategy", "dcgmExporter", "migManager",
    "nodeStatusExporter", "sandboxDevicePlugin", "driver.enabled", "toolkit.enabled",
    "hostPaths.driverInstallDir",
)  # fmt: skip

_SWITCHES = (
    "fail-on-init-error", "gdrcopy-enabled", "gds-enabled", "imex-required", "mofed-enabled",
    "pass-device-specs",
)  # fmt: skip
_OF_THE_PROCESS = (
    "CDI_ENABLED", "CONFIG_FILE", "KUBELET_SOCKET", "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_VISIBLE_DEVICES", "config-file", "kubelet-socket", "v",
)  # fmt: skip
_NO_CTK = "devhost does not pass it to nvidia-ctk."
_OF_CTK = ("CDI_DISABLE_HOOKS", "CDI_FEATURE_FLAGS", "cdi-disable-hooks", "cdi-feature-flags")
_HELPERS = ("config-manager", "gpu-feature-discovery", "mps-control-daemon")  # also in the plugin's image
_CDI_SINCE = (25, 10)  # the operator's first release whose chart enables CDI
_HINT = (
    "give the configuration, the ConfigMap, the DaemonSet, a ClusterPolicy, or values of a chart; for other "
    f"plugins see {GUIDE}"
)


@dataclass(slots=True)
class Settings:
    """The resulting configuration of the plugin, as in its file, and its variables for health checks."""

    config: Value
    health: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, value: Value) -> None:
        """Sets a key of the file."""
        path, wanted = _SETTINGS[name]
        node = typed(value.take(), wanted)
        replace(value, node=node).read_as(wanted)
        self.config = self.config.put(path, node)

    def set_text(self, **texts: str) -> None:
        for name, text in texts.items():
            self.set(name, replace(self.config, node=Scalar(self.config.node.mark, text, "str")))

    def follow(self, options: Options) -> None:
        for name in _SETTINGS:
            usual = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).upper()
            variables = _VARIABLES.get(name, (usual,))
            flags = [one.lower().replace("_", "-") for one in variables]
            flags += [one.removeprefix("nvidia-") for one in flags if one.endswith("-root")]
            for each in filter(None, (options.get(*variables), options.get(*flags))):
                self.set(name, each)
        for name in ("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"):
            self.health[name] = options.get(name).text()
        options.finish(*_OF_THE_PROCESS, named=dict.fromkeys(_OF_CTK, _NO_CTK))

    def discover_features(self, *, enabled: bool) -> None:
        """gpu-feature-discovery, which the chart starts or not, regardless of the file."""
        mark, given = self.config.node.mark, bool(self.config.at("flags", "gfd"))
        if given != enabled:
            node = Fields(mark) if enabled else Scalar(mark, "", "null")
            self.config = self.config.put(("flags", "gfd"), node)
        if given and not enabled:
            why = "the chart does not start gpu-feature-discovery (gfd.enabled), so no labels are written."
            self.config.source.note(f"flags.gfd: {why}")


def settings(source: Source) -> Settings:
    """The settings in an input; of several configurations those that the user chose, or the default."""

    def runs(one: Container) -> bool:  # the plugin, not a helper from the same image
        is_helper = one.program in _HELPERS or text_at(one.node, "name").startswith(_HELPERS)
        return one.starts("k8s-device-plugin", "nvidia") and not is_helper

    policy = source.one_of([one for one in source.objects if one.kind == "ClusterPolicy"])
    if policy is not None:
        return _of_operator(policy.at("spec") or policy, policy=str(policy))
    if plugin := the_container(source, runs, "the NVIDIA device plugin"):
        return _of_container(plugin)
    values = source.values("nvidia-device-plugin", "gpu-operator", recognized=_are_values)
    if values is not None:
        mine = [node_at(values.node, "devicePlugin", name) for name in ("args", "config", "env")]
        of_operator = _OF_OPERATOR - _DISCOVERY | {"hostPaths", "mig"}
        is_operator = not of_operator.isdisjoint(values.keys) or mine != [None] * 3
        if values.chart == "gpu-operator" or (is_operator and not values.chart):
            return _of_operator(values, version=values.version if values.chart else "")
        return _of_chart(values)
    found = file_of(source, None, "", CONFIG_KEY, marks=_MARKS) or source.one_of(source.bare)
    return Settings((found or source.refuse(_HINT)).expected(keys(Config), _MARKS))


def _are_values(value: Value) -> bool:
    if not isinstance(value, Object) or {*value.keys} & {"version", "flags", "sharing", "imex"}:
        return False
    return value.holder == HELM or has_key(value.node, _OF_VALUES)


def _of_container(plugin: Container) -> Settings:
    source, options, every = plugin.source, plugin.options(_SWITCHES), containers(plugin.source)
    variables = [each.node for one in every for each in one.each("env")]
    defaults = {text_at(one, "name"): text for one in variables if (text := text_at(one, "value"))}
    path = options.get("config-file", "CONFIG_FILE").text()  # without it the plugin reads no file
    wanted = source.key or plugin.entry(path)[1] or defaults.get("DEFAULT_CONFIG", "")
    found = _empty(plugin)
    if path and not wanted and defaults.get("FALLBACK_STRATEGIES") == "empty":
        source.note(f"A node without a label uses no configuration: {CHOOSE}.")
    elif path:
        file = file_of(source, plugin, path, CONFIG_KEY, marks=_MARKS, default=wanted)
        found = (file or plugin.lacks(path, wanted or CONFIG_KEY)).expected(keys(Config), _MARKS)
    elif source.key:
        plugin.fail(f"{plugin} reads no configuration file, so there is no {source.key}", "leave out --key")
    result = Settings(found)
    root = plugin.mounted("/driver-root")
    if root and root != "/" and not options.get("NVIDIA_DRIVER_ROOT"):
        result.set_text(nvidiaDriverRoot=root)
        what = "the GPU operator's driver container; remove it for a driver of the node."
        source.note(f"driverRoot {root}: {what}")
    result.follow(options)
    if any("gpu-feature-discovery" in (one.program, text_at(one.node, "name")) for one in every):
        result.discover_features(enabled=True)
    return result


def _of_chart(values: Object) -> Settings:
    """The settings of the plugin's own chart, which makes variables of them."""
    source, fallbacks = values.source, ["named", "single"]
    if values.holder == HELM and not values.keys:
        source.note("No values: for the GPU operator, which has other defaults, give its ClusterPolicy.")
    if strategies := values.at("config", "fallbackStrategies"):
        fallbacks = [text_at(one.node) for one in strategies.each()]
        strategies.take()
    result = Settings(_chosen(values, ("config", "map"), fallbacks))
    for name, path in _IN_CHART.items():
        if value := values.at(*path.split(".")):
            result.set(name, value)
    values.is_off("chart", "devicePlugin", "enabled")
    result.discover_features(enabled=values.is_true("gfd", "enabled"))
    _finish(values, _DISCOVERY, _OF_CHART, {})
    return result


def _has_cdi(version: str) -> bool | None:
    """Whether CDI is the default of the operator's chart of this version; ``None`` if that is not certain."""
    found = re.match(r"(\^?)[~=v ]*([0-9]{1,4})(?:\.([0-9]{1,4}))?", version)
    if found is None or (int(found[2]) == _CDI_SINCE[0] and (found[1] or not found[3])):
        return None  # such as 25.x or ^25.3
    return (int(found[2]), int(found[3] or 0)) >= _CDI_SINCE


def _of_operator(spec: Value, *, policy: str = "", version: str = "") -> Settings:
    """What the GPU operator sets for the plugin, and then ``devicePlugin``. ``policy`` names the object; it
    is empty for values of the chart, which have other defaults."""
    note = spec.source.note
    # the operator lets its config-manager fall back to no configuration
    result = Settings(_chosen(spec, ("devicePlugin", "config", "data"), ["empty"], policy))
    has_cdi: bool | None = spec.is_true("cdi", "enabled", otherwise=True)
    if not policy and not spec.at("cdi", "enabled"):
        has_cdi = _has_cdi(version or spec.text("operator", "version"))
        if has_cdi is None:
            note("cdi.enabled is true, the default of the chart since v25.10.0; set it for older releases.")
    texts = {"passDeviceSpecs": "true", "deviceIDStrategy": "uuid", "failOnInitError": "true"}
    texts["deviceListStrategy"] = "envvar" if has_cdi is False else "cdi-annotations,cdi-cri"
    if has_cdi is not False and spec.is_true("toolkit", "enabled", otherwise=True):
        directory = spec.text("toolkit", "installDir") or "/usr/local/nvidia"
        texts["nvidiaCTKPath"] = f"{directory}/toolkit/nvidia-cdi-hook"
    if result.config.at("sharing", "mps") or spec.at("devicePlugin", "mps", "root"):
        texts["mpsRoot"] = spec.text("devicePlugin", "mps", "root") or "/run/nvidia/mps"
    for name, key in (("gdsEnabled", "gds"), ("mofedEnabled", "gds"), ("gdrcopyEnabled", "gdrcopy")):
        texts |= {name: "true"} if spec.is_true(key, "enabled") else {}
    if (strategy := spec.at("mig", "strategy")).text():
        result.set("migStrategy", strategy)
    elif not policy and not strategy:
        texts["migStrategy"] = "single"
    result.set_text(**texts)
    spec.is_off("operator", "devicePlugin", "enabled")
    result.follow(Options(spec.at("devicePlugin"), _SWITCHES))
    # the driver's validator has the last word, by a file that the plugin's entrypoint reads
    driver = spec.text("hostPaths", "driverInstallDir") or "/run/nvidia/driver"
    has_driver = spec.is_true("driver", "enabled", otherwise=True)
    result.set_text(nvidiaDriverRoot=driver if has_driver else spec.text("hostPaths", "rootFS") or "/")
    result.discover_features(enabled=spec.is_true("gfd", "enabled", otherwise=True))
    if spec.is_true("sandboxWorkloads", "enabled"):
        what = "for GPUs of virtual machines keep sandboxDevicePlugin, or import KubeVirt's object."
        note(f"sandboxWorkloads.enabled: {what}")
    _finish(spec, _OF_OPERATOR, {*_OF_OPERATOR, *_SECTIONS} - {"mps"}, _IN_OPERATOR)
    return result


def _empty(value: Value) -> Value:
    return value.source.document(Fields(value.node.mark), value.place)


def _chosen(values: Value, path: tuple[str, ...], fallbacks: Collection[str], policy: str = "") -> Value:
    """One of the named configurations, in the order in which the plugin's config-manager looks for one."""
    source, key = values.source, values.source.key
    section, configs = values.at(*path[:-1]), values.at(*path)
    default, name = section.text("default"), section.text("name")
    section.omit("create")
    if name and not configs.keys:
        maps = [one for one in source.objects if one.kind == "ConfigMap" and one.name == name]
        if not maps:
            which = f" --key {key or default}" if key or default else ""
            get_values = "helm get values RELEASE -n NAMESPACE"
            first = "kubectl get clusterpolicies.nvidia.com -o yaml" if policy else get_values
            command = f"kubectl get configmap {name} -n NAMESPACE -o yaml"
            hint = f"({first}; echo ---; {command}) | devhost import nvidia-device-plugin{which} -"
            what = f"{policy} names" if policy else "the configuration is in"
            section.fail(f"{what} the ConfigMap {name}, which is not in this file", hint)
        configs = maps[0].at("data")
    names = configs.keys
    by_rule = {"named": [name for name in names if name == "default"], "single": names}
    usable = (found[0] for rule, found in by_rule.items() if rule in fallbacks and len(found) == 1)
    wanted = key or default or next(usable, "")
    if not names and not key:
        return _empty(values)
    if names and not wanted and "empty" in fallbacks:
        configs.take()
        source.note(f"A node without a label uses none of the configurations {some(names)}: {CHOOSE}.")
        return _empty(values)
    if not configs.at(wanted):
        missing = f"it has no {configs.place.key(wanted).path}"
        hint = f"{CHOOSE}, which may be {some(names)}" if names else ""
        (configs if names else values).fail(missing if wanted else "no configuration is the default", hint)
    found = source.chosen(wanted, configs, " in the label nvidia.com/device-plugin.config")
    return found.expected(keys(Config), _MARKS)


def _finish(
    values: Value, kept: Collection[str], known: Collection[str], elsewhere: Mapping[str, str]
) -> None:
    """Names all that was not read: settings without effect, ``kept`` parts, and keys that are not known."""
    note = values.source.note
    for name, later in _SECTIONS.items():
        values.at(name).for_pods()
        values.at(name).leave("omitted, without effect on what the plugin offers.", *later)
    if parts := sorted(values.omit(*kept)):
        note(f"{', '.join(parts)}: other programs, which keep their settings: see {GUIDE}.")
    values.for_pods()
    values.source.pods |= dict.fromkeys(values.omit("allowDefaultNamespace", "selectorLabelsOverride"))
    for key in values.others(*known):
        hint = f"see {elsewhere[key]}" if key in elsewhere else suggest(key, known, "keys")
        note(f"{values.place.key(key).path}: {UNKNOWN_KEY} ({hint})")
