"""Converts the JSON of sriov-network-device-plugin.

The plugin joins the keys of one object of selectors by "and", the members of one key by "or". Its
``pkg/resources/deviceSelectors.go`` defines what it compares, its device providers which functions it
considers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from itertools import product
from typing import Annotated, Literal

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown
from devhost.config.document import Items
from devhost.config.language import MAX_RESOURCES, naming
from devhost.config.reader import Bounds, Form, Raw

from .network_operator import NAMED, configuration
from .source import Driver, Id, Source, Text, Value, odd_ids, pci_id
from .writing import Block, Entry, Written, document, given, several

DEFAULT_PREFIX = "intel.com"  # of the plugin's flag --resource-prefix

_ADDRESS = r"([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_SPAN = r"[0-9]{1,9}(-[0-9]{1,9})?"
_SPANS = f"(#{_SPAN}(,{_SPAN})*)?"
_Name = Annotated[str, Form("[a-zA-Z0-9_-]+", "a name", "letters, digits, - and _ only")]
_Address = Annotated[str, Form(_ADDRESS, "a PCI address", 'as in "0000:3b:00.0"')]
_Root = Annotated[str, Form(_ADDRESS + _SPANS, "a PCI address with ranges", 'as in "0000:3b:00.0#0-3,7"')]
_Interface = Annotated[str, Form(f"[^#]+{_SPANS}", "an interface with ranges", 'as in "ens1f0#0-3,7"')]

_COMMON = ("vendors", "devices", "drivers")
_NETWORK = ("pfNames", "rootDevices", "linkTypes", "isRdma", "needVhostNet")
_READ: Mapping[str, Sequence[str]] = {  # by deviceType; the plugin ignores other selectors
    "netDevice": (*_COMMON, "pciAddresses", "acpiIndexes", *_NETWORK, "ddpProfiles", "pKeys", "vdpaType"),
    "auxNetDevice": (*_COMMON, "auxTypes", *_NETWORK),
    "accelerator": (*_COMMON, "pciAddresses"),
}
_Numbers = tuple[tuple[int, int], ...] | None  # ranges; None means any number, and functions without one


@dataclass(frozen=True, slots=True)
class _Resource:
    resource_name: _Name = option(example='"intel_sriov_dpdk"')
    selectors: Raw = option(example='{"vendors": ["8086"]}')
    resource_prefix: str = ""
    device_type: Literal["netDevice", "auxNetDevice", "accelerator"] = "netDevice"
    exclude_topology: bool = False
    additional_info: dict[str, dict[str, str]] = option({})


@dataclass(frozen=True, slots=True)
class _File:
    resource_list: Annotated[tuple[Raw, ...], Bounds(1, MAX_RESOURCES)] = option()


@dataclass(frozen=True, slots=True)
class _Selectors:
    vendors: tuple[Id, ...] = ()
    devices: tuple[Id, ...] = ()
    drivers: tuple[Driver, ...] = ()
    pci_addresses: tuple[_Address, ...] = ()
    acpi_indexes: tuple[Annotated[str, Form("[0-9]{1,9}", "a number")], ...] = ()
    pf_names: tuple[_Interface, ...] = ()
    root_devices: tuple[_Root, ...] = ()
    link_types: tuple[Literal["ether", "infiniband"], ...] = ()
    ddp_profiles: tuple[Text, ...] = ()
    p_keys: tuple[Annotated[str, Form("0x[0-9a-f]{1,4}", "a partition key", 'as in "0x8001"')], ...] = ()
    is_rdma: bool = False
    need_vhost_net: bool = False
    vdpa_type: Literal["", "virtio", "vhost"] = ""
    aux_types: tuple[Literal["sf"], ...] = ()

    def __post_init__(self) -> None:
        if self.is_rdma and self.vdpa_type:
            raise OptionError("isRdma excludes it, for the plugin as well", key="vdpaType")

    def where(self, kind: str) -> list[Block]:
        common: dict[str, Sequence[Written]] = {
            "pciClass": ["12*" if kind == "accelerator" else "02*"],
            "vendor": [*map(pci_id, self.vendors)],
            "device": [*map(pci_id, self.devices)],
            "driver": [*map(escape, self.drivers)],
            "acpiIndex": [*map(int, self.acpi_indexes)],
            "linkType": self.link_types,
            "ddpProfile": [*map(escape, self.ddp_profiles)],
            "pKey": self.p_keys,
            "isRdma": [True] if self.is_rdma else [],
            "vdpaType": [self.vdpa_type] if self.vdpa_type else [],
        }
        return [
            {key: several([*dict.fromkeys(one)]) for key, one in {**part, **common}.items() if one}
            for part in self._parts(kind)
        ]

    def _parts(self, kind: str) -> Iterator[dict[str, Sequence[str]]]:
        """The selection among parts of physical functions, and among physical functions themselves. For the
        plugin a function that is part of none is its own physical function, without a number."""
        own, scalable = [*map(_address, self.pci_addresses)], kind == "auxNetDevice"
        for (some, names), (others, roots) in product(_grouped(self.pf_names), _grouped(self.root_devices)):
            if (numbers := _both(some, others)) == ():
                continue
            addresses, by_whole = [*map(_address, roots)], bool(names or roots)
            spellings = [escape(one) for name in names for one in (name, name.lower())]
            spans = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in numbers or ())
            yield {
                "kind": ["sf"] if scalable else ["vf"] if by_whole else ["pf", "vf"],
                "pciBusID": own,
                "pfName": spellings,
                "pfPciBusID": addresses,
                "sfNum" if scalable else "vfIndex": [spans] if spans else [],
            }
            if by_whole and not numbers and not scalable:
                both = [address for address in addresses if address in own]
                if both or not (own and addresses):
                    yield {"kind": ["pf"], "pciBusID": both or own or addresses, "netDevs": spellings}

    def remarks(self, path: str) -> Iterator[str]:
        """Remarks on selectors that do not select what they seem to select."""
        yield from odd_ids((*self.vendors, *self.devices), path)
        yield from odd_ids(self.pci_addresses, path, _address)
        for texts in (self.pf_names, self.root_devices):
            seen: dict[str, str] = {}
            for text in dict.fromkeys(texts):
                name, numbers = _numbered(text)
                if (first := seen.setdefault(name.lower(), text)) != text:
                    what = f"{shown(text)} has no effect: {shown(first)} takes precedence"
                    yield f"{path}: {what} (put both ranges into one, with a comma)"
                elif numbers == ():
                    yield f"{path}: {shown(text)} selects nothing: its range is empty"


def convert(source: Source, prefix: str) -> str:
    found, options = configuration(source, "sriovDevicePlugin", "resourceList", source.peer)
    if options is not None:
        flag = options.get("resource-prefix")
        prefix = prefix or flag.text() or DEFAULT_PREFIX
        options.finish("config-file", "log-dir", "log-level", **NAMED)
    values = found.parts("resourceList", found.as_dataclass(_File, source.note).resource_list)
    names: set[str] = set()
    return document(source, source.peer, _DIFFERS, [_entry(value, prefix, names) for value in values])


def _entry(value: Value, prefix: str, names: set[str]) -> Entry:
    remarks: list[str] = []
    hint = "put it into selectors"  # only old versions read them
    resource = value.as_dataclass(_Resource, remarks.append, isRdma=hint, needVhostNet=hint)
    inner = replace(value, node=resource.selectors, place=value.place.key("selectors"))
    selectors = [*_selectors(inner, resource.device_type, remarks)]
    domain = resource.resource_prefix or prefix
    if not domain:
        value.source.note(_ASSUMED)
    name = f"{domain or DEFAULT_PREFIX}/{resource.resource_name}"
    if problem := naming.problem(name) or ("occurs twice" if name in names else ""):
        value.at("resourceName").refuse(f"{shown(name)} {problem}")
    names.add(name)
    if not (where := [block for one in selectors for block in one.where(resource.device_type)]):
        remarks.append(f"{name} selects nothing, neither with the plugin nor with devhost: omitted.")
        return Entry(remarks=remarks)
    rdma, vhost = [one.is_rdma for one in selectors], [one.need_vhost_net for one in selectors]
    for key, are in (("isRdma", rdma), ("needVhostNet", vhost)):
        if any(are) and not all(are):
            remarks.append(f"{key} is in some of its selectors; devhost applies it to the whole resource.")
    info = {device: words for device, words in resource.additional_info.items() if words}
    topology = {"topology": False} if resource.exclude_topology else {}
    written = given(rdma=any(rdma), vhostNet=any(vhost), info=info) | topology
    return Entry(name, "sriov", where, written, remarks)


def _selectors(listed: Value, kind: str, remarks: list[str]) -> Iterator[_Selectors]:
    """The objects of which one must select a device; for the plugin one object is a list of one."""
    if listed.node == Items(listed.node.mark, ()):
        listed.refuse("an empty list selects nothing", "write {} to select every function")
    for value in listed.each() if isinstance(listed.node, Items) else (listed,):
        selectors = value.as_dataclass(_Selectors, remarks.append, only=_READ[kind])
        if kind == "auxNetDevice" and not selectors.aux_types:
            value.refuse("an auxNetDevice requires auxTypes", 'write "auxTypes": ["sf"]')
        remarks += selectors.remarks(value.place.path)
        yield selectors


def _numbered(text: str) -> tuple[str, _Numbers]:
    """The name and the numbers of ``name#0-3,7``; without ``#`` it means everything of that name."""
    name, sign, numbers = text.partition("#")
    spans = (one.partition("-") for one in numbers.split(",")) if sign else ()
    found = ((int(low), int(high or low)) for low, _, high in spans)
    return name, tuple((low, high) for low, high in found if low <= high) if sign else None


def _grouped(texts: Sequence[str]) -> Iterable[tuple[_Numbers, Sequence[str]]]:
    """The names by their numbers. Of two with one name the plugin uses the first."""
    first: dict[str, tuple[str, _Numbers]] = {}
    for name, numbers in map(_numbered, texts):
        first.setdefault(name.lower(), (name, numbers))
    groups: dict[_Numbers, list[str]] = {} if texts else {None: []}
    for name, numbers in first.values():
        groups.setdefault(numbers, []).append(name)
    return groups.items()


def _both(one: _Numbers, other: _Numbers) -> _Numbers:
    if one is None or other is None:
        return other if one is None else one
    found = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple((low, high) for low, high in found if low <= high)


def _address(text: str) -> str:
    return text.lower() if text.count(":") == 2 else f"0000:{text.lower()}"


_ASSUMED = (
    f"{DEFAULT_PREFIX}: the domain of resources without resourcePrefix is that of the plugin's flag "
    f"--resource-prefix, which the input does not show. {DEFAULT_PREFIX} is its default; the SR-IOV network "
    "operator sets openshift.io. Add the DaemonSet, or use --resource-prefix."
)
_DIFFERS = [
    "the plugin ignores the case of interface names, devhost does not",
    "the plugin keeps only an interface with the IPv4 default route for the node. devhost also keeps one "
    "with the IPv6 route, one below a bond, bridge or VLAN with a default route, and the one with the "
    "address of the kubelet",
    "the plugin gives two functions of one IOMMU group, or a function and a part of it, to two pods, devhost "
    "never does",
    "for the plugin a function is always healthy. For devhost it is unhealthy while the port of its physical "
    "function has no carrier, or a node that it needs is missing. To ignore ports, set backends: {sriov: "
    "{ignorePortState: true}}",
]
