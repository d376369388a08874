"""k8s-rdma-shared-dev-plugin's JSON → devhost.yaml.

Read are its configuration file, a ConfigMap that holds one, and a NicClusterPolicy of NVIDIA's network
operator, which has it as a string. What the plugin refuses is refused here. Keys that it does not know it
ignores, as Go's JSON does, and takes known ones in any case of letters; so does this, but says so in the
result: a selector that is misspelt selects more than was meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from devhost import naming
from devhost.backend import OptionError, option
from devhost.config.annotation import Bounds, Raw, keys
from devhost.config.complaints import Complaints, Mark, Place, one_line, shown, suggest
from devhost.config.document import parse
from devhost.config.language import MAX_RESOURCES
from devhost.config.nodes import Entry, Fields, Node, Scalar
from devhost.config.scalar import WRONG
from devhost.config.shape import read_dataclass, read_fields
from devhost.settings import MAX_REPLICAS

from .kubernetes import unwrapped
from .notation import IF_EMPTY, quoted, text, untabbed

DEFAULT_PREFIX = "rdma"
"""The domain of a resource that has no ``resourcePrefix``."""

CONFIG_KEY = "config.json"
"""The key of a ConfigMap that the plugin's own manifests use."""

FIELDS = {"NicClusterPolicy": ("spec", "rdmaSharedDevicePlugin", "config")}
"""Where the network operator's object has it."""

_OF_THE_PROCESS = {"kubeletRootDir": "`devhost run --kubelet-dir` says where the kubelet is"}
"""Keys of its own examples that no version of it reads, and where they belong."""

_NAME = re.compile(r"[a-zA-Z0-9_]+")
_PCI_ID = re.compile(r"(0[xX])?([0-9A-Fa-f]{1,4})")
_LINK_LAYERS = {"ether": "ethernet", "infiniband": "infiniband"}
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class _Selectors:
    vendors: tuple[str, ...] = ()
    device_IDs: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    if_names: tuple[str, ...] = ()
    link_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, (field, _) in keys(_Selectors).items():
            _refuse_empty(key, getattr(self, field.name))
        for key, ids in (("vendors", self.vendors), ("deviceIDs", self.device_IDs)):
            for n, value in enumerate(ids):
                if not _PCI_ID.fullmatch(value):
                    raise OptionError(
                        f"{shown(value)} is not a PCI id",
                        key=f"{key}[{n}]",
                        hint='four hex digits, as in "15b3"',
                    )
        for n, value in enumerate(self.link_types):
            if value not in _LINK_LAYERS:
                hint = suggest(value, _LINK_LAYERS, "link types")
                raise OptionError(f"{shown(value)} is not a link type", key=f"linkTypes[{n}]", hint=hint)

    def where(self) -> dict[str, tuple[str, ...]]:
        """The same in the words of the rdma backend; a key that is not given is not there."""
        found = {
            "vendor": tuple(map(_pci_id, self.vendors)),
            "device": tuple(map(_pci_id, self.device_IDs)),
            "driver": tuple(map(_literal, self.drivers)),
            "netDevs": tuple(map(_literal, self.if_names)),
            "linkLayer": tuple(_LINK_LAYERS[value] for value in self.link_types),
        }
        return {key: tuple(dict.fromkeys(values)) for key, values in found.items() if values}


def _refuse_empty(key: str, values: Sequence[str]) -> None:
    for n, value in enumerate(values):
        if not value:
            raise OptionError("is empty", key=f"{key}[{n}]", hint="remove it")


@dataclass(frozen=True, slots=True)
class _Resource:
    resource_name: str = option(example='"hca_shared_devices_a"')
    resource_prefix: str = ""
    rdma_hca_max: Annotated[int, Bounds(0, MAX_REPLICAS)] = 0
    selectors: _Selectors = _Selectors()
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.resource_name):
            hint = "letters, digits and _ only"
            raise OptionError(f"{shown(self.resource_name)} is not a name", key="resourceName", hint=hint)
        if problem := naming.problem(self.name):
            raise OptionError(f"{shown(self.name)} {problem}", key="resourceName")
        if self.devices and self.selectors != _Selectors():
            raise OptionError("it has selectors as well", key="devices", hint="put the names into ifNames")
        if not self.devices and self.selectors == _Selectors():
            known = ", ".join(keys(_Selectors))
            raise OptionError("it selects nothing: neither selectors nor devices", hint=f"selectors: {known}")
        _refuse_empty("devices", self.devices)

    @property
    def name(self) -> str:
        return f"{self.resource_prefix or DEFAULT_PREFIX}/{self.resource_name}"

    def where(self) -> dict[str, tuple[str, ...]]:
        selectors = replace(self.selectors, if_names=self.devices) if self.devices else self.selectors
        found = selectors.where()
        if not {"vendor", "device"} & found.keys():
            found["pciBusID"] = ("*",)
        return found


@dataclass(frozen=True, slots=True)
class _File:
    config_list: Annotated[tuple[Raw, ...], Bounds(1, MAX_RESOURCES)] = option()
    periodic_update_interval: Annotated[int, Bounds(0, 2**31 - 1)] = 60


@dataclass(frozen=True, slots=True)
class _Remark:
    """Something at a place of the source that the plugin reads otherwise than its author may think."""

    mark: Mark
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return one_line(f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else ""))


@dataclass(frozen=True, slots=True)
class _Import:
    """A resource, and what is to be said of its source."""

    resource: _Resource
    remarks: Sequence[_Remark]


def convert(data: bytes, file_name: str) -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's configuration, or a Kubernetes object that holds it, as JSON or YAML.
        file_name: stands in the complaints.

    Raises:
        ConfigError: the plugin would refuse it, or it is none; with everything wrong in it.
    """
    complaints = Complaints(file_name)
    document = parse(untabbed(data), complaints, if_empty=IF_EMPTY)
    node, place = unwrapped(document, Place(complaints), config_map_key=CONFIG_KEY, fields=FIELDS)
    remarks: list[_Remark] = []
    values = read_fields(_known(node, _File, place, remarks.append), _File, place)
    imports = _imports(values.get("config_list", ()), place.key("configList"))
    for found in (complaints, place.complaints):
        if found.found:
            raise found.error()
    return "\n".join(_written(imports, values.get("periodic_update_interval"), remarks)) + "\n"


def _imports(nodes: Sequence[Node], place: Place) -> list[_Import]:
    found: list[_Import] = []
    names: set[str] = set()
    for index, node in enumerate(nodes):
        here = place.item(index)
        remarks: list[_Remark] = []
        known = _known(node, _Resource, here, remarks.append)
        if isinstance(known, Fields) and "selectors" in known.entries:
            entry = known.entries["selectors"]
            selectors = _known(entry.value, _Selectors, here.key("selectors"), remarks.append)
            known.entries["selectors"] = Entry(entry.mark, selectors)
        resource = read_dataclass(known, _Resource, here)
        if resource is WRONG:
            for remark in remarks:  # they may be what is wrong
                here.complaints.add(remark.mark, remark.path, remark.message, remark.hint)
            continue
        if resource.resource_name in names:
            # the plugin names its sockets without the prefix, and refuses this too
            here.key("resourceName").complain(node, f"{shown(resource.resource_name)} stands twice")
        names.add(resource.resource_name)
        remarks += _spellings(resource.selectors, node.mark, here.key("selectors").path)
        found.append(_Import(resource, remarks))
    return found


def _known(node: Node, cls: type, place: Place, remark: Callable[[_Remark], None]) -> Node:
    """A mapping with only those keys that the plugin reads, spelt its way; null is no value to it."""
    if not isinstance(node, Fields):
        return node
    known = {key.lower(): key for key in keys(cls)}
    found = Fields(node.mark)
    for key, entry in node.entries.items():
        name = known.get(key.lower())
        if name is None:
            hint = _OF_THE_PROCESS.get(key) or suggest(key, known.values(), "keys")
            message = "the plugin knows no such key and ignores it"
            remark(_Remark(entry.mark, place.key(key).path, message, hint))
        elif not (isinstance(entry.value, Scalar) and entry.value.kind == "null"):
            found.entries[name] = entry
    return found


def _spellings(selectors: _Selectors, mark: Mark, path: str) -> list[_Remark]:
    """What never matched for the plugin, which compares letter by letter, and does here."""
    odd = [value for value in (*selectors.vendors, *selectors.device_IDs) if value != _pci_id(value)]
    return [
        _Remark(mark, path, f'{shown(value)} matched nothing there, "{_pci_id(value)}" does')
        for value in dict.fromkeys(odd)
    ]


def _pci_id(value: str) -> str:
    found = _PCI_ID.fullmatch(value)
    return found[2].lower().rjust(4, "0") if found else value


def _literal(value: str) -> str:
    """A name in which ``*``, ``?`` and ``[`` stand for themselves, as they do for the plugin."""
    return _GLOB.sub(lambda sign: f"[{sign[0]}]", value)


def _overlap(one: Mapping[str, frozenset[str]], other: Mapping[str, frozenset[str]]) -> bool:
    """Whether one HCA may be in both: no selector that both have tells them apart."""
    return not any(key in other and "*" not in one[key] and one[key].isdisjoint(other[key]) for key in one)


def _written(imports: Sequence[_Import], interval: int | None, remarks: Sequence[_Remark]) -> Iterator[str]:
    yield "# Made from a configuration of k8s-rdma-shared-dev-plugin. What differs there:"
    yield "# - an HCA without an active port is given all the same; here containers go without it. To have it"
    yield "#   as there, say backends: {rdma: {ignorePortState: true}};"
    yield "# - an HCA without umad (iWARP) or a scalable function is never given; here it is, if selected;"
    yield "# - it sets interfaces up; here nothing of the host is changed;"
    yield "# - it does not start where each network namespace has its own RDMA devices; devhost does."
    if interval is not None:
        yield f"# periodicUpdateInterval: {interval} has no place here: the kernel tells devhost of changes."
    for remark in remarks:
        yield f"# {remark}"
    yield "version: 1"
    yield ""
    served = {
        one.resource.name: {key: frozenset(values) for key, values in one.resource.where().items()}
        for one in imports
        if one.resource.rdma_hca_max
    }
    yield "resources:" if served else "resources: []"
    for one in imports:
        resource = one.resource
        for remark in one.remarks:
            yield f"  # {remark}"
        if resource.rdma_hca_max:
            own = served[resource.name]
            beside = [name for name, other in served.items() if other is not own and _overlap(own, other)]
            yield from _entry(resource, beside)
        else:
            yield f"  # {resource.name} has rdmaHcaMax 0, so no pod could ever get it: left out."


def _entry(resource: _Resource, beside: Sequence[str]) -> Iterator[str]:
    yield f"  - name: {text(resource.name)}"
    yield "    backend: rdma"
    yield "    where:"
    for key, values in resource.where().items():
        # most ids look like a number to YAML
        written = ", ".join(map(quoted if key in ("vendor", "device") else text, values))
        why = "  # it knows PCI devices only, no rxe or siw" if key == "pciBusID" else ""
        yield f"      {key}: {f'[{written}]' if len(values) > 1 else written}{why}"
    yield "    # Each container gets all of these HCAs. For one HCA each, near the container's CPUs, and this"
    yield "    # number for every HCA: remove `of: all`."
    yield f"    share: {{replicas: {resource.rdma_hca_max}, of: all}}"
    if beside:
        few = ", ".join(beside[:3]) + (f" and {len(beside) - 3} more" if len(beside) > 3 else "")
        yield f"    # An HCA may also be selected by {few}: it then serves both, as there."
        yield "    exclusive: false"
    yield "    whenEmpty: register"
