"""Converts KubeVirt's ``permittedHostDevices`` to devhost.yaml.

The input is a KubeVirt or HyperConverged object, alone or among others, or only the part of one below
``spec``, ``configuration`` or ``permittedHostDevices``. ``PermittedHostDevices`` in
``staging/src/kubevirt.io/api/core/v1/types.go`` of KubeVirt defines its fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown, suggest
from devhost.config.document import Fields, Items, Node, Scalar
from devhost.config.language import naming
from devhost.config.reader import WRONG, Bounds, Raw

from .gojson import PCI_ID, Remark, pci_id
from .source import Object, Source, Value, some
from .writing import Block, Entry, Written, document

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
    def ids(self) -> dict[str, Written]:
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
    groups: list[Mapping[str, Written]] = field(default_factory=list)
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
    source = Source(data, file_name, "kubevirt")
    found = source.of_kinds("", "KubeVirt", "HyperConverged", hint=_HINT)
    result = _Result()
    lists, misplaced = 0, 0
    for one in found:
        paths = {"KubeVirt": _PATHS[:1], "HyperConverged": _PATHS[1:2]}.get(one.kind, _PATHS)
        for path in paths:
            if (permitted := one.at(*path)) is not None:
                lists += 1
                for device in _devices(permitted):
                    _add(device, result)
        misplaced += _name_others(one, ".".join(paths[0]))
    if not lists and not misplaced:
        missing = "it has no spec.configuration.permittedHostDevices"
        source.diagnostics.fail(found[0].node.mark, missing, "KubeVirt permits no host device with it")
    return _written(result, source)


def _name_others(value: Value, right: str) -> int:
    """Remarks on lists of devices in other places, where KubeVirt ignores them; the number of such lists."""
    count, left = 0, list[str]()
    for key in value.keys:
        inner = value.at(key)
        if inner is None or value.source.is_read(inner):
            continue
        is_list = isinstance(inner.node, Items)
        if key in _LISTS and (is_list or key != "usb"):
            count += 1
            value.source.note(
                f"{inner.place.path}: KubeVirt ignores it here: move it below {right}, and import again."
            )
            inner.take()
        elif isinstance(value, Object) and value.kind and key != "spec":
            continue
        elif key in ("spec", "configuration", "permittedHostDevices", "virtualization"):
            count += _name_others(inner, right)
        else:
            left.append(key)
            if key == "mediatedDevicesConfiguration":
                value.source.note("mediatedDevicesConfiguration: KubeVirt makes mediated devices: keep it.")
            inner.take()
    if left:
        value.source.note(f"{some(left)}: other settings of KubeVirt, which stay there.")
    return count


def _devices(permitted: Value) -> Iterator[_Device]:
    if not isinstance(permitted.node, Fields):
        hint = f"its keys: {', '.join(_LISTS[:3])}"
        permitted.place.report(permitted.node, f"must be a mapping, not {permitted.node}", hint)
        return
    for key in permitted.keys:
        name = next((one for one in _LISTS if one.lower() == key.lower()), "")
        listed = permitted.at(key)
        if listed is None:
            continue
        listed.take()
        if not name:
            hint = suggest(key, _LISTS, "keys")
            message = "the plugin ignores this unknown key"
            permitted.source.remark(Remark(listed.node.mark, listed.place.path, message, hint))
        elif not isinstance(listed.node, Items):
            listed.place.report(listed.node, f"must be a list, not {listed.node}")
        else:
            for one in listed.each():
                kind = _KINDS[_SPELLINGS.get(name, name)]
                device = replace(one, node=_spelled(one.node)).as_dataclass(kind, one.source.remark)
                if device is not WRONG and device.disabled:
                    one.source.note(f"{device.resource_name} is disabled: omitted.")
                elif device is not WRONG:
                    yield device


def _spelled(node: Node) -> Node:
    """The mapping with KubeVirt's spelling of keys."""
    if not isinstance(node, Fields):
        return node
    return Fields(node.mark, {_SPELLINGS.get(key, key): entry for key, entry in node.entries.items()})


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
        remarks = _own(name, result)
        if len(blocks) > 1:
            remarks.append(
                "A machine gets one function for each that it requests. If these are functions of one card, "
                "such as a GPU and its audio, give them different names, and request both."
            )
        yield Entry(name, "sriov", blocks, {"kubevirt": True}, remarks)
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


def _written(result: _Result, source: Source) -> str:
    if result.own:
        names = ", ".join(result.own)
        source.note(
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
    groups = {"groups": result.groups} if result.groups else {}
    return document(source, "KubeVirt", differs, list(_entries(result)), backends={"udev": groups})
