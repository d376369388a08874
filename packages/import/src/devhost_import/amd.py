"""Converts the flags of the AMD GPU device plugin."""

from __future__ import annotations

import re
from collections.abc import Iterator

from devhost.config.diagnostics import shown

from .source import Object, Source, Value, text_at
from .workload import LOGGING, WORKLOADS, Container, containers
from .writing import Block, Entry, document, given

_KNOWN = {  # flags that matter to devhost, and their values
    "resource_naming_strategy": ("single", "mixed"),
    "driver_type": ("container", "vf-passthrough", "pf-passthrough"),
}
_OF_THE_PROCESS = ("kubelet-url", "pulse", *LOGGING)
_CHARTS = ("amd-gpu", "gpu-operator-charts")  # those of the plugin and of the AMD GPU operator
_NAMES = re.compile(r"rocm|amd(?!64)")  # in the image or a name; the image may be a mirror's
_READ = ("devicePluginArguments", "driverType", "enableDevicePlugin", "enableNodeLabeller")
_OF_CHART = ("deviceConfig", "devicePlugin", "dp", "driver", "labeller")
_HINT = "give the plugin's DaemonSet, or a DeviceConfig of the AMD GPU operator"
_DIFFERS = [
    "the plugin checks health only with -pulse; devhost always does",
    "the plugin refuses GPUs in different partition modes if they have one name; devhost offers them",
    "ids of functions for virtual machines are IOMMU groups for the plugin, PCI addresses for devhost",
    "without driver_type the plugin falls back to GPUs bound to vfio-pci; for these add it, and import again",
]


def convert(source: Source) -> str:
    found, has_labeller = list[tuple[Value, tuple[str, str]]](), False
    for one in filter(_is_amd, containers(source)):
        is_labeller = "labeller" in f"{one.holder.name} {one.image}"  # the same image has both
        has_labeller |= is_labeller
        if is_labeller or one.is_owned:
            one.holder.take()
        else:
            options = one.options()
            found.append((one.holder, _flags(*map(options.get, _KNOWN))))
            options.finish(*_OF_THE_PROCESS)
    specs = [(one, one.at("spec") or one) for one in source.of_kinds("DeviceConfig")]
    if values := source.values(
        *_CHARTS, recognized=lambda one: one.at("deviceConfig", "spec") or {"dp", "labeller"} <= {*one.keys}
    ):
        has_labeller |= values.is_true("labeller", "enabled")
        specs.append((values, values.at("deviceConfig", "spec") or values))
        values.at("dp").for_pods()
        values.leave("settings of the chart, which are not converted.", *_OF_CHART)
    for holder, spec in specs:
        found.append((holder, _of_operator(spec)))
        # the plugin's own chart has no labeller by default
        has_labeller |= spec.is_true("devicePlugin", "enableNodeLabeller", otherwise=spec is not values)
    if not found:
        if not any(one.kind in WORKLOADS for one in source.objects):
            source.refuse(_HINT)
        source.objects[0].fail("no container runs the AMD GPU device plugin (k8s-device-plugin)", _HINT)
    made = [list(_entries(*flags)) for _, flags in found]
    source.one_of([holder for holder, _ in found], "the AMD GPU device plugin", made)
    if has_labeller:
        source.note("labels: those of the node labeller: remove it, or both write them.")
    return document(source, "the AMD GPU device plugin", _DIFFERS, made[0], labels=given(write=has_labeller))


def _is_amd(one: Container) -> bool:
    """Whether a container runs the plugin; NVIDIA's has an image of the same name."""
    names = " ".join((one.image, text_at(one.node, "name"), one.holder.name))
    is_named = bool(_NAMES.search(names)) or any(map(one.starts, (*_KNOWN, "-pulse")))
    return one.starts("k8s-device-plugin") and "nvidia" not in names and is_named


def _flags(*given: Value) -> tuple[str, str]:
    for one, known in zip(given, _KNOWN.values(), strict=True):
        if one and one.text() not in known:
            one.refuse(f"must be one of {', '.join(known)}, not {shown(one.text())}")
    return given[0].text(), given[1].text()


def _of_operator(spec: Value) -> tuple[str, str]:
    given = spec.at("devicePlugin", "devicePluginArguments")
    driver = given.at("driver_type") or spec.at("driver", "driverType")
    strategy, mode = _flags(given.at("resource_naming_strategy"), driver)
    given.omit(*_OF_THE_PROCESS)
    spec.is_off("operator", "devicePlugin", "enableDevicePlugin")
    spec.for_pods()
    for part in (spec, spec.at("devicePlugin"), spec.at("driver")):
        if not isinstance(part, Object):
            part.leave("of the operator, which keeps these settings.", "devicePlugin", "driver", *_READ)
    return strategy or ("mixed" if mode.endswith("passthrough") else ""), mode


def _entries(strategy: str, mode: str) -> Iterator[Entry]:
    is_mixed = strategy == "mixed"
    if mode.endswith("passthrough"):
        kind = mode[:2]
        where: Block = {"vendor": "1002", "kind": kind, "pciClass": ["03*", "12*"], "driver": "vfio-pci"}
        remarks = [f"driver_type {mode}: for virtual machines of KubeVirt."]
        yield Entry(f"amd.com/gpu{f'_{kind}' * is_mixed}", "sriov", [where], {"kubevirt": True}, remarks)
        return
    if is_mixed:
        yield Entry("amd.com/{profile}", "gpu", [{"vendor": "amd", "profile": "*"}])
    remarks = ["GPUs that cannot be partitioned."] * is_mixed
    yield Entry("amd.com/gpu", "gpu", [{"vendor": "amd"}], remarks=remarks)
