"""Converts the flags of the AMD GPU device plugin to devhost.yaml.

The input is its DaemonSet, as in its manifests and its chart, or a DeviceConfig of the AMD GPU operator. The
flags are those of ``cmd/k8s-device-plugin/main.go`` in ROCm/k8s-device-plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from devhost.config.diagnostics import shown
from devhost.config.document import Scalar

from .source import OF_PODS, Object, Source, Value, node_at, some
from .workload import WORKLOADS, Container, Option, containers
from .writing import Block, Entry, document

DOMAIN = "amd.com"

_SWITCHES = ("logtostderr", "alsologtostderr", "v")
_STRATEGIES = ("single", "mixed")
_MODES = ("container", "vf-passthrough", "pf-passthrough")
_OF_THE_PROCESS = frozenset(
    {"alsologtostderr", "kubelet-url", "log_dir", "logtostderr", "pulse", "stderrthreshold", "v", "vmodule"}
)
"""Flags that control its process and log, or that need no equivalent."""

_CHARTS = ("amd-gpu", "gpu-operator-charts")
"""Charts of the plugin and of the AMD GPU operator."""

_READ = ("devicePluginArguments", "driverType", "enableDevicePlugin", "enableNodeLabeller")
_HINT = "give the plugin's DaemonSet, or a DeviceConfig of the AMD GPU operator"


@dataclass(slots=True)
class _Flags:
    """The plugin's flags."""

    strategy: str = ""
    mode: str = ""
    has_labeller: bool = False


def convert(data: bytes, file_name: str) -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's workload, a DeviceConfig or values of a chart, among other objects or alone.
        file_name: appears in the diagnostics.

    Raises:
        ConfigError: it contains none of them, or the plugin would refuse a flag.
    """
    source = Source(data, file_name, "amd-device-plugin")
    flags = _Flags()
    running = [one for one in containers(source) if one.starts("k8s-device-plugin")]
    flags.has_labeller = any(_labels(one) for one in running)
    plugins = [one for one in running if not _labels(one)]
    for one in plugins:
        options = one.options(_SWITCHES)
        _of_flags(options.flag, flags)
        options.finish(*_OF_THE_PROCESS)
    for one in running:
        if _labels(one):
            one.holder.take()
    specs = [one.at("spec") or one for one in source.objects if one.kind == "DeviceConfig"]
    values = source.values(*_CHARTS, recognized=_are_values)
    if values is not None:
        flags.has_labeller |= values.is_true("labeller", "enabled")
        inner = values.at("deviceConfig", "spec")
        specs.append(inner or values)
        left = values.others("deviceConfig", "dp", "devicePlugin", "driver")
        source.note(*([f"{some(left)}: settings of the chart, which are not converted."] if left else []))
        values.omit("dp")
    for spec in specs:
        _of_operator(spec, flags)
    if not plugins and not specs:
        if not any(one.kind in WORKLOADS for one in source.objects):
            source.refuse(_HINT)
        mark = source.objects[0].node.mark
        source.diagnostics.fail(
            mark, "none of its containers runs the AMD GPU device plugin (k8s-device-plugin)", _HINT
        )
    return _written(flags, source)


def _labels(one: Container) -> bool:
    """Whether it is the node labeller, which is in an image of the same name."""
    return "labeller" in one.holder.name or "labeller" in one.image


def _are_values(value: Value) -> bool:
    names = set(value.keys)
    return bool(node_at(value.node, "deviceConfig", "spec")) or {"dp", "labeller"} <= names


def _of_flags(given: Callable[[str], Option | None], flags: _Flags) -> None:
    if option := given("resource_naming_strategy"):
        flags.strategy = _one_of(option, _STRATEGIES)
    if option := given("driver_type"):
        flags.mode = _one_of(option, _MODES)


def _of_operator(spec: Value, flags: _Flags) -> None:
    arguments = spec.at("devicePlugin", "devicePluginArguments")
    given = {
        name: Option(name, value.node, value)
        for name in (arguments.keys if arguments else ())
        if (value := arguments.at(name)) and isinstance(value.node, Scalar)  # type: ignore[union-attr]
    }
    _of_flags(given.get, flags)
    source = spec.source
    for name, option in given.items():
        option.value.take()
        if name not in ("resource_naming_strategy", "driver_type", *_OF_THE_PROCESS):
            source.note(f"-{name}: the plugin has no such flag, and does not start with it.")
    flags.has_labeller |= spec.is_true("devicePlugin", "enableNodeLabeller", otherwise=True)
    driver = spec.at("driver", "driverType")
    if driver is not None and isinstance(driver.take(), Scalar):
        flags.mode = flags.mode or _one_of(Option("driverType", driver.node, driver), _MODES)  # type: ignore[arg-type]
    if flags.mode.endswith("passthrough"):  # otherwise the operator's default
        flags.strategy = flags.strategy or "mixed"
    if not spec.is_true("devicePlugin", "enableDevicePlugin", otherwise=True):
        source.note("devicePlugin.enableDevicePlugin is false: the operator does not start the plugin.")
    for part in (spec.at("devicePlugin"), spec.at("driver")):
        if part and (left := [one for one in part.others() if one not in _READ]):
            source.note(f"{part.place.path}: of the operator's own, not converted: {some(left)}.")
    spec.for_pods()
    if isinstance(spec, Object):
        return
    if kept := spec.omit(*(key for key in spec.keys if key not in ("devicePlugin", "driver", *OF_PODS))):
        source.note(f"{some(kept)}: parts of the AMD GPU operator, which keep their settings.")


def _one_of(option: Option, known: tuple[str, ...]) -> str:
    if option.text not in known:
        option.place.report(option, f"must be one of {', '.join(known)}, not {shown(option.text)}")
    return option.text


def _entries(flags: _Flags) -> Iterator[Entry]:
    is_mixed = flags.strategy == "mixed"
    if flags.mode.endswith("passthrough"):
        kind = flags.mode[:2]
        classes = ["03*", "12*"]
        where: Block = {"vendor": "1002", "kind": kind, "pciClass": classes, "driver": "vfio-pci"}
        name = f"gpu_{kind}" if is_mixed else "gpu"
        remark = f"driver_type {flags.mode}: for virtual machines of KubeVirt."
        yield Entry(f"{DOMAIN}/{name}", "sriov", [where], {"kubevirt": True}, [remark])
        return
    if is_mixed:
        yield Entry(f"{DOMAIN}/{{profile}}", "gpu", [{"vendor": "amd", "profile": "*"}])
        remark = "GPUs that cannot be partitioned."
        yield Entry(f"{DOMAIN}/gpu", "gpu", [{"vendor": "amd"}], remarks=[remark])
        return
    yield Entry(f"{DOMAIN}/gpu", "gpu", [{"vendor": "amd"}])


def _written(flags: _Flags, source: Source) -> str:
    differs = ["the plugin checks health only with -pulse; devhost always does"]
    if flags.mode.endswith("passthrough"):
        differs.append("device ids of the plugin are IOMMU groups, those of devhost PCI addresses")
    elif flags.strategy != "mixed":
        differs.append(
            "the plugin refuses GPUs in different partition modes; devhost offers them under one name"
        )
    if not flags.mode:
        differs.append(
            "without driver_type the plugin falls back to GPUs bound to vfio-pci; for devhost add "
            "driver_type, and import again"
        )
    if flags.has_labeller:
        source.note("The node labeller: set labels: {write: true} in this file, and remove the labeller.")
    return document(source, "the AMD GPU device plugin", differs, list(_entries(flags)))
