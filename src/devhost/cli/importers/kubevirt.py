"""Converts KubeVirt's ``permittedHostDevices`` to devhost.yaml.

The input is a KubeVirt or HyperConverged object, alone or among others, or only the part of one below
``spec``, ``configuration`` or ``permittedHostDevices``. ``PermittedHostDevices`` in
``staging/src/kubevirt.io/api/core/v1/types.go`` of KubeVirt defines its fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from devhost.backend import OptionError, option
from devhost.config.diagnostics import Diagnostics, Place, shown
from devhost.config.document import Entry as Key
from devhost.config.document import Fields, Items, Node, Scalar
from devhost.config.reader import WRONG, Bounds, Raw, keys, read_dataclass
from devhost.planning import naming

from .gojson import PCI_ID, Remark, known, pci_id
from .kubernetes import objects, of_kinds
from .writing import Block, Entry, Value, document

_PATHS = (
    ("spec", "configuration", "permittedHostDevices"),
    ("spec", "permittedHostDevices"),
    ("configuration", "permittedHostDevices"),
    ("permittedHostDevices",),
)
_LISTS = ("pciHostDevices", "mediatedDevices", "usb", "usbHostDevices")
_SPELLINGS = {"pciDeviceSelector": "pciVendorSelector", "usbHostDevices": "usb"}
"""Keys of a HyperConverged object, and the names of the same keys in KubeVirt."""

_HINT = "give a KubeVirt or HyperConverged object with permittedHostDevices, as printed by kubectl"
_USB_ID = re.compile(r"(0[xX])?([0-9A-Fa-f]{1,4})")


def _check_name(name: str) -> None:
    if problem := naming.problem(name):
        raise OptionError(f"{shown(name)} {problem}", key="resourceName")


@dataclass(frozen=True, slots=True)
class _Pci:
    pci_vendor_selector: Raw = option(example='"10DE:1EB8"')
    resource_name: str = option(example="nvidia.com/TU104GL_Tesla_T4")
    external_resource_provider: bool = False
    disabled: bool = False

    def __post_init__(self) -> None:
        _check_name(self.resource_name)
        node = self.pci_vendor_selector
        if not (isinstance(node, Scalar) and all(map(PCI_ID.fullmatch, self.ids)) and len(self.ids) == 2):
            message = f"must be a vendor id and a device id, not {node}"
            raise OptionError(message, key="pciVendorSelector", hint='as in "10de:1eb8"')

    @property
    def ids(self) -> list[str]:
        node = self.pci_vendor_selector
        return node.text.split(":") if isinstance(node, Scalar) else []

    def where(self) -> Block:
        vendor, device = map(pci_id, self.ids)
        return {"vendor": vendor, "device": device, "driver": "vfio-pci"}


@dataclass(frozen=True, slots=True)
class _Mediated:
    mdev_name_selector: str = option(example='"GRID T4-1Q"')
    resource_name: str = option(example="nvidia.com/GRID_T4-1Q")
    external_resource_provider: bool = False
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class _UsbSelector:
    vendor: str = option(example='"46f4"')
    product: str = option(example='"0001"')

    def __post_init__(self) -> None:
        for key, value in (("vendor", self.vendor), ("product", self.product)):
            if not _USB_ID.fullmatch(value):
                hint = 'four hex digits, as in "46f4"'
                raise OptionError(f"{shown(value)} is not a USB id", key=key, hint=hint)

    @property
    def ids(self) -> dict[str, Value]:
        return {"idVendor": _hex(self.vendor), "idProduct": _hex(self.product)}


def _hex(value: str) -> str:
    found = _USB_ID.fullmatch(value)
    return found[2].lower().rjust(4, "0") if found else value


@dataclass(frozen=True, slots=True)
class _Usb:
    resource_name: str = option(example="kubevirt.io/storage")
    selectors: Annotated[tuple[_UsbSelector, ...], Bounds(1, 100)] = option()
    external_resource_provider: bool = False
    disabled: bool = False

    def __post_init__(self) -> None:
        _check_name(self.resource_name)


_Device = _Pci | _Mediated | _Usb
_KINDS: Mapping[str, type[_Device]] = {"pciHostDevices": _Pci, "mediatedDevices": _Mediated, "usb": _Usb}


@dataclass(slots=True)
class _Result:
    pci: dict[str, list[Block]] = field(default_factory=dict)
    usb: dict[str, list[Block]] = field(default_factory=dict)
    groups: list[Mapping[str, Value]] = field(default_factory=list)
    own: dict[str, None] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def convert(data: bytes, file_name: str) -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: an object of KubeVirt, or a part of one, as YAML or JSON.
        file_name: appears in the diagnostics.

    Raises:
        ConfigError: it has no ``permittedHostDevices``, or KubeVirt would refuse them.
    """
    diagnostics = Diagnostics(file_name)
    found = of_kinds(objects(data, diagnostics), ("", "KubeVirt", "HyperConverged"), diagnostics, hint=_HINT)
    result, remarks = _Result(), list[Remark]()
    lists = 0
    for one in found:
        for path in _PATHS:
            if permitted := one.at(*path):
                lists += 1
                for device in _devices(*permitted, remarks):
                    _add(device, result)
    if not lists:
        missing = "it has no spec.configuration.permittedHostDevices"
        diagnostics.fail(found[0].node.mark, missing, "KubeVirt permits no host device with it")
    if diagnostics.found:
        raise diagnostics.error()
    return _written(result, remarks)


def _devices(node: Node, place: Place, remarks: list[Remark]) -> Iterator[_Device]:
    fields = known(node, _LISTS, place, remarks.append)
    if not isinstance(fields, Fields):
        place.report(node, f"must be a mapping, not {node}", f"its keys: {', '.join(_LISTS[:3])}")
        return
    for key, entry in fields.entries.items():
        kind = _KINDS[_SPELLINGS.get(key, key)]
        here = place.key(key)
        if not isinstance(entry.value, Items):
            here.report(entry.value, f"must be a list, not {entry.value}")
            continue
        for n, item in enumerate(entry.value.items):
            device = read_dataclass(_pruned(item, kind, here.item(n), remarks), kind, here.item(n))
            if device is not WRONG and not device.disabled:
                yield device


def _pruned(node: Node, kind: type, place: Place, remarks: list[Remark]) -> Node:
    """The mapping without keys that KubeVirt does not know, and with the others in its spelling."""
    fields = known(node, (*keys(kind), *_SPELLINGS), place, remarks.append)
    if isinstance(fields, Fields):
        named = {_SPELLINGS.get(key, key): entry for key, entry in fields.entries.items()}
        selectors = named.get("selectors")
        if selectors is not None and isinstance(selectors.value, Items):
            here = place.key("selectors")
            items = (
                known(item, keys(_UsbSelector), here.item(n), remarks.append)
                for n, item in enumerate(selectors.value.items)
            )
            named["selectors"] = Key(selectors.mark, Items(selectors.value.mark, tuple(items)))
        return Fields(fields.mark, named)
    return fields


def _add(device: _Device, result: _Result) -> None:
    if not device.external_resource_provider and not isinstance(device, _Mediated):
        result.own[device.resource_name] = None
    if isinstance(device, _Pci):
        result.pci.setdefault(device.resource_name, []).append(device.where())
    elif isinstance(device, _Mediated):
        selector = shown(device.mdev_name_selector)
        result.left.append(
            f"{device.resource_name}, mediated devices {selector}: KubeVirt must serve them, devhost "
            f"does not."
        )
    elif len(device.selectors) == 1:
        block = {"devType": "usb_device", **device.selectors[0].ids}
        result.usb.setdefault(device.resource_name, []).append(block)
    else:
        group = re.sub(r"[^A-Za-z0-9._-]", "_", device.resource_name)[-63:].strip("._-")
        members = [one.ids for one in device.selectors]
        result.groups.append({"name": group, "usb": members, "pair": "order"})
        if {"group": group} not in result.usb.setdefault(device.resource_name, []):
            result.usb[device.resource_name].append({"group": group})


def _entries(result: _Result) -> Iterator[Entry]:
    for left in result.left:
        yield Entry(remarks=[left])
    for name, blocks in result.pci.items():
        yield Entry(name, "sriov", blocks, {"kubevirt": True}, _own(name, result))
    for name, blocks in result.usb.items():
        if name in result.pci:
            why = f"{name}: USB devices under the name of PCI functions: omitted."
            yield Entry(remarks=[why])
        else:
            yield Entry(name, "udev", blocks, {"kubevirt": True, "permissions": "mrw"}, _own(name, result))


def _own(name: str, result: _Result) -> list[str]:
    return (
        ["KubeVirt serves this resource as well until its selector has externalResourceProvider."]
        if name in result.own
        else []
    )


def _written(result: _Result, remarks: list[Remark]) -> str:
    notes = [str(remark) for remark in remarks]
    if result.own:
        names = ", ".join(result.own)
        notes.append(
            "Set externalResourceProvider: true for the selectors of these in the KubeVirt object, before "
            f"devhost starts: {names}. Otherwise KubeVirt's own plugin and devhost serve the same name."
        )
    differs = [
        (
            "ids are IOMMU groups for KubeVirt, PCI addresses for devhost: live-migrate machines before "
            "the switch"
        ),
        (
            "all functions of an IOMMU group are offered, and go to one machine: while it has one, the "
            "others are Unhealthy for all other machines"
        ),
        "devhost never gives one function of two resources to two machines",
        (
            "neither KubeVirt nor devhost offers a function that is not bound to vfio-pci; for NVIDIA vGPUs "
            "of Linux 6.8 and later write isVfio: true instead of the driver"
        ),
    ]
    if result.groups:
        differs.append("both combine the first of each of several USB devices under one name")
    options: dict[str, Mapping[str, Value]] = {"udev": {"groups": result.groups}} if result.groups else {}
    return document("KubeVirt", differs, list(_entries(result)), notes=notes, backends=options)
