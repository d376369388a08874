"""Converts the flags of the AMD GPU device plugin to devhost.yaml.

The input is its DaemonSet, as in its manifests and its chart, or a DeviceConfig of the AMD GPU operator. The
flags are those of ``cmd/k8s-device-plugin/main.go`` in ROCm/k8s-device-plugin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from devhost.config.diagnostics import Diagnostics, shown
from devhost.config.document import Fields, Scalar

from .kubernetes import Object, objects, of_kinds
from .workload import WORKLOADS, Argument, program
from .writing import Block, Entry, document

DOMAIN = "amd.com"

_SWITCHES = ("logtostderr", "alsologtostderr", "v")
_STRATEGIES = ("single", "mixed")
_MODES = ("container", "vf-passthrough", "pf-passthrough")
_OF_THE_PROCESS = frozenset(
    {"alsologtostderr", "kubelet-url", "log_dir", "logtostderr", "pulse", "stderrthreshold", "v", "vmodule"}
)
"""Flags that control its process and log, or that need no equivalent."""

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
        data: the plugin's DaemonSet or a DeviceConfig, among other objects or alone, as YAML or JSON.
        file_name: appears in the diagnostics.

    Raises:
        ConfigError: it contains neither of them, or the plugin would refuse a flag.
    """
    diagnostics = Diagnostics(file_name)
    every = objects(data, diagnostics)
    flags, notes = _Flags(), list[str]()
    is_found = False
    for one in of_kinds(every, (*WORKLOADS, "DeviceConfig"), diagnostics, hint=_HINT):
        if one.kind == "DeviceConfig":
            is_found = True
            _of_operator(one, flags, notes)
            continue
        if found := program(one, "k8s-device-plugin"):
            flags.has_labeller |= "labeller" in one.text("metadata", "name")
            if "labeller" not in one.text("metadata", "name"):
                is_found = True
                _of_flags(found.arguments(_SWITCHES), one, flags, notes)
    if not is_found:
        mark = every[0].node.mark
        diagnostics.fail(
            mark, "none of its containers runs the AMD GPU device plugin (k8s-device-plugin)", _HINT
        )
    if diagnostics.found:
        raise diagnostics.error()
    return _written(flags, notes)


def _of_flags(given: Mapping[str, Argument], one: Object, flags: _Flags, notes: list[str]) -> None:
    for name, argument in given.items():
        if name == "resource_naming_strategy":
            flags.strategy = _one_of(argument, _STRATEGIES, one)
        elif name == "driver_type":
            flags.mode = _one_of(argument, _MODES, one)
        elif name not in _OF_THE_PROCESS:
            notes.append(f"-{name}: the plugin has no such flag, and does not start with it.")


def _of_operator(one: Object, flags: _Flags, notes: list[str]) -> None:
    found = one.at("spec", "devicePlugin", "devicePluginArguments")
    if found and isinstance(found[0], Fields):
        given = {
            name: Argument(entry.value.text, entry.value.mark, found[1].key(name).path)
            for name, entry in found[0].entries.items()
            if isinstance(entry.value, Scalar)
        }
        _of_flags(given, one, flags, notes)
    flags.has_labeller |= one.text("spec", "devicePlugin", "enableNodeLabeller").lower() != "false"
    driver = one.at("spec", "driver", "driverType")
    if driver and isinstance(driver[0], Scalar):
        argument = Argument(driver[0].text, driver[0].mark, driver[1].path)
        flags.mode = flags.mode or _one_of(argument, _MODES, one)
    if flags.mode.endswith("passthrough"):  # otherwise the operator's default
        flags.strategy = flags.strategy or "mixed"


def _one_of(argument: Argument, known: tuple[str, ...], one: Object) -> str:
    if argument.value not in known:
        message = f"must be one of {', '.join(known)}, not {shown(argument.value)}"
        one.place.diagnostics.add(argument.mark, argument.path, message)
    return argument.value


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


def _written(flags: _Flags, notes: list[str]) -> str:
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
        notes.append("The node labeller: set labels: {write: true} in this file, and remove the labeller.")
    return document("the AMD GPU device plugin", differs, list(_entries(flags)), notes=notes)
