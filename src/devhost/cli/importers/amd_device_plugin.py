"""Converts the flags of the AMD GPU device plugin to devhost.yaml.

The input is its DaemonSet, as in its manifests and its chart, or a DeviceConfig of the AMD GPU operator. The
flags are those of ``cmd/k8s-device-plugin/main.go`` in ROCm/k8s-device-plugin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from devhost.config.diagnostics import shown
from devhost.config.document import Scalar

from .source import UNKNOWN, Object, Source, Value, node_at, some, text_at
from .workload import WORKLOADS, Container, Option, containers
from .writing import Block, Entry, Written, document

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

_NAMES = re.compile(r"rocm|amd(?!64)")
"""What the names of an AMD plugin's image, container and object have, of which one may be a mirror's."""

_READ = ("devicePluginArguments", "driverType", "enableDevicePlugin", "enableNodeLabeller")
_HINT = "give the plugin's DaemonSet, or a DeviceConfig of the AMD GPU operator"


@dataclass(frozen=True, slots=True)
class _Flags:
    """The plugin's flags."""

    strategy: str = ""
    mode: str = ""


def _flags(given: Callable[[str], Option | None]) -> _Flags:
    return _Flags(*(_one_of(option) if (option := given(name)) else "" for name in _KNOWN))


def convert(data: bytes, file_name: str) -> str:
    """The text of an equivalent devhost.yaml.

    Raises:
        ConfigError: nothing in the input starts the plugin, several parts of it start it with different
            flags, or the plugin would refuse a flag.
    """
    source = Source(data, file_name, "amd-device-plugin")
    found: list[tuple[Value, _Flags]] = []
    has_labeller = False
    for one in filter(_is_amd, containers(source)):
        is_labeller = "labeller" in one.holder.name or "labeller" in one.image  # the same image has both
        has_labeller |= is_labeller
        if is_labeller or one.is_owned:
            one.holder.take()
            continue
        options = one.options(_SWITCHES)
        found.append((one.holder, _flags(options.flag)))
        options.finish(*_OF_THE_PROCESS)
    specs: list[tuple[Value, Value]] = [
        (one, one.at("spec") or one) for one in source.objects if one.kind == "DeviceConfig"
    ]
    values = source.values(*_CHARTS, recognized=_are_values)
    if values is not None:
        has_labeller |= values.is_true("labeller", "enabled")
        specs.append((values, values.at("deviceConfig", "spec") or values))
        mine = ("deviceConfig", "devicePlugin", "dp", "driver", "labeller")
        if pods := values.at("dp"):
            pods.for_pods()
        values.leave("settings of the chart, which are not converted.", *mine)
    for given, spec in specs:
        found.append((given, _of_operator(spec)))
        by_default = spec is not values  # the plugin's own chart has no labeller by default
        has_labeller |= spec.is_true("devicePlugin", "enableNodeLabeller", otherwise=by_default)
        _leave(spec)
    if not found:
        if not any(one.kind in WORKLOADS for one in source.objects):
            source.refuse(_HINT)
        what = "none of its containers runs the AMD GPU device plugin (k8s-device-plugin)"
        source.objects[0].fail(what, _HINT)
    made = [list(_entries(flags)) for _, flags in found]
    source.one_of([value for value, _ in found], "the AMD GPU device plugin", made)
    return _written(found[0][1], source, has_labeller=has_labeller)


def _is_amd(one: Container) -> bool:
    """Whether a container runs the plugin; NVIDIA's has an image of the same name."""
    names = " ".join((one.image, text_at(one.node, "name"), one.holder.name))
    is_named = bool(_NAMES.search(names)) or any(map(one.starts, (*_KNOWN, "-pulse")))
    return one.starts("k8s-device-plugin") and "nvidia" not in names and is_named


def _are_values(value: Value) -> bool:
    names = set(value.keys)
    return bool(node_at(value.node, "deviceConfig", "spec")) or {"dp", "labeller"} <= names


def _of_operator(spec: Value) -> _Flags:
    source, arguments = spec.source, spec.at("devicePlugin", "devicePluginArguments")
    given = {
        name: Option(name, value.node, value)
        for name, value in (arguments.members() if arguments else ())
        if isinstance(value.node, Scalar)
    }
    flags = _flags(given.get)
    for name, option in given.items():
        option.value.take()
        if name not in (*_KNOWN, *_OF_THE_PROCESS):
            source.note(f"-{name}: {UNKNOWN}")
    driver = spec.at("driver", "driverType")
    if driver is not None and isinstance(node := driver.take(), Scalar) and not flags.mode:
        flags = replace(flags, mode=_one_of(Option("driver_type", node, driver)))
    if flags.mode.endswith("passthrough") and not flags.strategy:  # the operator's default
        flags = replace(flags, strategy="mixed")
    return flags


def _leave(spec: Value) -> None:
    """Names what is not converted."""
    if not spec.is_true("devicePlugin", "enableDevicePlugin", otherwise=True):
        spec.source.note("devicePlugin.enableDevicePlugin is false: the operator does not start the plugin.")
    for part in (spec.at("devicePlugin"), spec.at("driver")):
        if part and (left := [one for one in part.others() if one not in _READ]):
            spec.source.note(f"{part.place.path}: of the operator's own, not converted: {some(left)}.")
    spec.for_pods()
    if not isinstance(spec, Object):
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


def _written(flags: _Flags, source: Source, *, has_labeller: bool) -> str:
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
    if has_labeller:
        source.note("labels: those of the node labeller: remove it, or both write them.")
    labels: dict[str, Written] = {"write": True} if has_labeller else {}
    return document(source, "the AMD GPU device plugin", differs, list(_entries(flags)), labels=labels)
