"""Converts the flags of the AMD GPU device plugin to devhost.yaml.

The input is its DaemonSet, as in its manifests and its chart, or a DeviceConfig of the AMD GPU operator. The
flags are those of ``cmd/k8s-device-plugin/main.go`` in ROCm/k8s-device-plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from devhost.config.diagnostics import shown
from devhost.config.document import Scalar

from .source import Object, Source, Value, node_at, some
from .workload import WORKLOADS, Option, containers
from .writing import Block, Entry, document

DOMAIN = "amd.com"

_SWITCHES = ("logtostderr", "alsologtostderr", "v")
_KNOWN = {
    "resource_naming_strategy": ("single", "mixed"),
    "driver_type": ("container", "vf-passthrough", "pf-passthrough"),
}
"""Flags that matter to devhost, and their values."""

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

    def set(self, given: Callable[[str], Option | None]) -> None:
        if option := given("resource_naming_strategy"):
            self.strategy = _one_of(option)
        if option := given("driver_type"):
            self.mode = _one_of(option)


def convert(data: bytes, file_name: str) -> str:
    """The text of an equivalent devhost.yaml.

    Raises:
        ConfigError: nothing in the input starts the plugin, or the plugin would refuse a flag.
    """
    source = Source(data, file_name, "amd-device-plugin")
    flags = _Flags()
    plugins = 0
    for one in containers(source):
        if one.starts("k8s-device-plugin") and ("labeller" in one.holder.name or "labeller" in one.image):
            flags.has_labeller = True  # it is in an image of the same name
            one.holder.take()
        elif one.starts("k8s-device-plugin"):
            plugins += 1
            options = one.options(_SWITCHES)
            flags.set(options.flag)
            options.finish(*_OF_THE_PROCESS)
    specs = [one.at("spec") or one for one in source.objects if one.kind == "DeviceConfig"]
    values = source.values(*_CHARTS, recognized=_are_values)
    if values is not None:
        flags.has_labeller |= values.is_true("labeller", "enabled")
        specs.append(values.at("deviceConfig", "spec") or values)
        values.leave(
            "settings of the chart, which are not converted.", "deviceConfig", "dp", "devicePlugin", "driver"
        )
        values.omit("dp")
    for spec in specs:
        _of_operator(spec, flags)
    if not plugins and not specs:
        if not any(one.kind in WORKLOADS for one in source.objects):
            source.refuse(_HINT)
        what = "none of its containers runs the AMD GPU device plugin (k8s-device-plugin)"
        source.objects[0].fail(what, _HINT)
    return _written(flags, source)


def _are_values(value: Value) -> bool:
    names = set(value.keys)
    return bool(node_at(value.node, "deviceConfig", "spec")) or {"dp", "labeller"} <= names


def _of_operator(spec: Value, flags: _Flags) -> None:
    source, arguments = spec.source, spec.at("devicePlugin", "devicePluginArguments")
    given = {
        name: Option(name, value.node, value)
        for name, value in (arguments.members() if arguments else ())
        if isinstance(value.node, Scalar)
    }
    flags.set(given.get)
    for name, option in given.items():
        option.value.take()
        if name not in (*_KNOWN, *_OF_THE_PROCESS):
            source.note(f"-{name}: the plugin has no such flag, and does not start with it.")
    flags.has_labeller |= spec.is_true("devicePlugin", "enableNodeLabeller", otherwise=True)
    driver = spec.at("driver", "driverType")
    if driver is not None and isinstance(node := driver.take(), Scalar) and not flags.mode:
        flags.mode = _one_of(Option("driver_type", node, driver))
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
    spec.leave("parts of the AMD GPU operator, which keep their settings.", "devicePlugin", "driver")


def _one_of(option: Option) -> str:
    known = _KNOWN[option.name]
    if option.text not in known:
        option.place.report(option, f"must be one of {', '.join(known)}, not {shown(option.text)}")
    return option.text


def _entries(flags: _Flags) -> Iterator[Entry]:
    is_mixed = flags.strategy == "mixed"
    if flags.mode.endswith("passthrough"):
        kind = flags.mode[:2]
        where: Block = {"vendor": "1002", "kind": kind, "pciClass": ["03*", "12*"], "driver": "vfio-pci"}
        name = f"gpu_{kind}" if is_mixed else "gpu"
        remark = f"driver_type {flags.mode}: for virtual machines of KubeVirt."
        yield Entry(f"{DOMAIN}/{name}", "sriov", [where], {"kubevirt": True}, [remark])
        return
    if is_mixed:
        yield Entry(f"{DOMAIN}/{{profile}}", "gpu", [{"vendor": "amd", "profile": "*"}])
    remarks = ["GPUs that cannot be partitioned."] if is_mixed else []
    yield Entry(f"{DOMAIN}/gpu", "gpu", [{"vendor": "amd"}], remarks=remarks)


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
