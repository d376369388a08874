"""Converts the custom resources of the Intel device plugins operator to devhost.yaml.

The input is one or more objects of ``deviceplugin.intel.com/v1`` in one file: GPU, FPGA, QAT, DSA, IAA, DLB,
SGX and NPU. ``pkg/apis/deviceplugin/v1`` of intel-device-plugins-for-kubernetes defines their fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from devhost.backend import OptionError
from devhost.config.diagnostics import shown
from devhost.config.document import Fields, Items, Node, Scalar, parse
from devhost.config.language import MAX_REPLICAS
from devhost.config.reader import WRONG, Bounds, keys

from .gojson import PCI_ID, pci_id
from .source import OF_PODS, Object, Source, Value, node_at, text_at
from .workload import Container, containers
from .writing import Block, Entry, Written, document, several

DEFAULT_SERVICES = "sym;asym"
"""The services of a QAT device of generation 4 unless the file or the user names others."""

_SERVICES = ("sym", "asym", "dc", "dcc", "decomp")
_CONFIGURED = re.compile(r"^\s*ServicesEnabled\s*=\s*(\S+)", re.MULTILINE)

_VF_DRIVERS: Mapping[str, Sequence[str]] = {
    "dh895xccvf": ("0442", "0443"),
    "c6xxvf": ("37c9",),
    "c3xxxvf": ("19e3",),
    "c4xxxvf": ("18a1",),
    "d15xxvf": ("6f55",),
    "4xxxvf": ("4941", "4943", "4945"),
    "420xxvf": ("4947",),
    "6xxxvf": ("4949",),
}
"""PCI ids of virtual functions by the kernel's driver (drivers/crypto/intel/qat)."""

_BY_SERVICE = frozenset({"4xxxvf", "420xxvf", "6xxxvf"})
"""Drivers of devices whose resources are named after their services."""

_DEFAULT_VF_DRIVERS = ("c6xxvf", "4xxxvf", "420xxvf")
"""The default of the plugin's flag ``-kernel-vf-drivers``."""

_ELSEWHERE = {"resourceManager": "the plugin dropped it together with fractions of GPUs"}

_FLAGS = {
    "shared-dev-num": "sharedDevNum",
    "allocation-policy": "preferredAllocationPolicy",
    "allow-ids": "allowIDs",
    "deny-ids": "denyIDs",
    "bypath": "bypathMode",
    "enable-monitoring": "enableMonitoring",
    "monitoring-mode": "monitoringMode",
    "mode": "mode",
    "dpdk-driver": "dpdkDriver",
    "kernel-vf-drivers": "kernelVfDrivers",
    "max-num-devices": "maxNumDevices",
    "driver": "driver",
    "enclave-limit": "enclaveLimit",
    "provision-limit": "provisionLimit",
}
"""Flags of the plugins and the keys of the operator's objects that lead to them."""

_FLAG_DEFAULTS = {
    "QatDevicePlugin": {"kernelVfDrivers": "[4xxxvf, 420xxvf]", "maxNumDevices": "64"},
    "SgxDevicePlugin": {"enclaveLimit": "110", "provisionLimit": "110"},
}
"""Defaults of flags that differ from those of the operator's objects."""

_CHART_DEFAULTS = {
    "GpuDevicePlugin": {"enableMonitoring": "true", "monitoringMode": "single"},
    "QatDevicePlugin": {"kernelVfDrivers": "[4xxxvf, 420xxvf]", "maxNumDevices": "128"},
    "DsaDevicePlugin": {"sharedDevNum": "10"},
    "IaaDevicePlugin": {"sharedDevNum": "10"},
    "SgxDevicePlugin": {"enclaveLimit": "110", "provisionLimit": "110"},
}
"""Defaults of the charts that differ from those of the operator's objects."""

_WITHOUT_PLACE = {
    "health-management": "devhost checks the health of GPUs itself.",
    "xpumd-endpoint": "devhost checks the health of GPUs itself.",
    "temp-limit": "set backends: {gpu: {temperatureLimit: …}} to this number of degrees.",
    "gpu-temp-limit": "set backends: {gpu: {temperatureLimit: …}} to this number of degrees.",
    "memory-temp-limit": "set backends: {gpu: {temperatureLimit: …}} to this number of degrees.",
    "wsl": "add an entry of the backend udev with devNode: /dev/dxg.",
    "dcap-infra-resources": "devhost has no resources for Intel DCAP.",
}
"""Flags without a counterpart, and what to do instead."""

Shared = Annotated[int, Bounds(1, MAX_REPLICAS)]


def _check_ids(key: str, text: str) -> None:
    for value in text.split(",") if text else ():
        if not PCI_ID.fullmatch(value.strip()):
            raise OptionError(f"{shown(value)} is not a PCI id", key=key, hint='as in "0x56c0,0x56c1"')


@dataclass(frozen=True, slots=True)
class _Gpu:
    shared_dev_num: Shared = 1
    allow_IDs: str = ""
    deny_IDs: str = ""
    preferred_allocation_policy: Literal["balanced", "packed", "none", ""] = ""
    bypath_mode: Literal["none", "single", "all", ""] = ""
    enable_monitoring: bool = False
    monitoring_mode: Literal["single", "split", ""] = ""

    def __post_init__(self) -> None:
        _check_ids("allowIDs", self.allow_IDs)
        _check_ids("denyIDs", self.deny_IDs)
        if self.allow_IDs and self.deny_IDs:
            raise OptionError("cannot be used with allowIDs", key="denyIDs", hint="remove one of the two")
        if self.preferred_allocation_policy in ("balanced", "packed") and self.shared_dev_num < 2:
            hint = "set sharedDevNum to 2 or more, or remove it"
            raise OptionError("requires sharedDevNum above 1", key="preferredAllocationPolicy", hint=hint)


@dataclass(frozen=True, slots=True)
class _Fpga:
    mode: Literal["af", "region", "regiondevel"] = "af"


@dataclass(frozen=True, slots=True)
class _Qat:
    dpdk_driver: Literal["vfio-pci", "igb_uio"] = "vfio-pci"
    kernel_vf_drivers: tuple[str, ...] = ()
    max_num_devices: Annotated[int, Bounds(1, 10000)] = 64
    preferred_allocation_policy: Literal["balanced", "packed", "none", ""] = ""
    provisioning_config: str = ""

    def __post_init__(self) -> None:
        for n, driver in enumerate(self.kernel_vf_drivers):
            if driver not in _VF_DRIVERS:
                hint = f"known: {', '.join(_VF_DRIVERS)}"
                message = f"{shown(driver)} is not a driver of virtual functions"
                raise OptionError(message, key=f"kernelVfDrivers[{n}]", hint=hint)


@dataclass(frozen=True, slots=True)
class _Queues:
    shared_dev_num: Shared = 1
    provisioning_config: str = ""
    driver: Literal["idxd", "vfio-pci"] = "idxd"


@dataclass(frozen=True, slots=True)
class _Dlb:
    pass


@dataclass(frozen=True, slots=True)
class _Sgx:
    enclave_limit: Shared = 110
    provision_limit: Shared = 110


@dataclass(frozen=True, slots=True)
class _Npu:
    shared_dev_num: Shared = 1


@dataclass(slots=True)
class _Result:
    source: Source
    services: str
    configured: Mapping[str, str]
    entries: list[Entry] = field(default_factory=list)
    differs: dict[str, None] = field(default_factory=dict)
    options: dict[str, Written] = field(default_factory=dict)

    def add(
        self, name: str, backend: str, where: Block, replicas: int = 1, *remarks: str, **more: Written
    ) -> None:
        share: dict[str, Written] = {"share": {"replicas": replicas}} if replicas > 1 else {}
        self.entries.append(Entry(name, backend, [where], share | more, remarks))

    def add_difference(self, *differs: str) -> None:
        """Adds a difference to the header."""
        self.differs |= dict.fromkeys(differs)


def _gpu(one: _Gpu, result: _Result) -> None:
    result.add_difference(
        "ids of GPUs are card0-0 for the plugin, PCI addresses for devhost: drain the node before the switch"
    )
    where: dict[str, Written] = {"vendor": "intel"}
    if one.allow_IDs:
        where["deviceID"] = several(_ids(one.allow_IDs))
    if one.deny_IDs:
        where["not"] = {"deviceID": several(_ids(one.deny_IDs))}
    if one.bypath_mode not in ("", "single"):
        result.options.setdefault("bypath", one.bypath_mode)
    policy = {"balanced": "spread", "packed": "pack"}.get(one.preferred_allocation_policy, "")
    more: dict[str, Written] = {"prefer": policy} if policy else {}
    both: dict[str, Written] = {"exclusive": False} if one.enable_monitoring else {}
    result.add("gpu.intel.com/{driver}", "gpu", where, one.shared_dev_num, **more, **both)
    if not one.enable_monitoring:
        return
    names: dict[str, Mapping[str, Written]] = {"monitoring": {}}
    if one.monitoring_mode == "split":
        names = {f"{driver}_monitoring": {"driver": driver} for driver in ("i915", "xe")}
    elif not one.monitoring_mode:
        result.source.note(
            "enableMonitoring: releases without monitoringMode offer i915_monitoring and xe_monitoring. "
            "To get these names, add monitoringMode: split, and import again."
        )
    for name, driver in names.items():
        use: dict[str, Written] = {"share": {"of": "all"}, "exclusive": False, "firmware": True}
        result.add(f"gpu.intel.com/{name}", "gpu", {**where, **driver}, 1, **use)


def _ids(text: str) -> list[str]:
    return [pci_id(value.strip()) for value in text.split(",")]


def _fpga(one: _Fpga, result: _Result) -> None:
    result.add_difference(
        "ids of FPGAs are dfl-port.0 for the plugin, PCI addresses for devhost: drain the node before "
        "the switch",
        (
            "in mode region a webhook and a hook program a region for a pod; with devhost the entry's "
            "program does"
        ),
    )
    kind = "af" if one.mode == "af" else "region"
    more: dict[str, Written] = {"development": True} if one.mode == "regiondevel" else {}
    result.add("fpga.intel.com/{intelName}", "fpga", {"vendor": "intel", "kind": kind}, 1, **more)


def _qat(one: _Qat, result: _Result) -> None:
    result.add_difference(
        f"the plugin binds QAT virtual functions to {one.dpdk_driver}; devhost offers those that are "
        f"bound to it: "
        "backends.sriov.virtualFunctions makes and binds them",
        "the plugin sets QAT0, QAT1, …; devhost sets PCIDEVICE_<RESOURCE> with all addresses",
        (
            "the plugin offers at most maxNumDevices QAT devices; devhost offers all, unless vfIndex "
            "selects fewer"
        ),
    )
    drivers = one.kernel_vf_drivers or _DEFAULT_VF_DRIVERS
    policy = {"balanced": "spread", "packed": "pack"}.get(one.preferred_allocation_policy, "")
    more: dict[str, Written] = {"prefer": policy} if policy else {}
    remarks = [] if one.kernel_vf_drivers else [f"kernelVfDrivers: {', '.join(drivers)} by default."]
    for name, some in (
        ("generic", [driver for driver in drivers if driver not in _BY_SERVICE]),
        (_service_name(one, result), [driver for driver in drivers if driver in _BY_SERVICE]),
    ):
        if some:
            devices = [device for driver in some for device in _VF_DRIVERS[driver]]
            where = {"kind": "vf", "vendor": "8086", "device": several(devices), "driver": one.dpdk_driver}
            result.add(f"qat.intel.com/{name}", "sriov", where, 1, *remarks, **more)


def _service_name(one: _Qat, result: _Result) -> str:
    """The plugin's name for the resource of a device with these services (``cfg_services`` in sysfs)."""
    services = result.configured.get(one.provisioning_config) or result.services
    if not services:
        services = DEFAULT_SERVICES
        result.source.note(
            "qat.intel.com/cy: the object does not name the services of a device of generation 4; "
            "its cfg_services does. sym;asym is assumed; use --services for others."
        )
    return service_name(services)


def service_name(services: str) -> str:
    """The plugin's name for the services of a QAT device: ``cy`` for ``sym;asym``.

    Raises:
        ValueError: it is not a list of services.
    """
    names = services.split(";")
    if not set(names) <= {*_SERVICES, "cy"} or len(set(names)) < len(names):
        raise ValueError(f"{shown(services)} are not services of QAT: write for example sym;asym or dc")
    if set(names) == {"sym", "asym"}:
        return "cy"
    return "-".join(sorted(names, key=("sym", "asym", "cy", "dc", "dcc", "decomp").index))


def _queues(domain: str, node: str, one: _Queues, result: _Result) -> None:
    if one.driver == "vfio-pci":
        result.add_difference(
            "the plugin sets VFIO_BDF0, …; devhost sets PCIDEVICE_<RESOURCE> with all addresses"
        )
        where = {"vendor": "8086", "device": ["0b25", "11fb", "1212"], "driver": "vfio-pci"}
        result.add(f"{domain}/vfio", "sriov", where)
        return
    result.add_difference(
        "ids of queues have a number for the plugin, the PCI address for devhost: drain the node before "
        "the switch"
    )
    if one.provisioning_config:
        result.source.note(
            f"provisioningConfig {one.provisioning_config}: devhost configures no queues. Keep the init "
            "container with accel-config, or use a systemd unit."
        )
    for mode, replicas in (("dedicated", 1), ("shared", one.shared_dev_num)):
        where = {
            "subsystem": "dsa",
            "devNode": f"/dev/{node}/wq*",
            "sysattr.../type": "user",
            "sysattr.../mode": mode,
            "sysattr.../state": "enabled",
        }
        result.add(f"{domain}/wq-user-{mode}", "udev", where, replicas)


def _dsa(one: _Queues, result: _Result) -> None:
    _queues("dsa.intel.com", "dsa", one, result)


def _iaa(one: _Queues, result: _Result) -> None:
    _queues("iaa.intel.com", "iax", one, result)


def _dlb(_: _Dlb, result: _Result) -> None:
    result.add_difference("neither the plugin nor devhost offers a DLB with virtual functions")
    has_none = {"sysattr.device/sriov_numvfs": "0"}
    result.add("dlb.intel.com/pf", "udev", {"subsystem": "dlb2", **has_none})
    is_part: Block = {"subsystem": "dlb2", "not": {"sysattr.device/sriov_numvfs": "*"}}
    result.add("dlb.intel.com/vf", "udev", is_part)


def _sgx(one: _Sgx, result: _Result) -> None:
    result.add_difference("sgx.intel.com/epc comes from Node Feature Discovery and the webhook: keep them")
    for name, replicas in (("enclave", one.enclave_limit), ("provision", one.provision_limit)):
        result.add(f"sgx.intel.com/{name}", "udev", {"devNode": f"/dev/sgx_{name}"}, replicas)


def _npu(one: _Npu, result: _Result) -> None:
    result.add_difference(
        "ids of NPUs are accel0-0 for the plugin, PCI addresses for devhost: drain the node before the switch"
    )
    where = {"subsystem": "accel", "sysName": "accel[0-9]*", "driver": "intel_vpu"}
    result.add("npu.intel.com/accel", "udev", where, one.shared_dev_num)


@dataclass(frozen=True, slots=True)
class _Kind:
    spec: type
    add: Callable[..., None]


_KINDS = {
    "GpuDevicePlugin": _Kind(_Gpu, _gpu),
    "FpgaDevicePlugin": _Kind(_Fpga, _fpga),
    "QatDevicePlugin": _Kind(_Qat, _qat),
    "DsaDevicePlugin": _Kind(_Queues, _dsa),
    "IaaDevicePlugin": _Kind(_Queues, _iaa),
    "DlbDevicePlugin": _Kind(_Dlb, _dlb),
    "SgxDevicePlugin": _Kind(_Sgx, _sgx),
    "NpuDevicePlugin": _Kind(_Npu, _npu),
}


def convert(data: bytes, file_name: str, services: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: one or more objects, as YAML or JSON, with ConfigMaps that name the services of QAT devices.
        file_name: appears in the diagnostics.
        services: of QAT devices of generation 4, in the format of ``cfg_services``. If empty: those of the
            ConfigMap that the object names, if that is in the file, else :data:`DEFAULT_SERVICES`.

    Raises:
        ConfigError: it contains no such object, or the operator would refuse one.
        ValueError: ``services`` is invalid.
    """
    if services:
        service_name(services)
    source = Source(data, file_name, "intel-device-plugins")
    result = _Result(source, services, dict(_configured(source.objects)))
    found = [
        (one.kind, one.at("spec") or replace(one, node=Fields(one.node.mark)))
        for one in source.objects
        if one.kind in _KINDS
    ]
    found += [(name, _of_container(one, name)) for one in containers(source) if (name := _kind_of(one))]
    found += _of_values(source)
    if not found:
        source.refuse(
            f"give one of {', '.join(_KINDS)} of deviceplugin.intel.com/v1, a DaemonSet, or values of a chart"
        )
    for name, value in found:
        kind = _KINDS[name]
        value.for_pods()
        rest = Fields(
            value.node.mark,
            {}
            if not isinstance(value.node, Fields)
            else {key: entry for key, entry in value.node.entries.items() if key not in OF_PODS},
        )
        spec = replace(value, node=rest).as_dataclass(kind.spec, source.remark, _ELSEWHERE)
        if spec is not WRONG:
            kind.add(spec, result)
    source.check()
    backends = {"gpu": result.options} if result.options else {}
    differs = [*result.differs, "set nodeSelector and tolerations for the pods of devhost"]
    return document(source, "the Intel device plugins", differs, result.entries, backends=backends)


def _kind_of(one: Container) -> str:
    """The kind of object that the operator would make of a container's plugin; empty for other containers."""
    found = re.search(r"intel-(dlb|dsa|fpga|gpu|iaa|npu|qat|sgx)-plugin", one.image)
    return f"{found[1].title()}DevicePlugin" if found else ""


def _of_container(one: Container, kind: str) -> Value:
    """The flags of a plugin as the object that leads to them."""
    options = one.options(("enable-monitoring", "health-management", "wsl"))
    spec: Value = one.source.document(Fields(one.node.mark), one.place)
    fields = {key: inner for key, (_, inner) in keys(_KINDS[kind].spec).items()}
    for name, key in _FLAGS.items():
        if key not in fields or (option := options.flag(name)) is None:
            continue
        text = option.text
        kinds = {"true": "bool", "false": "bool"}
        node: Node = Scalar(
            option.mark,
            text,
            "int" if text.isdecimal() and key not in ("allowIDs", "denyIDs") else kinds.get(text, "str"),
        )
        if key == "kernelVfDrivers":
            node = Items(option.mark, tuple(Scalar(option.mark, part, "str") for part in text.split(",")))
        spec = spec.put((key,), node)
    for key, value in _FLAG_DEFAULTS.get(kind, {}).items():
        if spec.at(key) is None:
            spec = spec.put((key,), parse(value.encode(), one.source.diagnostics))
    for name, why in _WITHOUT_PLACE.items():
        if (option := options.flag(name)) is not None and option.text != "false":
            one.source.note(f"-{name}{'' if option.bare else ' ' + option.text}: {why}")
    options.finish(
        "v",
        "logtostderr",
        "stderrthreshold",
        "alsologtostderr",
        "kubeconfig",
        "master",
        "node-name",
        "prefix",
    )
    return spec


def _of_values(source: Source) -> list[tuple[str, Value]]:
    """Values of a chart as the object that the chart makes of them."""
    charts = {f"intel-device-plugins-{name[:-12].lower()}": name for name in _KINDS}
    charts |= {f"{name[:-12].lower()}-device-plugin": name for name in _KINDS}
    values = source.values(*charts, recognized=lambda one: bool(_kind_of_values(one)))
    if values is None:
        return []
    chart = values.chart if isinstance(values, Object) and values.chart in charts else ""
    chart = chart or values.place.path.rpartition(".")[2]
    kind = charts.get(chart) or _kind_of_values(values)
    if not kind:
        message = "these values do not show which plugin they are for"
        hint = "give the object that the chart made: kubectl get gpudeviceplugins -o yaml, or another kind"
        values.place.diagnostics.fail(values.node.mark, message, hint)
    values.omit("name", "nodeFeatureRule")
    if (policy := values.at("allocationPolicy")) is not None:
        values = values.put(("preferredAllocationPolicy",), policy.take())
    node = values.node
    assert isinstance(node, Fields)
    left = {
        key: entry
        for key, entry in node.entries.items()
        if key not in ("allocationPolicy", "name", "nodeFeatureRule")
    }
    values = replace(values, node=Fields(node.mark, left))
    for key, value in _CHART_DEFAULTS.get(kind, {}).items():
        if values.at(key) is None:
            values = values.put((key,), parse(value.encode(), source.diagnostics))
            source.note(f"{key}: {value} is the chart's default.")
    return [(kind, values)]


def _kind_of_values(value: Value) -> str:
    """The kind of object that the chart makes, by what is particular to it."""
    text = " ".join([text_at(value.node, "name"), *_keys_at(value.node, "nodeSelector")])
    for name in _KINDS:
        short = name[:-12].lower()
        if f"{short}deviceplugin" in text or f"node.kubernetes.io/{short}" in text:
            return name
    own = {name: set(keys(kind.spec)) for name, kind in _KINDS.items()}
    own["GpuDevicePlugin"].add("allocationPolicy")
    mine = [
        name
        for name in own
        if any(sum(key in each for each in own.values()) == 1 for key in value.keys if key in own[name])
    ]
    return mine[0] if len(mine) == 1 else ""


def _keys_at(node: Node, key: str) -> list[str]:
    found = node_at(node, key)
    return [*found.entries] if isinstance(found, Fields) else []


def _configured(every: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Names of ConfigMaps, and the services that the init container would set for QAT devices."""
    for one in every:
        text = text_at(one.node, "data", "qat.conf") if one.kind == "ConfigMap" else ""
        if found := _CONFIGURED.search(text):
            try:
                service_name(found[1])
            except ValueError:
                continue
            one.take()
            yield one.name, found[1]
