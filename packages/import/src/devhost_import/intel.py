"""Converts the objects of the Intel device plugins operator, and the flags of its plugins.

``pkg/apis/deviceplugin/v1`` of intel-device-plugins-for-kubernetes defines the fields of the objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from devhost.backend import OptionError
from devhost.config.diagnostics import shown
from devhost.config.document import Fields, parse
from devhost.config.language import MAX_REPLICAS
from devhost.config.reader import Bounds, Form, keys

from .source import INTEL, OF_PODS, PCI_ID, Object, Source, Value, pci_id, text_at, typed
from .workload import Container, containers, version_of
from .writing import Block, Entry, Written, document, given, replicas, several

DEFAULT_SERVICES = "sym;asym"  # of a QAT device of generation 4, unless the file or the user names others
_SERVICES = ("cy", "asym", "sym", "dc", "dcc", "decomp")  # in the order of the kernel, from 6.16 on
_CONFIGURED = re.compile(r"^\s*ServicesEnabled\s*=\s*(\S+)", re.MULTILINE)

_VF_DRIVERS = {  # PCI ids of virtual functions by the kernel's driver (drivers/crypto/intel/qat)
    "dh895xccvf": ("0442", "0443"), "c6xxvf": ("37c9",), "c3xxxvf": ("19e3",), "c4xxxvf": ("18a1",),
    "d15xxvf": ("6f55",), "4xxxvf": ("4941", "4943", "4945"), "420xxvf": ("4947",), "6xxxvf": ("4949",),
}  # fmt: skip
_BY_SERVICE = ("4xxxvf", "420xxvf", "6xxxvf")  # drivers of devices whose resources are named after services

# flags that do not have the name of the object's key
_FLAGS = {"bypathMode": "bypath", "preferredAllocationPolicy": "allocation-policy", "provisioningConfig": ""}
_LIMIT = "set backends: {gpu: {temperatureLimit: …}} to this number of degrees."
_WITHOUT_PLACE = {
    **dict.fromkeys(("health-management", "xpumd-endpoint"), "devhost checks the health of GPUs itself."),
    **dict.fromkeys(("temp-limit", "gpu-temp-limit", "memory-temp-limit"), _LIMIT),
    "wsl": "add an entry of the backend udev with devNode: /dev/dxg.",
    "dcap-infra-resources": "devhost has no resources for Intel DCAP.",
    "resource-manager": "devhost has no fractions of GPUs (millicores, memory.max, tiles).",
    "mode": "devhost offers no device of QAT for the kernel's own mode.",
}

_IDS = "ids of {} for the plugin, {} for devhost: drain the node before the switch"
_OF_IDXD = [_IDS.format("queues have a number", "the PCI address")]
_DIFFERS = {
    "gpu": [_IDS.format("GPUs are card0-0", "PCI addresses")],
    "fpga": [_IDS.format("FPGAs are dfl-port.0", "PCI addresses"),
             "in mode region a webhook and a hook program a region for a pod; with devhost the entry's "
             "program does"],
    "qat": ["the plugin binds QAT virtual functions to {}; devhost offers those that are bound to it: "
            "backends.sriov.virtualFunctions makes and binds them",
            "the plugin offers at most maxNumDevices QAT devices; devhost offers all, unless vfIndex "
            "selects fewer"],
    "vfio-pci": ["devhost sets PCIDEVICE_<RESOURCE>, too, with all addresses"],
    "dsa": _OF_IDXD, "iaa": _OF_IDXD,
    "dlb": ["neither the plugin nor devhost offers a DLB with virtual functions"],
    "sgx": ["sgx.intel.com/epc comes from Node Feature Discovery and the webhook: keep them"],
    "npu": [_IDS.format("NPUs are accel0-0", "PCI addresses")]}  # fmt: skip

_Release = tuple[int, ...]  # empty if unknown
_Given = tuple[str, Value, Value, _Release]  # a plugin, its settings as the spec of its object, what has them
_ID = rf"\s*{PCI_ID.pattern}\s*"
_Ids = Annotated[str, Form(f"({_ID}(,{_ID})*)?", "a list of PCI ids", 'as in "0x56c0,0x56c1"'), "gpu"]
_Driver = Annotated[str, Form("|".join(_VF_DRIVERS), "a driver of virtual functions", ", ".join(_VF_DRIVERS))]


@dataclass(frozen=True, slots=True)
class _Spec:
    """The ``spec`` of an object. The last text in a key's type names the plugins whose objects have it."""

    shared_dev_num: Annotated[int, Bounds(1, MAX_REPLICAS), "gpu dsa iaa npu"] = 1
    allow_IDs: _Ids = ""
    deny_IDs: _Ids = ""
    preferred_allocation_policy: Annotated[Literal["balanced", "packed", "none", ""], "gpu qat"] = ""
    bypath_mode: Annotated[Literal["none", "single", "all", ""], "gpu"] = ""
    enable_monitoring: Annotated[bool, "gpu"] = False
    monitoring_mode: Annotated[Literal["single", "split", ""], "gpu"] = ""
    mode: Annotated[Literal["af", "region", "regiondevel"], "fpga"] = "af"
    dpdk_driver: Annotated[Literal["vfio-pci", "igb_uio"], "qat"] = "vfio-pci"
    kernel_vf_drivers: Annotated[tuple[_Driver, ...], "qat"] = ()
    max_num_devices: Annotated[int, Bounds(1, 10000), "qat"] = 64
    provisioning_config: Annotated[str, "qat dsa iaa"] = ""
    driver: Annotated[Literal["idxd", "vfio-pci"], "dsa iaa"] = "idxd"
    enclave_limit: Annotated[int, Bounds(1, MAX_REPLICAS), "sgx"] = 110
    provision_limit: Annotated[int, Bounds(1, MAX_REPLICAS), "sgx"] = 110

    def __post_init__(self) -> None:
        if self.allow_IDs and self.deny_IDs:
            raise OptionError("cannot be used with allowIDs", key="denyIDs", hint="remove one of the two")

    @property
    def prefer(self) -> dict[str, Written]:
        words = {"balanced": "spread", "packed": "pack"}
        return given(prefer=words.get(self.preferred_allocation_policy, ""))


_OWNERS = {key: kind.__metadata__[-1].split() for key, (_, kind) in keys(_Spec).items()}
_KINDS = {name: [key for key, owners in _OWNERS.items() if name in owners] for name in INTEL.values()}
_NOT_IN_OBJECT = ("allocationPolicy", "name", "nodeFeatureRule")
_OF_CHARTS = {*keys(_Spec), *_NOT_IN_OBJECT, "resourceManager", *OF_PODS}

# defaults of the charts that differ from those of the plugins
_DEFAULTS = {"gpu": {"enableMonitoring": "true"}} | {key: {"sharedDevNum": "10"} for key in ("dsa", "iaa")}

_BY_RELEASE = {  # defaults that name resources, of plugins and charts, by the first release that has them
    "monitoringMode": {(0, 36): "single", (): "split"},
    "kernelVfDrivers": {
        (0, 31): "[4xxxvf, 420xxvf]", (0, 30): "[c6xxvf, 4xxxvf, 420xxvf]", (): "[c6xxvf, 4xxxvf]",
    }}  # fmt: skip
_IMAGE = re.compile(rf"intel-({'|'.join(_KINDS)})-plugin")
# in a name, such as intel-gpu-plugin or gpudeviceplugin-sample, or in a label
_NAMED = re.compile(rf"(?<![a-z])({'|'.join(_KINDS)})(?=deviceplugin|[^a-z]|$)")


def convert(source: Source, services: str) -> str:
    service = service_name(services) if services else ""
    configured = dict(_configured(source))
    if not (found := list(_found(source))):
        kinds = f"{', '.join(INTEL)} of deviceplugin.intel.com/v1"
        source.refuse(f"give one of {kinds}, a DaemonSet, or values of a chart")
    entries, differs, options = list[Entry](), dict[str, None](), dict[str, Written]()
    made: dict[str, list[tuple[Value, object]]] = {}
    for plugin, given_spec, holder, release in found:
        spec = _spec(plugin, given_spec, release)
        mine = list(_entries(plugin, spec, configured.get(spec.provisioning_config, service), source))
        texts = _DIFFERS.get(spec.driver) or _DIFFERS[plugin]
        differs |= dict.fromkeys(text.format(spec.dpdk_driver) for text in texts)
        if spec.bypath_mode not in ("", "single"):
            options.setdefault("bypath", spec.bypath_mode)
        if plugin not in made:  # several are equal, or refused below
            entries += mine
        made.setdefault(plugin, []).append((holder, (mine, spec.bypath_mode or "single")))
    for name, each in made.items():
        source.one_of([holder for holder, _ in each], f"intel-{name}-plugin", [result for _, result in each])
    differs["set nodeSelector and tolerations for the pods of devhost"] = None
    return document(source, "the Intel device plugins", [*differs], entries, gpu=options)


def _configured(source: Source) -> Iterator[tuple[str, str]]:
    """Names of ConfigMaps, and of the services that the init container would set for QAT devices."""
    for one in source.of_kinds("ConfigMap"):
        if found := _CONFIGURED.search(text_at(one.node, "data", "qat.conf")):
            with suppress(ValueError):
                yield one.name, service_name(found[1])
                one.take()


def service_name(services: str) -> str:
    """The plugin's name for services of a QAT device (``cy`` for ``sym;asym``), or a ValueError."""
    names = services.split(";")
    if not set(names) <= {*_SERVICES} or len(set(names)) < len(names):
        raise ValueError(f"{shown(services)} are not services of QAT: write for example sym;asym or dc")
    return "cy" if set(names) == {"sym", "asym"} else "-".join(sorted(names, key=_SERVICES.index))


def _found(source: Source) -> Iterator[_Given]:
    for one in source.objects:
        if one.kind in INTEL:
            spec = one.at("spec") or replace(one, node=Fields(one.node.mark))
            yield INTEL[one.kind], spec, one, version_of(text_at(one.node, "spec", "image"))
    for container in containers(source):
        if (plugin := _IMAGE.search(container.image)) and container.is_owned:
            container.holder.take()
        elif plugin:
            yield _of_container(container, plugin[1])
    charts = {f"intel-device-plugins-{name}": name for name in _KINDS}
    charts |= {f"{name}-device-plugin": name for name in _KINDS}
    for values in source.charts(*charts, recognized=_plugin_of):
        yield _of_chart(charts.get(values.chart) or _plugin_of(values), values)
    if unclear := source.values(recognized=lambda one: not _plugin_of(one) and set(one.keys) <= _OF_CHARTS):
        hint = "give the object that the chart made: kubectl get gpudeviceplugins -o yaml, or another kind"
        unclear.fail("these values do not show which plugin they are for", hint)


def _of_container(one: Container, name: str) -> _Given:
    options = one.options(("enable-monitoring", "health-management", "wsl"))
    spec: Value = one.source.document(Fields(one.node.mark), one.place)
    for key, (field, wanted) in keys(_Spec).items():
        flag = _FLAGS.get(key, field.name.lower().replace("_", "-"))
        if key in _KINDS[name] and flag and (option := options.get(flag)):
            spec = spec.put((key,), typed(option.node, wanted))
    options.finish("kubeconfig", "master", "node-name", "prefix", **_WITHOUT_PLACE)
    return name, spec, one.holder, version_of(one.image)


def _of_chart(name: str, values: Object) -> _Given:
    release = version_of(text_at(values.node, "image", "tag")) or version_of(values.version)
    spec: Value = values
    values.omit("name", "nodeFeatureRule")
    if policy := values.at("allocationPolicy"):
        spec = spec.put(("preferredAllocationPolicy",), policy.take())
    spec = _completed(spec.without(*_NOT_IN_OBJECT), _DEFAULTS.get(name, {}), "is the chart's default.")
    return name, spec, values, release


def _plugin_of(value: Value) -> str:
    """The plugin that a chart is for, by what only its values have; empty if they do not show it."""
    text = " ".join([text_at(value.node, "name"), *value.at("nodeSelector").keys])
    if len(named := set(_NAMED.findall(text))) == 1:
        return str(named.pop())
    mine = {owners[0] for key in value.keys if len(owners := _OWNERS.get(key, [])) == 1}
    mine |= {"gpu"} if "allocationPolicy" in value.keys else set()
    return mine.pop() if len(mine) == 1 else ""


def _completed(spec: Value, defaults: Mapping[str, str], remark: str = "") -> Value:
    for key, text in defaults.items():
        if not spec.at(key):
            spec = spec.put((key,), parse(text.encode(), spec.source.diagnostics))
            spec.source.note(*([f"{key}: {text} {remark}"] if remark else []))
    return spec


def _spec(plugin: str, spec: Value, release: _Release) -> _Spec:
    """The settings, with the defaults of this release of the plugin, or of the latest one."""
    known, source = _KINDS[plugin], spec.source
    spec.for_pods()
    for key, defaults in _BY_RELEASE.items():
        is_used = key in known and (key != "monitoringMode" or spec.is_true("enableMonitoring"))
        if is_used and not spec.at(key):
            (first, newest), *older = defaults.items()
            fits = (text for since, text in defaults.items() if release >= since)
            spec = _completed(spec, {key: next(fits) if release else newest})
            if not release:
                what = f"is assumed, as in releases since {first[0]}.{first[1]}; the input names none"
                others = f"Older ones have {' or '.join(text for _, text in older)}"
                then = "for these set the tag of the image, and import again."
                source.note(f"{key}: {newest} {what}. {others}: {then}")
    if spec.is_true("resourceManager"):
        source.note(f"resourceManager: {_WITHOUT_PLACE['resource-manager']}")
    found = spec.without("resourceManager", *OF_PODS).as_dataclass(_Spec, source.note, only=known or ("-",))
    if plugin == "gpu" and found.prefer and found.shared_dev_num < 2:
        spec.at("preferredAllocationPolicy").refuse("requires sharedDevNum above 1", "raise that one")
    return found


def _entries(name: str, spec: _Spec, service: str, source: Source) -> Iterator[Entry]:
    """The entries of a plugin; ``service`` is the name for QAT devices of generation 4 if it is known."""
    if name == "gpu":
        yield from _gpu(spec)
    elif name == "fpga":
        where = {"vendor": "intel", "kind": spec.mode.removesuffix("devel")}
        yield Entry("fpga.intel.com/{intelName}", "fpga", [where], given(development="devel" in spec.mode))
    elif name == "qat":
        yield from _qat(spec, service, source)
    elif spec.driver == "vfio-pci":
        functions: Block = {"vendor": "8086", "device": ["0b25", "11fb", "1212"], "driver": "vfio-pci"}
        give = {"env": {"VFIO_BDF{index}": "{pciBusID}"}}
        yield Entry(f"{name}.intel.com/vfio", "sriov", [functions], {"give": give})
    else:
        if spec.provisioning_config:
            what = f"provisioningConfig {spec.provisioning_config}: devhost configures no queues."
            source.note(f"{what} Keep the init container with accel-config, or use a systemd unit.")
        for resource, block, number in _OF_UDEV[name]:
            shares = replicas(getattr(spec, number) if number else 1)
            yield Entry(f"{name}.intel.com/{resource}", "udev", [block], shares)


def _gpu(one: _Spec) -> Iterator[Entry]:
    where = {"vendor": "intel"} | given(deviceID=_ids(one.allow_IDs))
    where |= given(**{"not": given(deviceID=_ids(one.deny_IDs))})
    both: dict[str, Written] = {"exclusive": False} if one.enable_monitoring else {}
    keys = {**replicas(one.shared_dev_num), **one.prefer, **both}
    yield Entry("gpu.intel.com/{driver}", "gpu", [where], keys)
    drivers = ("i915", "xe") if one.monitoring_mode == "split" else ("",)
    for driver in drivers if one.enable_monitoring else ():
        name = f"gpu.intel.com/{driver}_monitoring" if driver else "gpu.intel.com/monitoring"
        keys = {"share": {"of": "all"}, "exclusive": False, "firmware": True}
        yield Entry(name, "gpu", [where | given(driver=driver)], keys)


def _ids(text: str) -> Written:
    return several([pci_id(value.strip()) for value in text.split(",")])


def _qat(one: _Spec, service: str, source: Source) -> Iterator[Entry]:
    by_service = [driver for driver in one.kernel_vf_drivers if driver in _BY_SERVICE]
    others = [driver for driver in one.kernel_vf_drivers if driver not in _BY_SERVICE]
    if by_service and not service:
        service = service_name(DEFAULT_SERVICES)
        why = "the object does not name the services of a device of generation 4; its cfg_services does."
        if name := one.provisioning_config:
            why = f"The ConfigMap {name} sets them, but is not in the input or has none: add it."
            why = f"the name depends on the services of the devices. {why}"
        source.note(f"qat.intel.com/cy: {why} sym;asym is assumed; use --services for others.")
    for name, drivers in (("generic", others), (service, by_service)):
        if devices := [device for driver in drivers for device in _VF_DRIVERS[driver]]:
            where = {"kind": "vf", "vendor": "8086", "device": several(devices), "driver": one.dpdk_driver}
            give = {"env": {"QAT{index}": "{pciBusID}"}}
            yield Entry(f"qat.intel.com/{name}", "sriov", [where], {**one.prefer, "give": give})


def _queues(node: str) -> list[tuple[str, Block, str]]:
    common = {"subsystem": "dsa", "devNode": f"/dev/{node}/wq*", "sysattr.../type": "user"}
    return [
        (f"wq-user-{mode}", common | {"sysattr.../mode": mode, "sysattr.../state": "enabled"}, number)
        for mode, number in (("dedicated", ""), ("shared", "shared_dev_num"))
    ]


_VFS_OF_DLB = "sysattr.device/sriov_numvfs"
_IS_NPU = {"subsystem": "accel", "sysName": "accel[0-9]*", "driver": "intel_vpu"}
# resources of the backend udev by plugin: the name, the devices, and the key with the replicas
_OF_UDEV: Mapping[str, Sequence[tuple[str, Block, str]]] = {
    "dsa": _queues("dsa"), "iaa": _queues("iax"), "npu": [("accel", _IS_NPU, "shared_dev_num")],
    "dlb": [("pf", {"subsystem": "dlb2", _VFS_OF_DLB: "0"}, ""),
            ("vf", {"subsystem": "dlb2", "not": {_VFS_OF_DLB: "*"}}, "")],
    "sgx": [("enclave", {"devNode": "/dev/sgx_enclave"}, "enclave_limit"),
            ("provision", {"devNode": "/dev/sgx_provision"}, "provision_limit")]}  # fmt: skip
