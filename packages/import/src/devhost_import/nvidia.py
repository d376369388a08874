"""Converts the YAML of the NVIDIA device plugin, also as the NVIDIA GPU operator makes it.

Flags and variables win over the plugin's file. A workload sets them, or the plugin's chart, or the GPU
operator (``TransformDevicePlugin`` in its ``controllers/object_controls.go``). What the plugin reads but
ignores is omitted with a remark, because pods request what the plugin serves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown, suggest
from devhost.config.document import Fields, Scalar
from devhost.config.language import LABEL_DIRECTORY, MAX_REPLICAS, naming
from devhost.config.reader import Bounds, Form, Raw, keys

from .source import CHOOSE, GUIDE, HELM, UNKNOWN_KEY, Object, Source, Value, has_key, some, text_at, typed
from .workload import Container, Options, containers, file_of, the_container
from .writing import Entry, Written, document, given, several

_Strategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]
_UUID = r"(GPU|MIG)-[0-9A-Za-z/-]+|[0-9]{1,4}(:[0-9]{1,4})?"
_Root = Annotated[str, Form("(/.*)?", "an absolute path")]
Where = dict[str, Written]
_Device = Annotated[str, Form(_UUID, "an index, a MIG index or a UUID")] | Annotated[int, Bounds(0, 9999)]


def _full_name(name: str) -> str:
    """A resource's name with the plugin's domain, which its file may omit."""
    return name if name.startswith("nvidia.com/") else f"nvidia.com/{name}"


def _check_name(name: str, key: str) -> None:
    if problem := naming.problem(_full_name(name)):
        raise OptionError(f"{shown(_full_name(name))} {problem}", key=key)


@dataclass(frozen=True, slots=True)
class _Plugin:
    pass_device_specs: bool = False
    device_list_strategy: _Strategy | tuple[_Strategy, ...] = "envvar"
    device_ID_strategy: Literal["uuid", "index"] = "uuid"
    cdi_annotation_prefix: str = ""
    nvidia_CTK_path: _Root = ""
    container_driver_root: str = ""
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"

    @property
    def strategies(self) -> tuple[str, ...]:
        given = self.device_list_strategy
        return tuple(dict.fromkeys((given,) if isinstance(given, str) else given)) or ("envvar",)

    @property
    def has_cdi(self) -> bool:
        return any(one.startswith("cdi-") for one in self.strategies)


@dataclass(frozen=True, slots=True)
class _Flags:
    mig_strategy: Literal["none", "single", "mixed"] = "none"
    fail_on_init_error: bool = True
    nvidia_driver_root: _Root = ""
    nvidia_dev_root: _Root = ""
    gds_enabled: bool = False
    mofed_enabled: bool = False
    gdrcopy_enabled: bool = False
    mps_root: _Root = ""
    device_discovery_strategy: str = "auto"
    use_node_feature_API: Raw = option(None)
    plugin: _Plugin = _Plugin()
    gfd: dict[str, Raw] | None = None  # of gpu-feature-discovery, the plugin's companion that labels nodes


@dataclass(frozen=True, slots=True)
class _Pattern:
    pattern: str = option(example='"*"')
    name: str = option(example="gpu")

    def __post_init__(self) -> None:
        _check_name(self.name, "name")


@dataclass(frozen=True, slots=True)
class _Resources:
    gpus: tuple[_Pattern, ...] = ()
    mig: tuple[_Pattern, ...] = ()


@dataclass(frozen=True, slots=True)
class _Shared:
    name: str = option(example="nvidia.com/gpu")
    replicas: Annotated[int, Bounds(2, MAX_REPLICAS)] = option(example=10)
    rename: str = ""
    devices: Literal["all"] | Annotated[int, Bounds(1, 9999)] | tuple[_Device, ...] = "all"

    def __post_init__(self) -> None:
        _check_name(self.name, "name")
        _check_name(self.rename or self.name, "rename")


@dataclass(frozen=True, slots=True)
class _Slicing:
    resources: Annotated[tuple[_Shared, ...], Bounds(1, 1000)] = option()
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool = False


@dataclass(frozen=True, slots=True)
class _Sharing:
    time_slicing: _Slicing | None = None
    mps: _Slicing | None = None

    def __post_init__(self) -> None:
        if self.time_slicing and self.mps:
            raise OptionError("a GPU is shared by timeSlicing or mps, not both", key="mps", hint="remove one")


@dataclass(frozen=True, slots=True)
class _Imex:
    channel_IDs: tuple[Annotated[int, Bounds(0, 0)], ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class _Config:
    version: Literal["v1", ""] = "v1"
    flags: _Flags = _Flags()
    resources: _Resources = _Resources()
    sharing: _Sharing = _Sharing()
    imex: _Imex = _Imex()

    def __post_init__(self) -> None:
        if self.sharing.mps and self.flags.mig_strategy == "mixed":
            message = "with migStrategy mixed the plugin does not start"
            raise OptionError(message, key="sharing.mps", hint="use timeSlicing, or migStrategy none")


_CONFIG_KEY = "default"  # the configuration that the plugin's chart uses for a node without a label
_MARKS = ("flags", "imex", "resources.gpus", "resources.mig", "sharing", "version")  # keys of the file

_SETTINGS = {  # the place and the type of each key of the file that variables and flags set as well
    name: ((*section, name), wanted)
    for section, cls in ((("flags",), _Flags), (("flags", "plugin"), _Plugin), (("imex",), _Imex))
    for name, (_, wanted) in keys(cls).items()
    if name not in ("useNodeFeatureAPI", "plugin", "gfd")
}
# variables that set a key, with a flag of the same name (cmd/nvidia-device-plugin/main.go)
_WORD = r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
_VARIABLES = {name: (re.sub(_WORD, "_", name).upper(),) for name in _SETTINGS} | {
    "nvidiaCTKPath": ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
    "containerDriverRoot": ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
    "channelIDs": ("IMEX_CHANNEL_IDS",),
    "required": ("IMEX_REQUIRED",),
}
_NOT_IN_CHART = "cdiAnnotationPrefix channelIDs containerDriverRoot required sharedDevicesAllocationPolicy"
_IN_CHART = {name: name for name in _SETTINGS if name not in _NOT_IN_CHART.split()} | {"mpsRoot": "mps.root"}
_IN_CHART |= {"passDeviceSpecs": "compatWithCPUManager", "nvidiaCTKPath": "cdi.nvidiaHookPath"}
_OF_CHART = {*(path.partition(".")[0] for path in _IN_CHART.values()), "config", "devicePlugin", "gfd"}
_DISCOVERY = {"nfd", "node-feature-discovery"}  # both charts have these
_OF_OPERATOR = _DISCOVERY | {  # parts of the operator in its chart and in the ClusterPolicy
    "ccManager", "clusterPolicy", "dcgm", "dcgmExporter", "draDriver", "driver", "extraObjects", "gdrcopy",
    "gds", "gpuCluster", "kataManager", "kataSandboxDevicePlugin", "migManager", "nodeStatusExporter",
    "operator", "platform", "psa", "psp", "sandboxDevicePlugin", "sandboxWorkloads", "toolkit", "validator",
    "vfioManager", "vgpuDeviceManager", "vgpuManager"}  # fmt: skip
_SECTIONS = ("cdi", "devicePlugin", "gfd", "hostPaths", "mig", "mps")  # keys with settings of the plugin
# where the operator has what the plugin's own chart has at the top
_IN_OPERATOR = {
    _IN_CHART[k]: f"devicePlugin.env, with {v}" for k, (v, *_) in _VARIABLES.items() if k in _IN_CHART
}
_IN_OPERATOR |= {"config": "devicePlugin.config", "migStrategy": "mig.strategy", "mps": "devicePlugin.mps"}
_IN_OPERATOR["nvidiaDriverRoot"] = "hostPaths.driverInstallDir"
_OF_VALUES = (  # places by which values of one of the charts are recognized
    *_IN_CHART.values(), "config.map", "config.name", "config.default", "config.fallbackStrategies",
    "devicePlugin.config", "devicePlugin.env", "gfd.enabled", "mig.strategy", "dcgmExporter", "migManager",
    "nodeStatusExporter", "sandboxDevicePlugin", "driver.enabled", "toolkit.enabled",
    "hostPaths.driverInstallDir")  # fmt: skip
_SWITCHES = [v.lower().replace("_", "-") for k, (v, *_) in _VARIABLES.items() if _SETTINGS[k][1] is bool]
_LISTS = ("device-list-strategy", "imex-channel-ids")  # flags that may be given several times
_OF_THE_PROCESS = (
    "CDI_ENABLED", "CONFIG_FILE", "KUBELET_SOCKET", "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_VISIBLE_DEVICES", "config-file", "kubelet-socket", "v")  # fmt: skip
_NO_CTK = "devhost does not pass it to nvidia-ctk."
_OF_CTK = ("CDI_DISABLE_HOOKS", "CDI_FEATURE_FLAGS", "cdi-disable-hooks", "cdi-feature-flags")
_HELPERS = ("config-manager", "gpu-feature-discovery", "mps-control-daemon")  # also in the plugin's image
_CDI_SINCE = (25, 10)  # the operator's first release whose chart enables CDI


@dataclass(slots=True)
class _Settings:
    """The resulting configuration of the plugin, as in its file, and the options for its health checks."""

    config: Value
    health: dict[str, Written] = field(default_factory=dict)

    def set(self, name: str, value: Value) -> None:
        path, wanted = _SETTINGS[name]
        node = typed(value.take(), wanted)
        replace(value, node=node).read_as(wanted)
        self.config = self.config.put(path, node)

    def set_text(self, **texts: str) -> None:
        for name, text in texts.items():
            self.set(name, replace(self.config, node=Scalar(self.config.node.mark, text, "str")))

    def follow(self, options: Options) -> None:
        for name, variables in _VARIABLES.items():
            flags = [one.lower().replace("_", "-") for one in variables]
            flags += [one.removeprefix("nvidia-") for one in flags if one.endswith("-root")]
            for each in filter(None, (options.get(*variables), options.get(*flags))):
                self.set(name, each)
        self.health = _health(options.get("DP_DISABLE_HEALTHCHECKS"), options.get("DP_ENABLE_HEALTHCHECKS"))
        options.finish(*_OF_THE_PROCESS, **dict.fromkeys(_OF_CTK, _NO_CTK))

    def discover_features(self, *, enabled: bool) -> None:
        """gpu-feature-discovery, which the chart starts or not, regardless of the file."""
        mark, given = self.config.node.mark, bool(self.config.at("flags", "gfd"))
        if given != enabled:
            node = Fields(mark) if enabled else Scalar(mark, "", "null")
            self.config = self.config.put(("flags", "gfd"), node)
        if given and not enabled:
            why = "the chart does not start gpu-feature-discovery (gfd.enabled), so no labels are written."
            self.config.source.note(f"flags.gfd: {why}")


def _settings(source: Source) -> _Settings:
    """The settings in an input; of several configurations those that the user chose, or the default."""

    def runs(one: Container) -> bool:  # the plugin, not a helper from the same image
        is_helper = one.program in _HELPERS or text_at(one.node, "name").startswith(_HELPERS)
        return one.starts("k8s-device-plugin", "nvidia") and not is_helper

    if policy := source.one_of([one for one in source.objects if one.kind == "ClusterPolicy"]):
        return _of_operator(policy.at("spec") or policy, policy=str(policy))
    if plugin := the_container(source, runs, "the NVIDIA device plugin"):
        return _of_container(plugin)
    if values := source.values("nvidia-device-plugin", "gpu-operator", recognized=_are_values):
        if values.has("kubeletPlugin"):
            values.fail("these are values of the NVIDIA DRA driver, not of the plugin", "see docs/dra.md")
        has_parts = any(values.has("devicePlugin", name) for name in ("args", "config", "env"))
        of_operator = _OF_OPERATOR - _DISCOVERY | {"hostPaths", "mig"}
        is_operator = has_parts or not of_operator.isdisjoint(values.keys)
        if values.chart == "gpu-operator" or (is_operator and not values.chart):
            return _of_operator(values, version=values.version if values.chart else "")
        return _of_chart(values)
    found = file_of(source, None, "", _CONFIG_KEY, marks=_MARKS) or source.one_of(source.bare)
    what = "the configuration, the ConfigMap, the DaemonSet, a ClusterPolicy, or values of a chart"
    found = found or source.refuse(f"give {what}; for other plugins see {GUIDE}")
    return _Settings(found.expected(keys(_Config), _MARKS))


def _are_values(value: Object) -> bool:
    is_file = {"version", "flags", "sharing", "imex"} & {*value.keys}
    return not is_file and (value.holder == HELM or has_key(value.node, _OF_VALUES))


def _of_container(plugin: Container) -> _Settings:
    source, options, every = plugin.source, plugin.options(_SWITCHES, _LISTS), containers(plugin.source)
    variables = [each.node for one in every for each in one.each("env")]
    defaults = {text_at(one, "name"): text for one in variables if (text := text_at(one, "value"))}
    path = options.get("config-file", "CONFIG_FILE").text()  # without it the plugin reads no file
    wanted = source.key or plugin.entry(path)[1] or defaults.get("DEFAULT_CONFIG", "")
    found = _empty(plugin)
    if path and not wanted and defaults.get("FALLBACK_STRATEGIES") == "empty":
        source.note(f"A node without a label uses no configuration: {CHOOSE}.")
    elif path:
        file = file_of(source, plugin, path, _CONFIG_KEY, marks=_MARKS, default=wanted)
        found = (file or plugin.lacks(path, wanted or _CONFIG_KEY)).expected(keys(_Config), _MARKS)
    elif source.key:
        plugin.fail(f"{plugin} reads no configuration file, so there is no {source.key}", "leave out --key")
    result = _Settings(found)
    root = plugin.mounted("/driver-root")
    if root and root != "/" and not options.get("NVIDIA_DRIVER_ROOT"):
        result.set_text(nvidiaDriverRoot=root)
        what = "the GPU operator's driver container; remove it for a driver of the node."
        source.note(f"driverRoot {root}: {what}")
    result.follow(options)
    if any("gpu-feature-discovery" in (one.program, text_at(one.node, "name")) for one in every):
        result.discover_features(enabled=True)
    return result


def _of_chart(values: Object) -> _Settings:
    source, fallbacks = values.source, ["named", "single"]
    if values.holder == HELM and not values.keys:
        source.note("No values: for the GPU operator, which has other defaults, give its ClusterPolicy.")
    if strategies := values.at("config", "fallbackStrategies"):
        fallbacks = [text_at(one.node) for one in strategies.each()]
        strategies.take()
    result = _Settings(_chosen(values, ("config", "map"), fallbacks))
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


def _of_operator(spec: Value, *, policy: str = "", version: str = "") -> _Settings:
    """What the GPU operator sets for the plugin, and then ``devicePlugin``. ``policy`` names the object; it
    is empty for values of the chart, which have other defaults."""
    note = spec.source.note
    # the operator lets its config-manager fall back to no configuration
    result = _Settings(_chosen(spec, ("devicePlugin", "config", "data"), ["empty"], policy))
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
        texts["mpsRoot"] = spec.text("devicePlugin", "mps", "root") or _MPS_ROOT
    for name, key in (("gdsEnabled", "gds"), ("mofedEnabled", "gds"), ("gdrcopyEnabled", "gdrcopy")):
        texts |= {name: "true"} if spec.is_true(key, "enabled") else {}
    if (strategy := spec.at("mig", "strategy")).text():
        result.set("migStrategy", strategy)
    elif not policy and not strategy:
        texts["migStrategy"] = "single"
    result.set_text(**texts)
    spec.is_off("operator", "devicePlugin", "enabled")
    result.follow(Options(spec.at("devicePlugin"), _SWITCHES, _LISTS))
    # the driver's validator has the last word, by a file that the plugin's entrypoint reads
    driver = spec.text("hostPaths", "driverInstallDir") or _DRIVER
    if not spec.is_true("driver", "enabled", otherwise=True):
        root = spec.text("hostPaths", "rootFS") or "/"
        if driver != _DRIVER:
            note(f"driverRoot {driver}: the operator uses {root} instead if it finds a driver there.")
        driver = root if driver == _DRIVER else driver
    result.set_text(nvidiaDriverRoot=driver)
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
        if not (maps := [one for one in source.objects if one.kind == "ConfigMap" and one.name == name]):
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
    return found.expected(keys(_Config), _MARKS)


def _finish(values: Value, kept: Collection[str], known: Collection[str], hints: Mapping[str, str]) -> None:
    """Names all that was not read: settings without effect, ``kept`` parts, and keys that are not known."""
    note = values.source.note
    for name in _SECTIONS:
        later = ("args", "config", "env", "mps") if name == "devicePlugin" else ()  # or named by their keys
        values.at(name).for_pods()
        values.at(name).leave("omitted, without effect on what the plugin offers.", *later)
    if parts := sorted(values.omit(*kept)):
        note(f"{', '.join(parts)}: other programs, which keep their settings: see {GUIDE}.")
    values.for_pods()
    values.source.pods |= dict.fromkeys(values.omit("allowDefaultNamespace", "selectorLabelsOverride"))
    for key in values.others(*known):
        hint = f"see {hints[key]}" if key in hints else suggest(key, known, "keys")
        note(f"{values.place.key(key).path}: {UNKNOWN_KEY} ({hint})")


def convert(source: Source, *, as_written: bool) -> str:
    found = _settings(source)
    config = found.config.as_dataclass(_Config, source.note)
    options = _options(config, source) | found.health
    source.note(*_omitted(config))
    if config.sharing.mps:
        keep = "it uses those of the plugin's mps-control-daemon: keep it running."
        source.note(f"sharing.mps: devhost does not start MPS servers, {keep}")
    entries = list(_Entries(config, source, as_written=as_written).all())
    labels: dict[str, Written] = {}
    if config.flags.gfd is not None:
        file = config.flags.gfd.get("outputFile")
        path = Path(text_at(file) if file else "").parent
        labels = given(write=True, directory=path.is_absolute() and path != LABEL_DIRECTORY and str(path))
        source.note("labels: those of gpu-feature-discovery: remove that program, or both write them.")
    return document(source, "the NVIDIA device plugin", _DIFFERS, entries, gpu=options, labels=labels)


def _options(config: _Config, source: Source) -> dict[str, Written]:
    flags, plugin, note = config.flags, config.flags.plugin, source.note
    strategies = [one for one in plugin.strategies if not one.startswith("cdi-")]
    if {"envvar", "volume-mounts"} <= {*strategies}:
        strategies.remove("envvar")
        note("deviceListStrategy: together with volume-mounts the plugin ignores envvar; it is omitted.")
    if plugin.pass_device_specs and strategies:
        strategies.append("device-specs")
    elif plugin.pass_device_specs:
        note("passDeviceSpecs: the plugin ignores it if CDI is the only strategy; it is omitted.")
    if plugin.has_cdi and "cdi-cri" not in plugin.strategies:
        note("cdi-annotations: devhost passes the names in the field for CDI devices, as with cdi-cri.")
    strategies += ["cdi"] if plugin.has_cdi else []
    program = plugin.nvidia_CTK_path if plugin.has_cdi else ""
    path = PurePosixPath(program)
    is_ctk = path.name == "nvidia-ctk"
    has_ctk = is_ctk or path.parent.name == "toolkit"  # NVIDIA's toolkit container installs both there
    return given(
        driverRoot=flags.nvidia_driver_root != "/" and flags.nvidia_driver_root,
        devRoot=flags.nvidia_dev_root != flags.nvidia_driver_root and flags.nvidia_dev_root,
        deviceListStrategy=strategies != ["envvar"] and several(strategies),
        deviceIDStrategy=plugin.device_ID_strategy == "index" and "index",
        nvidiaCTKPath=has_ctk and str(path.with_name("nvidia-ctk")),
        nvidiaCDIHookPath=program != "" and not is_ctk and str(path),
        gdsEnabled=flags.gds_enabled,
        mofedEnabled=flags.mofed_enabled,
        gdrcopyEnabled=flags.gdrcopy_enabled,
        imexChannelIDs=config.imex.channel_IDs,
    )


def _health(*variables: Value) -> dict[str, Written]:
    """``all`` and ``xids`` mean the same; if all are disabled, none can be enabled. It ignores words."""
    off, on = ({word.strip().lower() for word in one.text().split(",")} for one in variables)
    if on & {"all", "xids"}:
        return {"heedXids": _APPLICATION}
    if off & {"all", "xids"}:
        return {"healthChecks": "none"}
    ignored, heeded = (sorted({int(word) for word in one if word.isdecimal()} - {0}) for one in (off, on))
    return given(ignoreXids=ignored, heedXids=heeded)


def _omitted(config: _Config) -> list[str]:
    flags, plugin, imex = config.flags, config.flags.plugin, config.imex
    kind, gfd = flags.device_discovery_strategy, (flags.gfd or {}).items()
    of_gfd = [key for key, one in gfd if key != "outputFile" or not text_at(one).startswith("/")]
    every: Sequence[tuple[str, object, str]] = [
        ("imex.required", imex.channel_IDs and imex.required, "a container gets its node's channels."),
        ("mpsRoot", flags.mps_root and not config.sharing.mps, "it matters only with sharing.mps."),
        ("nvidiaCTKPath", plugin.nvidia_CTK_path and not plugin.has_cdi, "it matters only with CDI."),
        ("failOnInitError", not flags.fail_on_init_error, "devhost retries GPUs that cannot be used."),
        (f"deviceDiscoveryStrategy {kind}", kind not in ("auto", "nvml"), "devhost serves PCI GPUs only."),
        ("containerDriverRoot", plugin.container_driver_root, "devhost finds driverRoot below its --root."),
        ("cdiAnnotationPrefix", plugin.cdi_annotation_prefix, "devhost passes no CDI names as annotations."),
        ("useNodeFeatureAPI", flags.use_node_feature_API is not None, "devhost writes labels as files."),
        (f"flags.gfd.{', '.join(of_gfd)}", of_gfd, "devhost writes labels when they change."),
    ]
    return [f"{key} is omitted: {why}" for key, applies, why in every if applies]


class _Entries:
    """The entries for one configuration; remarks for the head of the result are added to the source."""

    def __init__(self, config: _Config, source: Source, *, as_written: bool) -> None:
        mps, slicing = config.sharing.mps, config.sharing.time_slicing or config.sharing.mps
        self._config, self._note, self._as_written = config, source.note, as_written
        self._shares: dict[str, list[_Shared]] = {}
        for share in slicing.resources if slicing else ():
            self._shares.setdefault(_full_name(share.name), []).append(share)
        self._mps_root = (config.flags.mps_root.rstrip("/") or _MPS_ROOT) if mps else ""
        # with MPS always, regardless of the key (ValidateRequest in the plugin's internal/rm/rm.go)
        self._most = int(bool(mps or (slicing and slicing.fail_requests_greater_than_one)))
        self._suffix = ".shared" if slicing and slicing.rename_by_default else ""
        self._served: set[str] = set()

    def all(self) -> Iterator[Entry]:
        resources, strategy = self._config.resources, self._config.flags.mig_strategy
        if (resources.gpus or resources.mig) and not self._as_written:
            self._note(f"resources: names by pattern: {_IGNORED}")
        is_single = strategy == "single" and not self._mps_root
        where: Where = {"vendor": "nvidia", "kind": ["gpu", "mig"] if is_single else "gpu"}
        if strategy == "single" and self._mps_root:
            self._note("migStrategy single: the plugin shares no MIG instances by MPS: they are not offered.")
        patterns = (resources.gpus if self._as_written else ()) or (_Pattern("*", "gpu"),)
        of_mig = resources.mig if self._as_written and strategy == "mixed" else ()
        instances = self._grouped(of_mig, _INSTANCES, "profile")
        for name, blocks in self._grouped(patterns, where, "product").items():
            remarks = [_BY_STRATEGY[strategy]] if is_single or strategy == "none" else []
            yield from self._resource(name, [*blocks, *instances.pop(name, [])], remarks)
        if strategy == "mixed":
            yield from self._instances(instances)
        for name in [one for one in self._shares if one not in self._served]:
            self._note(f"sharing: {name} is not a resource with migStrategy {strategy}: omitted.")

    def _grouped(self, patterns: Sequence[_Pattern], where: Where, attribute: str) -> dict[str, list[Where]]:
        """The conditions of each name. The first pattern that matches decides, so ``*`` is the last one."""
        found: dict[str, list[Where]] = {}
        for number, pattern in enumerate(patterns, 1):
            # the plugin has only *, and a pattern can match a part of the text
            glob = re.sub(r"\*+", "*", re.sub(r"([?[])", r"[\1]", f"*{pattern.pattern}*"))
            block = where if glob == "*" else where | {attribute: glob}
            found.setdefault(_full_name(pattern.name), []).append(block)
            if glob == "*":
                if number < len(patterns):
                    self._note(f"resources: patterns after {pattern.pattern} never match: omitted.")
                break
        return found

    def _instances(self, named: Mapping[str, list[Where]]) -> Iterator[Entry]:
        """The entries of instances: those with names by pattern that no GPUs have, and the others."""
        for name, blocks in named.items():
            yield from self._resource(name, blocks, [])
        if self._as_written and any(one.pattern == "*" for one in self._config.resources.mig):
            return
        for name in self._shares:
            if name.startswith(_MIG) and name not in self._served:
                profile = name.removeprefix(_MIG).replace("gb.", "gb+")
                yield from self._resource(name, [_INSTANCES | {"profile": profile}], [])
        remark = "As with the plugin, instances with fewer compute slices than GPU slices are not offered."
        yield Entry(_MIG + "{profile}", "gpu", [_INSTANCES | {"not": {"profile": "?c.*"}}], remarks=[remark])

    def _resource(self, name: str, where: list[Where], remarks: list[str]) -> Iterator[Entry]:
        """One resource, and others if some of its devices are shared under other names."""
        self._served.add(name)
        overrides: list[Where] = []
        for share in self._effective(name, remarks):
            renamed = _full_name(share.rename) if share.rename else self._suffix and f"{name}{self._suffix}"
            some = self._some(share, where, remarks)
            if renamed or not some:
                yield Entry(renamed or name, "gpu", some or where, self._keys(share.replicas), remarks)
                remarks = []
            elif self._most:
                what = "limits whole GPUs of this resource as well; the plugin limits only shares."
                remarks.append(f"maxPerContainer {what}")
            if not some:
                return
            overrides += [{"where": one, "replicas": share.replicas} for one in some if not renamed]
        yield Entry(name, "gpu", where, self._keys(0, overrides), remarks)

    def _effective(self, name: str, remarks: list[str]) -> list[_Shared]:
        """The entries of ``sharing`` for a resource. The plugin ignores ``rename`` and ``devices``, and
        adds up devices by their ids, so the highest number counts (``updateDeviceMapWithReplicas`` in
        ``internal/rm/device_map.go``)."""
        shares = self._shares.get(name, [])
        if self._as_written or not shares:
            return shares
        if any(share.rename for share in shares):
            remarks.append(f"rename: {_IGNORED}")
        if any(share.devices != "all" for share in shares):
            remarks.append(f"devices, which shares only some: {_IGNORED}")
        if len(shares) > 1:
            remarks.append(f"sharing has {len(shares)} entries; for the plugin the highest number counts.")
        return [_Shared(name, max(share.replicas for share in shares))]

    def _keys(self, replicas: int, overrides: Sequence[Where] = ()) -> dict[str, Written]:
        if not replicas and not overrides:  # MPS serves only shared devices
            return {}
        share = given(replicas=replicas, maxPerContainer=self._most, overrides=overrides)
        policy = self._config.flags.plugin.shared_devices_allocation_policy
        return given(share=share, mps=given(root=self._mps_root), prefer=_PREFER[policy])

    def _some(self, share: _Shared, where: list[Where], remarks: list[str]) -> list[Where]:
        if isinstance(count := share.devices, int):
            remarks.append(f"devices: {count} means the {count} devices with the lowest numbers.")
            return [block | {"index": f"0-{count - 1}"} for block in where]
        listed = () if isinstance(count, str) else [*map(str, count)]
        numbers = [one for one in listed if one.isdigit()]
        uuids = [one for one in listed if one.startswith(("GPU-", "MIG-"))]
        if len(numbers) + len(uuids) < len(listed):
            remarks += ["devices: devhost selects MIG instances only by UUID; those by number are omitted."]
        chosen = [given(index=",".join(numbers)), given(uuid=uuids)]
        return [block | one for block in where for one in chosen if one]


# Xids that the plugin ignores unless they are enabled (getDisabledHealthCheckXids in internal/rm/health.go)
_APPLICATION = [13, 31, 43, 45, 68, 109]
_IGNORED = "the plugin ignores it, so it is omitted; --as-written applies it."
_PREFER = {"packed": "pack", "distributed": "spread"}
_INSTANCES: Where = {"vendor": "nvidia", "kind": "mig"}
_MIG = "nvidia.com/mig-"
_MPS_ROOT = "/run/nvidia/mps"  # in the plugin's chart
_DRIVER = "/run/nvidia/driver"  # of the GPU operator's driver container
_BY_STRATEGY = {  # remarks on whole GPUs
    "none": "The plugin offers a GPU with MIG instances as a whole; devhost does not.",
    "single": "The plugin refuses whole GPUs together with instances, and several profiles; devhost offers "
    "all of them.",
}
_DIFFERS = [
    "with devhost an Unhealthy GPU becomes Healthy again, with the plugin only after a restart",
    "devhost follows changes of GPUs and MIG instances, the plugin needs a restart",
]
