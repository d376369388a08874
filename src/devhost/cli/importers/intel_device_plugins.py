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
from devhost.config.document import Fields, Scalar, parse
from devhost.config.language import MAX_REPLICAS
from devhost.config.reader import WRONG, Bounds, keys

from .gojson import PCI_ID, pci_id
from .source import OF_PODS, Object, Source, Value, text_at
from .workload import Container, containers, tag_of, typed, version_of
from .writing import Block, Entry, Written, document, several

DEFAULT_SERVICES = "sym;asym"
"""The services of a QAT device of generation 4 unless the file or the user names others."""

_SERVICES = ("sym", "asym", "cy", "dc", "dcc", "decomp")
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

_FLAGS = {"bypathMode": "bypath", "preferredAllocationPolicy": "allocation-policy", "provisioningConfig": ""}
"""The plugins' flags that do not have the name of the object's key."""

_LIMIT = "set backends: {gpu: {temperatureLimit: …}} to this number of degrees."
_HEALTH = "devhost checks the health of GPUs itself."
_WITHOUT_PLACE = {
    **dict.fromkeys(("health-management", "xpumd-endpoint"), _HEALTH),
    **dict.fromkeys(("temp-limit", "gpu-temp-limit", "memory-temp-limit"), _LIMIT),
    "wsl": "add an entry of the backend udev with devNode: /dev/dxg.",
    "dcap-infra-resources": "devhost has no resources for Intel DCAP.",
    "resource-manager": "devhost has no fractions of GPUs (millicores, memory.max, tiles).",
    "mode": "devhost offers no device of QAT for the kernel's own mode.",
}
"""Flags without a counterpart, and what to do instead."""

_OF_THE_PROCESS = (
    *("v", "logtostderr", "stderrthreshold", "alsologtostderr"),
    *("kubeconfig", "master", "node-name", "prefix"),
)

_POLICIES = {"balanced": "spread", "packed": "pack"}
Policy = Literal["balanced", "packed", "none", ""]
Shared = Annotated[int, Bounds(1, MAX_REPLICAS)]


@dataclass(frozen=True, slots=True)
class _Spec:
    """The ``spec`` of an object; ``_KINDS`` lists the keys that each kind has."""

    shared_dev_num: Shared = 1
    allow_IDs: str = ""
    deny_IDs: str = ""
    preferred_allocation_policy: Policy = ""
    bypath_mode: Literal["none", "single", "all", ""] = ""
    enable_monitoring: bool = False
    monitoring_mode: Literal["single", "split", ""] = ""
    mode: Literal["af", "region", "regiondevel"] = "af"
    dpdk_driver: Literal["vfio-pci", "igb_uio"] = "vfio-pci"
    kernel_vf_drivers: tuple[str, ...] = ()
    max_num_devices: Annotated[int, Bounds(1, 10000)] = 64
    provisioning_config: str = ""
    driver: Literal["idxd", "vfio-pci"] = "idxd"
    enclave_limit: Shared = 110
    provision_limit: Shared = 110

    def __post_init__(self) -> None:
        for key, text in (("allowIDs", self.allow_IDs), ("denyIDs", self.deny_IDs)):
            for value in text.split(",") if text else ():
                if not PCI_ID.fullmatch(value.strip()):
                    hint = 'as in "0x56c0,0x56c1"'
                    raise OptionError(f"{shown(value)} is not a PCI id", key=key, hint=hint)
        if self.allow_IDs and self.deny_IDs:
            raise OptionError("cannot be used with allowIDs", key="denyIDs", hint="remove one of the two")
        for n, driver in enumerate(self.kernel_vf_drivers):
            if driver not in _VF_DRIVERS:
                hint = f"known: {', '.join(_VF_DRIVERS)}"
                message = f"{shown(driver)} is not a driver of virtual functions"
                raise OptionError(message, key=f"kernelVfDrivers[{n}]", hint=hint)

    @property
    def prefer(self) -> dict[str, Written]:
        policy = _POLICIES.get(self.preferred_allocation_policy)
        return {"prefer": policy} if policy else {}


@dataclass(slots=True)
class _Result:
    source: Source
    services: str
    configured: Mapping[str, str]
    entries: list[Entry] = field(default_factory=list)
    differs: dict[str, None] = field(default_factory=dict)
    options: dict[str, Written] = field(default_factory=dict)
    made: dict[str, list[tuple[Value, object]]] = field(default_factory=dict)
    """What each configuration of a plugin leads to, by the plugin."""

    def add(self, name: str, backend: str, where: Block, replicas: int = 1, /, **more: Written) -> None:
        share: dict[str, Written] = {"share": {"replicas": replicas}} if replicas > 1 else {}
        self.entries.append(Entry(name, backend, [where], {**share, **more}))


def _gpu(one: _Spec, result: _Result) -> None:
    where: dict[str, Written] = {"vendor": "intel"}
    if one.allow_IDs:
        where["deviceID"] = several(_ids(one.allow_IDs))
    if one.deny_IDs:
        where["not"] = {"deviceID": several(_ids(one.deny_IDs))}
    if one.bypath_mode not in ("", "single"):
        result.options.setdefault("bypath", one.bypath_mode)
    both: dict[str, Written] = {"exclusive": False} if one.enable_monitoring else {}
    result.add("gpu.intel.com/{driver}", "gpu", where, one.shared_dev_num, **one.prefer, **both)
    if not one.enable_monitoring:
        return
    names: dict[str, Mapping[str, Written]] = {"monitoring": {}}
    if one.monitoring_mode == "split":
        names = {f"{driver}_monitoring": {"driver": driver} for driver in ("i915", "xe")}
    for name, driver in names.items():
        whole: Block = {**where, **driver}
        result.add(f"gpu.intel.com/{name}", "gpu", whole, share={"of": "all"}, exclusive=False, firmware=True)


def _ids(text: str) -> list[str]:
    return [pci_id(value.strip()) for value in text.split(",")]


def _fpga(one: _Spec, result: _Result) -> None:
    kind = "af" if one.mode == "af" else "region"
    more: dict[str, Written] = {"development": True} if one.mode == "regiondevel" else {}
    result.add("fpga.intel.com/{intelName}", "fpga", {"vendor": "intel", "kind": kind}, **more)


def _qat(one: _Spec, result: _Result) -> None:
    for is_named in (False, True):
        if some := [driver for driver in one.kernel_vf_drivers if (driver in _BY_SERVICE) is is_named]:
            name = _service_name(one, result) if is_named else "generic"
            devices = [device for driver in some for device in _VF_DRIVERS[driver]]
            where = {"kind": "vf", "vendor": "8086", "device": several(devices), "driver": one.dpdk_driver}
            result.add(f"qat.intel.com/{name}", "sriov", where, **one.prefer)


def _service_name(one: _Spec, result: _Result) -> str:
    """The plugin's name for the resource of a device with these services (``cfg_services`` in sysfs)."""
    services = result.configured.get(one.provisioning_config) or result.services
    if not services:
        services = DEFAULT_SERVICES
        result.source.note(
            f"qat.intel.com/cy: the name depends on the services of the devices. The ConfigMap "
            f"{one.provisioning_config} sets them, but is not in the input or has none: add it. "
            "sym;asym is assumed; use --services for others."
            if one.provisioning_config
            else "qat.intel.com/cy: the object does not name the services of a device of generation 4; "
            "its cfg_services does. sym;asym is assumed; use --services for others."
        )
    return service_name(services)


def service_name(services: str) -> str:
    """The plugin's name for the services of a QAT device: ``cy`` for ``sym;asym``.

    Raises:
        ValueError: it is not a list of services.
    """
    names = services.split(";")
    if not set(names) <= {*_SERVICES} or len(set(names)) < len(names):
        raise ValueError(f"{shown(services)} are not services of QAT: write for example sym;asym or dc")
    if set(names) == {"sym", "asym"}:
        return "cy"
    return "-".join(sorted(names, key=_SERVICES.index))


def _queues(domain: str, node: str) -> Callable[[_Spec, _Result], None]:
    def add(one: _Spec, result: _Result) -> None:
        if one.driver == "vfio-pci":
            where = {"vendor": "8086", "device": ["0b25", "11fb", "1212"], "driver": "vfio-pci"}
            result.add(f"{domain}/vfio", "sriov", where)
            return
        if one.provisioning_config:
            result.source.note(
                f"provisioningConfig {one.provisioning_config}: devhost configures no queues. Keep the "
                "init container with accel-config, or use a systemd unit."
            )
        for mode, replicas in (("dedicated", 1), ("shared", one.shared_dev_num)):
            queues = {"subsystem": "dsa", "devNode": f"/dev/{node}/wq*", "sysattr.../type": "user"}
            queues |= {"sysattr.../mode": mode, "sysattr.../state": "enabled"}
            result.add(f"{domain}/wq-user-{mode}", "udev", queues, replicas)

    return add


def _rows(*rows: tuple[str, Block, str]) -> Callable[[_Spec, _Result], None]:
    """Entries of the udev backend, with the field that has the number of replicas."""

    def add(one: _Spec, result: _Result) -> None:
        for name, where, number in rows:
            result.add(name, "udev", where, getattr(one, number) if number else 1)

    return add


_VFS_OF_DLB = "sysattr.device/sriov_numvfs"
_dlb = _rows(
    ("dlb.intel.com/pf", {"subsystem": "dlb2", _VFS_OF_DLB: "0"}, ""),
    ("dlb.intel.com/vf", {"subsystem": "dlb2", "not": {_VFS_OF_DLB: "*"}}, ""),
)
_sgx = _rows(
    ("sgx.intel.com/enclave", {"devNode": "/dev/sgx_enclave"}, "enclave_limit"),
    ("sgx.intel.com/provision", {"devNode": "/dev/sgx_provision"}, "provision_limit"),
)
_IS_NPU = {"subsystem": "accel", "sysName": "accel[0-9]*", "driver": "intel_vpu"}
_npu = _rows(("npu.intel.com/accel", _IS_NPU, "shared_dev_num"))


_OF_QUEUES = "sharedDevNum provisioningConfig driver"
_OF_QAT = "dpdkDriver kernelVfDrivers maxNumDevices preferredAllocationPolicy provisioningConfig"
_OF_GPU = "sharedDevNum allowIDs denyIDs preferredAllocationPolicy bypathMode enableMonitoring monitoringMode"
_KINDS: Mapping[str, tuple[Callable[[_Spec, _Result], None], list[str]]] = {
    name: (add, keys.split())
    for name, add, keys in (
        ("gpu", _gpu, _OF_GPU),
        ("fpga", _fpga, "mode"),
        ("qat", _qat, _OF_QAT),
        ("dsa", _queues("dsa.intel.com", "dsa"), _OF_QUEUES),
        ("iaa", _queues("iaa.intel.com", "iax"), _OF_QUEUES),
        ("dlb", _dlb, "-"),
        ("sgx", _sgx, "enclaveLimit provisionLimit"),
        ("npu", _npu, "sharedDevNum"),
    )
}
"""The plugins: what makes their entries, and the keys of their objects."""

_QUEUES = {"sharedDevNum": "10"}
_OF_CHART = {"gpu": {"enableMonitoring": "true"}, "dsa": _QUEUES, "iaa": _QUEUES}
"""Defaults of the charts that differ from those of the plugins."""

_BY_RELEASE = {
    "monitoringMode": {(0, 36): "single", (): "split"},
    "kernelVfDrivers": {
        (0, 31): "[4xxxvf, 420xxvf]",
        (0, 30): "[c6xxvf, 4xxxvf, 420xxvf]",
        (): "[c6xxvf, 4xxxvf]",
    },
}
"""Defaults that name resources, of plugins and charts, by the first release that has them."""

_NAMED = re.compile(rf"(?<![a-z])({'|'.join(_KINDS)})(?=deviceplugin|[^a-z]|$)")
"""The plugin in a name, such as ``intel-gpu-plugin`` or ``gpudeviceplugin-sample``, or in a label."""

_OF_CHARTS = {key for _, keys in _KINDS.values() for key in keys} | {
    *("allocationPolicy", "name", "nodeFeatureRule", "resourceManager"),
    *OF_PODS,
}
"""The keys of the charts' values."""

_IDS = "ids of {} for the plugin, {} for devhost: drain the node before the switch"
_DIFFERS = {
    "gpu": [_IDS.format("GPUs are card0-0", "PCI addresses")],
    "fpga": [
        _IDS.format("FPGAs are dfl-port.0", "PCI addresses"),
        "in mode region a webhook and a hook program a region for a pod; with devhost the entry's program "
        "does",
    ],
    "qat": [
        "the plugin binds QAT virtual functions to dpdkDriver; devhost offers those that are bound to it: "
        "backends.sriov.virtualFunctions makes and binds them",
        "the plugin sets QAT0, QAT1, …; devhost sets PCIDEVICE_<RESOURCE> with all addresses",
        "the plugin offers at most maxNumDevices QAT devices; devhost offers all, unless vfIndex selects "
        "fewer",
    ],
    "vfio-pci": ["the plugin sets VFIO_BDF0, …; devhost sets PCIDEVICE_<RESOURCE> with all addresses"],
    "dsa": (_OF_IDXD := [_IDS.format("queues have a number", "the PCI address")]),
    "iaa": _OF_IDXD,
    "dlb": ["neither the plugin nor devhost offers a DLB with virtual functions"],
    "sgx": ["sgx.intel.com/epc comes from Node Feature Discovery and the webhook: keep them"],
    "npu": [_IDS.format("NPUs are accel0-0", "PCI addresses")],
}


def convert(data: bytes, file_name: str, services: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    ``services`` are those of QAT devices of generation 4, in the format of ``cfg_services``. If empty: those
    of the ConfigMap that the object names, if that is in the file, else :data:`DEFAULT_SERVICES`.

    Raises:
        ConfigError: it contains no such object, or the operator would refuse one.
        ValueError: ``services`` is invalid.
    """
    if services:
        service_name(services)
    source = Source(data, file_name, "intel-device-plugins")
    result = _Result(source, services, dict(_configured(source.objects)))
    of_kind = {f"{name.title()}DevicePlugin": name for name in _KINDS}
    found = [
        _Given(
            of_kind[one.kind],
            one.at("spec") or replace(one, node=Fields(one.node.mark)),
            one,
            tag_of(image),
        )
        for one in source.objects
        if one.kind in of_kind
        for image in (text_at(one.node, "spec", "image"),)
    ]
    for container in containers(source):
        if (name := _plugin_of(container)) and container.is_owned:
            container.holder.take()
        elif name:
            found.append(_of_container(container, name))
    found += _of_values(source)
    if not found:
        kinds = f"{', '.join(of_kind)} of deviceplugin.intel.com/v1"
        source.refuse(f"give one of {kinds}, a DaemonSet, or values of a chart")
    for one in found:
        _convert(one, result)
    source.check()
    for name, made in result.made.items():
        source.one_of([holder for holder, _ in made], f"intel-{name}-plugin", [each for _, each in made])
    backends = {"gpu": result.options} if result.options else {}
    differs = [*result.differs, "set nodeSelector and tolerations for the pods of devhost"]
    return document(source, "the Intel device plugins", differs, result.entries, backends=backends)


@dataclass(frozen=True, slots=True)
class _Given:
    """The settings of a plugin as the ``spec`` of its object; ``release`` is empty if unknown."""

    plugin: str
    spec: Value
    holder: Value
    release: tuple[int, ...]


def _convert(one: _Given, result: _Result) -> None:
    name, (add, known) = one.plugin, _KINDS[one.plugin]
    one.spec.for_pods()
    value = _as_of_release(one.spec, known, one.release)
    if value.is_true("resourceManager"):
        result.source.note(f"resourceManager: {_WITHOUT_PLACE['resource-manager']}")
    given = value.without("resourceManager", *OF_PODS)
    spec = given.as_dataclass(_Spec, result.source.remark, only=known)
    if spec is WRONG:
        return
    if name == "gpu" and spec.prefer and spec.shared_dev_num < 2:
        key, hint = "preferredAllocationPolicy", "set sharedDevNum to 2 or more, or remove it"
        value.place.key(key).report((value.at(key) or value).node, "requires sharedDevNum above 1", hint)
    differs = _DIFFERS[spec.driver if spec.driver == "vfio-pci" else name]
    result.differs |= dict.fromkeys(one.replace("to dpdkDriver", f"to {spec.dpdk_driver}") for one in differs)
    above = len(result.entries)
    add(spec, result)
    made = result.made.setdefault(name, [])
    made.append((one.holder, (result.entries[above:], spec.bypath_mode or "single")))
    if len(made) > 1:  # they are equal, or refused below
        del result.entries[above:]


def _plugin_of(one: Container) -> str:
    """The name of the plugin that a container runs; empty for other containers."""
    found = re.search(rf"intel-({'|'.join(_KINDS)})-plugin", one.image)
    return found[1] if found else ""


def _of_container(one: Container, name: str) -> _Given:
    """The flags of a plugin as the object that leads to them."""
    options = one.options(("enable-monitoring", "health-management", "wsl"))
    spec: Value = one.source.document(Fields(one.node.mark), one.place)
    for key, (given, wanted) in keys(_Spec).items():
        flag = _FLAGS.get(key, given.name.lower().replace("_", "-"))
        if key in _KINDS[name][1] and flag and (option := options.flag(flag)):
            spec = spec.put((key,), typed(Scalar(option.mark, option.text, "str"), wanted))
    options.finish(*_OF_THE_PROCESS, named=_WITHOUT_PLACE)
    return _Given(name, spec, one.holder, one.version)


def _as_of_release(spec: Value, keys: Sequence[str], release: tuple[int, ...]) -> Value:
    """The same with the defaults of this release of the plugin; of the latest one if it is not known."""
    for key, defaults in _BY_RELEASE.items():
        is_used = key in keys and (key != "monitoringMode" or spec.is_true("enableMonitoring"))
        if is_used and spec.at(key) is None:
            (first, newest), *older = defaults.items()
            fits = (text for since, text in defaults.items() if release >= since)
            spec = _completed(spec, {key: next(fits) if release else newest})
            if not release:
                spec.source.note(
                    f"{key}: {newest} is assumed, as in releases since {first[0]}.{first[1]}; the input "
                    f"names none. Older ones have {' or '.join(text for _, text in older)}: for these set "
                    "the tag of the image, and import again."
                )
    return spec


def _completed(spec: Value, defaults: Mapping[str, str], remark: str = "") -> Value:
    """The same with defaults for keys that are missing."""
    for key, text in defaults.items():
        if spec.at(key) is None:
            spec = spec.put((key,), parse(text.encode(), spec.source.diagnostics))
            spec.source.note(*([f"{key}: {text} {remark}"] if remark else []))
    return spec


def _of_values(source: Source) -> Iterator[_Given]:
    """Values of charts as the objects that the charts make of them."""
    charts = {f"intel-device-plugins-{name}": name for name in _KINDS}
    charts |= {f"{name}-device-plugin": name for name in _KINDS}
    for values in source.charts(*charts, recognized=lambda one: bool(_plugin_of_values(one))):
        yield _of_chart(charts.get(values.chart) or _plugin_of_values(values), values)
    unclear = source.values(recognized=lambda one: not _plugin_of_values(one) and set(one.keys) <= _OF_CHARTS)
    if unclear is not None:
        hint = "give the object that the chart made: kubectl get gpudeviceplugins -o yaml, or another kind"
        unclear.fail("these values do not show which plugin they are for", hint)


def _of_chart(name: str, given: Object) -> _Given:
    release = version_of(text_at(given.node, "image", "tag")) or version_of(given.version)
    values: Value = given
    values.omit("name", "nodeFeatureRule")
    if (policy := values.at("allocationPolicy")) is not None:
        values = values.put(("preferredAllocationPolicy",), policy.take())
    values = values.without("allocationPolicy", "name", "nodeFeatureRule")
    return _Given(
        name, _completed(values, _OF_CHART.get(name, {}), "is the chart's default."), given, release
    )


def _plugin_of_values(value: Value) -> str:
    """The name of the plugin that a chart is for, by what only its values have."""
    selector = value.at("nodeSelector")
    text = " ".join([text_at(value.node, "name"), *(selector.keys if selector else ())])
    if len(named := set(_NAMED.findall(text))) == 1:
        return str(named.pop())
    owners = [[name for name, (_, known) in _KINDS.items() if key in known] for key in value.keys]
    mine = {found[0] for found in owners if len(found) == 1}
    mine |= {"gpu"} if "allocationPolicy" in value.keys else set()
    return mine.pop() if len(mine) == 1 else ""


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
