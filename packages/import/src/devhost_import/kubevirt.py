"""Converts the permittedHostDevices of KubeVirt, also of a HyperConverged object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from glob import escape
from itertools import chain
from typing import Annotated

from devhost.backend import option
from devhost.backend.errors import ConfigError
from devhost.config.diagnostics import shown
from devhost.config.document import Items
from devhost.config.language import naming
from devhost.config.reader import Bounds, Form, Raw

from .source import PCI_ID, Object, Source, Value, pci_id, text_at
from .writing import Block, Entry, Written, document

_OF_KINDS = {
    "KubeVirt": ("spec", "configuration", "permittedHostDevices"),
    "HyperConverged": ("spec", "permittedHostDevices"),
}
_PATHS = (*_OF_KINDS.values(), ("configuration", "permittedHostDevices"), ("permittedHostDevices",))

_Id = Annotated[str, Form(PCI_ID.pattern, "a USB id", 'four hex digits, as in "46f4"')]
_PAIR = f"{PCI_ID.pattern}:{PCI_ID.pattern}"
_Ids = Annotated[str, Form(_PAIR, "a vendor id and a device id", 'as in "10de:1eb8"')]
_Type = Annotated[str, Form(r".*\S.*", "the name of a type", 'as in "GRID T4-1Q"')]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    resource_name: str = option(example="nvidia.com/TU104GL_Tesla_T4")
    external_resource_provider: bool = False
    disabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pci(_Device):
    pci_vendor_selector: _Ids = option(example='"10DE:1EB8"')

    @property
    def where(self) -> Block:
        vendor, product = map(pci_id, self.pci_vendor_selector.split(":"))
        return {"vendor": vendor, "device": product, "driver": "vfio-pci"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mediated(_Device):
    mdev_name_selector: _Type = option(example='"GRID T4-1Q"')

    @property
    def where(self) -> Block:
        return {"kind": "mdev", "mdevType": escape(self.mdev_name_selector.replace(" ", "_").strip())}


@dataclass(frozen=True, slots=True)
class _UsbSelector:
    vendor: _Id = option(example='"46f4"')
    product: _Id = option(example='"0001"')


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usb(_Device):
    selectors: Annotated[tuple[_UsbSelector, ...], Bounds(1, 100)] = option()

    @property
    def ids(self) -> list[dict[str, Written]]:
        return [{"idVendor": pci_id(one.vendor), "idProduct": pci_id(one.product)} for one in self.selectors]


_KINDS: Mapping[str, type[_Device]] = {  # a HyperConverged object has usbHostDevices
    "pciHostDevices": _Pci, "mediatedDevices": _Mediated, "usb": _Usb, "usbHostDevices": _Usb,
}  # fmt: skip
_Permitted = make_dataclass("_Permitted", [(key, tuple[Raw, ...], ()) for key in _KINDS])


def convert(source: Source) -> str:
    hint = "give a KubeVirt or HyperConverged object with permittedHostDevices, as printed by kubectl"
    found = source.of_kinds("", *_OF_KINDS, hint=hint)
    devices, lists = list[_Device](), 0
    for one in found:
        paths = [_OF_KINDS[one.kind]] if one.kind else _PATHS
        every = [permitted for path in paths if (permitted := one.at(*path))]
        devices += chain.from_iterable(map(_devices, every))
        lists += len(every) + _name_others(one, ".".join(paths[0]))
    if not lists:
        found[0].fail("it has no spec.configuration.permittedHostDevices", "it permits no host device")
    entries = [*_entries(devices)]
    own = {one.resource_name for one in devices if not one.external_resource_provider}
    if names := [entry.name for entry in entries if entry.name in own]:
        source.note(_OWN.format(", ".join(names)))
    return document(source, "KubeVirt", _DIFFERS, sorted(entries, key=lambda entry: entry.backend))


def _name_others(value: Value, right: str) -> int:
    """Remarks on lists of devices in other places, where KubeVirt ignores them; the number of such lists."""
    count, around = 0, ("spec", "configuration", "permittedHostDevices", "virtualization")
    for key, inner in value.members():
        if value.source.is_read(inner):
            continue
        if key in around:
            count += _name_others(inner, right)
        elif key in _KINDS and (isinstance(inner.take(), Items) or key != "usb"):
            count += 1
            value.source.note(f"{inner.place.path}: KubeVirt ignores it here: move it below {right}.")
    if not (isinstance(value, Object) and value.kind):
        value.leave("other settings of KubeVirt, which stay there.", *around)
    return count


def _devices(permitted: Value) -> Iterator[_Device]:
    note = permitted.source.note
    lists: object = permitted.as_dataclass(_Permitted, note)
    for key, kind in _KINDS.items():
        for one in permitted.parts(key, getattr(lists, key)):
            name = text_at(one.node, "resourceName")
            if selector := one.at("pciDeviceSelector"):  # of a HyperConverged object
                one = one.without("pciDeviceSelector").put(("pciVendorSelector",), selector.node)
            try:
                device = one.as_dataclass(kind, note)
            except ConfigError:
                if text_at(one.node, "externalResourceProvider") != "true":
                    raise
                one.place.diagnostics.found.clear()  # KubeVirt does not read its selector
                note(f"{name}: its selector is invalid: import the configuration of its plugin.")
                continue
            if problem := naming.problem(name):
                one.at("resourceName").refuse(f"{shown(name)} {problem}")
            if device.disabled:
                note(f"{name} is disabled: omitted.")
            else:
                yield device


def _entries(devices: Sequence[_Device]) -> Iterable[Entry]:
    entries: dict[str, Entry] = {}
    of_sriov = [one for one in devices if isinstance(one, _Pci | _Mediated)]
    last = {str(one.where): one.resource_name for one in of_sriov if not one.external_resource_provider}
    for device in devices:
        name, omitted = device.resource_name, ""
        made = Entry(name, "udev", keys={"kubevirt": True})
        if isinstance(device, _Pci | _Mediated):
            made.where, made.backend = [device.where], "sriov"
            if not device.external_resource_provider and (used := last[str(device.where)]) != name:
                why = f"of several names for a selector KubeVirt uses the last, here {used}"
                omitted = f"{name}: {why}: omitted."
        elif isinstance(device, _Usb):
            made.where = [{"devType": "usb_device", **device.ids[0]}]
            made.keys = {"kubevirt": True, "permissions": "mrw"}
            if len(device.ids) > 1:
                group = re.sub(r"[^A-Za-z0-9._-]", "_", name)[-63:].strip("._-")
                made.where = [{"group": group}]
                made.groups = [{"name": group, "usb": device.ids, "pair": "order"}]
        entry = entries.setdefault(omitted or name, made)
        if entry.backend != made.backend:
            omitted = f"{name}: USB devices under the name of other devices: omitted."
        if omitted:
            entries[omitted] = Entry(remarks=[omitted])
            continue
        # of equal entries the first takes all devices
        entry.where = [*entry.where, *(one for one in made.where if one not in entry.where)]
        entry.groups = [*entry.groups, *(one for one in made.groups if one not in entry.groups)]
    return entries.values()


_OWN = (
    "Set externalResourceProvider: true for the selectors of these in the KubeVirt object, before devhost "
    "starts: {}. Otherwise KubeVirt's own plugin and devhost serve the same name."
)
_DIFFERS = [
    "ids are IOMMU groups for KubeVirt, PCI addresses or UUIDs for devhost: live-migrate machines before the "
    "switch",
    "all functions of an IOMMU group are offered, and go to one machine: while it has one, the others are "
    "Unhealthy for all other machines",
    "a machine gets one function for each that it requests. If functions of one name are of one card, such "
    "as a GPU and its audio, give them different names, and request both",
    "devhost never gives one function of two resources to two machines",
    "neither KubeVirt nor devhost offers a function that is not bound to vfio-pci; for NVIDIA vGPUs of Linux "
    "6.8 and later write isVfio: true instead of the driver",
    "KubeVirt makes and removes mediated devices also for devhost, by its mediatedDevicesConfiguration",
    # fetch in pkg/virt-handler/device-manager/usb_device.go
    "both combine the first of each of several USB devices under one name; for equal selectors KubeVirt "
    "finds one device, devhost a different one for each",
]
