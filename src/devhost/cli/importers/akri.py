"""Converts Akri's Configurations for its udev handler to devhost.yaml.

The input is one or more objects of ``akri.sh`` in one file. Rules of udev are read as in Akri's
``discovery_impl.rs``: libudev compares ``KERNEL``, ``SUBSYSTEM``, ``ATTR`` and ``ENV`` with globs; everything
else is a regular expression for the whole value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from devhost.backend import option
from devhost.config.diagnostics import Place, shown
from devhost.config.document import Scalar
from devhost.config.language import MAX_REPLICAS, naming
from devhost.config.reader import WRONG, Bounds

from . import regular
from .gojson import PCI_ID, Remark, literal, pci_id
from .regular import Globs, Inexpressible, Invalid
from .source import Object, Source, text_at
from .writing import Block, Entry, Written, document, several

DOMAIN = "akri.sh"

_TERM = re.compile(r'\s*([A-Z]+)(?:\{([^{}]*)\})?\s*(==|!=|\+=|-=|:=|=)\s*"([^"]*)"\s*(,|$)')
_FIELDS = frozenset(
    {"ATTR", "ATTRS", "DEVPATH", "DRIVER", "DRIVERS", "ENV", "KERNEL", "KERNELS", "SUBSYSTEM"}
    | {"SUBSYSTEMS", "TAG", "TAGS"}
)
_WITH_KEY = frozenset({"ATTR", "ATTRS", "ENV"})
_HINT = "give a Configuration of akri.sh whose discoveryHandler is udev"
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_OF_USB = {
    "idVendor": "idVendor",
    "idProduct": "idProduct",
    "serial": "serial",
    "manufacturer": "vendor",
    "product": "model",
    "bInterfaceNumber": "usbInterface",
}
"""Files of a USB device in sysfs, and the attributes with the same content."""

_PROPERTIES = {"DEVTYPE": "devType", "DEVNAME": "devNode", "SUBSYSTEM": "subsystem", "DRIVER": "driver"}
_BUSES = {"usb": "usbPort", "pci": "pciBusID"}


@dataclass(frozen=True, slots=True)
class _Details:
    udev_rules: tuple[str, ...] = option(example="['KERNEL==\"video[0-9]*\"']")
    permissions: Annotated[str, Bounds(1, 3)] = "rwm"
    group_recursive: bool = False


@dataclass(slots=True)
class _Result:
    entries: list[Entry] = field(default_factory=list)
    groups: list[Mapping[str, Written]] = field(default_factory=list)


@dataclass(slots=True)
class _Blocks:
    """The blocks of one rule, while it is read."""

    choices: list[list[tuple[str, Globs]]] = field(default_factory=list)
    never: list[Block] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, attribute: str, alternatives: Sequence[Globs], *, holds: bool) -> None:
        if not holds:
            if any(one.is_bounded for one in alternatives):
                raise Inexpressible("!= cannot be expressed for it")
            for one in alternatives:
                block: dict[str, Written] = {attribute: several(one.some)}
                if one.never:
                    block["not"] = {attribute: several(one.never)}
                self.never.append(block)
            return
        if any(attribute == choice[0][0] for choice in self.choices):
            raise Inexpressible(f"two terms are about {attribute}")
        if not alternatives:
            raise Inexpressible("it never matches")
        self.choices.append([(attribute, one) for one in alternatives])

    def all(self) -> list[Block]:
        found: list[Block] = []
        for chosen in itertools.product(*self.choices):
            block: dict[str, Written] = {}
            never = list(self.never)
            for attribute, globs in chosen:
                block[attribute] = several(globs.some)
                never += [{attribute: glob} for glob in globs.never]
            if never:
                block["not"] = never[0] if len(never) == 1 else never
            found.append(block)
        return found


def convert(data: bytes, file_name: str) -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: one or several Configurations, as YAML or JSON.
        file_name: appears in the diagnostics.

    Raises:
        ConfigError: it has none for udev, or the handler would refuse a rule; with every error in it.
    """
    source = Source(data, file_name, "akri")
    found = source.of_kinds("Configuration", hint=_HINT)
    result = _Result()
    wanted = [one for one in found if _is_udev(one)]
    for one in found:
        if one not in wanted:
            handler = one.text("spec", "discoveryHandler", "name")
            source.note(f"{one.name}: the handler {handler} does not find devices of a node: omitted.")
            one.take()
    if not wanted:
        source.diagnostics.fail(found[0].node.mark, "its discovery handler is not udev", _HINT)
    for one in wanted:
        _add(one, result)
    return _written(source, result)


def _is_udev(one: Object) -> bool:
    name = text_at(one.node, "spec", "discoveryHandler", "name")
    return name == "udev" or one.at("spec", "protocol", "udev") is not None


def _add(one: Object, result: _Result) -> None:
    diagnostics = one.place.diagnostics
    name = one.name
    full = f"{DOMAIN}/{name}"
    if problem := naming.problem(full):
        diagnostics.add(one.node.mark, one.place.key("metadata").path, f"{shown(full)} {problem}")
        return
    read = _details(one)
    if read is None:
        return
    details, place, notes = read
    remarks = [str(remark) for remark in notes]
    if not set(details.permissions) <= set("rwm") or details.permissions == "m":
        message = f"{shown(details.permissions)} must consist of r, w and m"
        place.diagnostics.add(one.node.mark, place.key("permissions").path, message)
    blocks: list[Block] = []
    for n, rule in enumerate(details.udev_rules):
        here = place.key("udevRules").item(n)
        try:
            blocks += _rule(rule, remarks)
        except Inexpressible as error:
            remarks.append(f"Rule {rule} is omitted: {error}.")
        except Invalid as error:
            here.diagnostics.add(
                one.node.mark, here.path, f"{shown(rule)}: {error}", "Akri refuses it as well"
            )
    one.source.check()
    spec = one.at("spec") or one
    if left := spec.others("capacity", "brokerProperties", "discoveryHandler", "protocol"):
        one.source.note(
            f"{name}: {', '.join(left)} are not converted: write a Deployment or DaemonSet that "
            f"requests the resource."
        )
    if details.group_recursive:
        remarks.append(
            "groupRecursive: Akri gives the nodes below one device together, devhost each on its own. "
            "A group "
            "with a member for each kind of node joins them by their hardware."
        )
    if not blocks:
        result.entries.append(
            Entry(remarks=[*remarks, f"{full} has no rule that can be converted: omitted."])
        )
        return
    member: dict[str, Written] = {"where": blocks[0] if len(blocks) == 1 else blocks}
    member["permissions"] = details.permissions
    env = {"UDEV_DEVNODE": "{devNode}", **dict(_properties(one, remarks))}
    result.groups.append({"name": name, "members": [member], "env": env})
    capacity = _capacity(one)
    share: dict[str, Written] = {"share": {"replicas": capacity}} if capacity > 1 else {}
    result.entries.append(Entry(full, "udev", [{"group": name}], share, remarks))


def _details(one: Object) -> tuple[_Details, Place, list[Remark]] | None:
    """The configuration of the handler, its place, and remarks; ``None`` if it is wrong."""
    handler, old = one.at("spec", "discoveryHandler"), one.at("spec", "protocol", "udev")
    if handler is not None:
        handler.omit("name")
    found = handler.at("discoveryDetails") if handler else old
    if found is None:
        place = one.place.key("spec").key("discoveryHandler")
        place.report(one.node, "it has no discoveryDetails", "the handler needs udevRules in it")
        return None
    found = found.document()
    remarks: list[Remark] = []
    details = found.as_dataclass(_Details, remarks.append, explain=False)
    return None if details is WRONG else (details, found.place, remarks)


def _capacity(one: Object) -> int:
    found = one.at("spec", "capacity")
    if found is None:
        return 1
    node = found.take()
    number = int(node.text) if isinstance(node, Scalar) and node.text.isdecimal() else 0
    if not 1 <= number <= MAX_REPLICAS:
        found.place.report(node, f"must be a number from 1 to {MAX_REPLICAS}, not {node}")
    return number


def _properties(one: Object, remarks: list[str]) -> Iterator[tuple[str, str]]:
    found = one.at("spec", "brokerProperties")
    for name in found.keys if found else ():
        assert found is not None
        value = found.text(name)
        if "{" in value or not _VARIABLE.fullmatch(name):
            remarks.append(f"brokerProperties {name} is not a valid variable name: omitted.")
        else:
            yield name, value


def _rule(rule: str, remarks: list[str]) -> list[Block]:
    """The blocks of one rule.

    Raises:
        Invalid: Akri refuses it.
        Inexpressible: devhost has no equivalent.
    """
    blocks = _Blocks()
    at, properties = 0, 0
    while at < len(rule.rstrip()):
        term = _TERM.match(rule, at)
        if term is None:
            raise Invalid(f"{shown(rule[at:].strip())} is not a term")
        name, key, operator, value, _ = term.groups()
        if operator not in ("==", "!="):
            raise Invalid(f"{operator} assigns a value; only == and != select devices")
        if name not in _FIELDS:
            raise Invalid(f"{name} does not select devices")
        if (name in _WITH_KEY) != (key is not None):
            raise Invalid(f"{name} {'needs' if name in _WITH_KEY else 'has no'} key in braces")
        properties += name == "ENV" and operator == "=="
        try:
            _READERS[name](key or "", value, operator == "==", blocks)
        except Invalid as error:
            raise Invalid(f"{shown(value)} is not a regular expression: {error}") from None
        at = term.end()
    if not blocks.choices and not blocks.never:
        raise Invalid("it selects nothing") if not rule.strip() else Inexpressible("it selects every device")
    if properties > 1:
        remarks.append(f"Rule {rule}: for libudev one matching ENV term is enough; devhost requires all.")
    remarks += blocks.remarks
    return blocks.all()


def _glob(attribute: str, value: str, blocks: _Blocks, *, holds: bool) -> None:
    blocks.add(attribute, [Globs((value,))], holds=holds)


def _expression(attribute: str, value: str, blocks: _Blocks, *, holds: bool) -> None:
    blocks.add(attribute, regular.globs(value, whole=True), holds=holds)


def _kernel(_: str, value: str, holds: bool, blocks: _Blocks) -> None:
    (_glob if holds else _expression)("sysName", value, blocks, holds=holds)
    if holds and "|" in value:
        blocks.remarks.append(f"KERNEL {value}: libudev takes | literally, and so does this entry.")


def _subsystem(_: str, value: str, holds: bool, blocks: _Blocks) -> None:
    _glob("subsystem", value, blocks, holds=holds)


def _attr(key: str, value: str, holds: bool, blocks: _Blocks) -> None:
    _glob(f"sysattr.{key}", value, blocks, holds=holds)


def _env(key: str, value: str, holds: bool, blocks: _Blocks) -> None:
    if key in ("MAJOR", "MINOR"):
        if not value and not holds:
            return  # every device with a node has these attributes
        if not value.isdecimal():
            raise Inexpressible(f"{key} is a number in devhost")
        attribute = key.lower()
        blocks.add(attribute, [Globs((value,))], holds=holds)
        return
    attribute = key if key.startswith("ID_") else _PROPERTIES.get(key, "")
    if attribute == "devNode" and value[:1].isalnum():
        if holds:
            raise Inexpressible(f"no device has the DEVNAME {value}: all begin with /dev/")
        return
    if not attribute:
        raise Inexpressible(f"the property {key} is not an attribute of devhost")
    (_glob if holds else _expression)(attribute, value, blocks, holds=holds)


def _driver(_: str, value: str, holds: bool, blocks: _Blocks) -> None:
    _expression("driver", value, blocks, holds=holds)


def _devpath(_: str, value: str, holds: bool, blocks: _Blocks) -> None:
    if holds:
        blocks.add("sysPath", [Globs((f"/sys{literal(value)}",))], holds=True)
    else:
        globs = regular.globs(value, whole=True)
        found = [Globs(tuple(f"/sys{glob}" for glob in one.some), one.never) for one in globs]
        blocks.add("sysPath", found, holds=False)


def _subsystems(_: str, value: str, holds: bool, blocks: _Blocks) -> None:
    if value not in _BUSES:
        raise Inexpressible(f"of SUBSYSTEMS only {' and '.join(_BUSES)} can be expressed")
    blocks.add(_BUSES[value], [Globs(("*",))], holds=holds)


def _attrs(key: str, value: str, holds: bool, blocks: _Blocks) -> None:
    if key in ("vendor", "device") and PCI_ID.fullmatch(value) and value.lower().startswith("0x"):
        blocks.add(f"pci{key.title()}", [Globs((pci_id(value),))], holds=holds)
    elif key in _OF_USB:
        _expression(_OF_USB[key], value, blocks, holds=holds)
    else:
        _expression(f"sysattr.{key}", value, blocks, holds=holds)
        blocks.remarks.append(f"ATTRS{{{key}}}: devhost compares it only for the device itself.")


def _kernels(_: str, value: str, holds: bool, blocks: _Blocks) -> None:
    if not _PCI_ADDRESS.fullmatch(value):
        raise Inexpressible("of KERNELS only a PCI address can be expressed")
    blocks.add("pciBusID", [Globs((value,))], holds=holds)


def _tag(_: str, value: str, holds: bool, blocks: _Blocks) -> None:
    raise Inexpressible(f"udev tags, such as {value}, are not attributes of devhost")


_READERS: Mapping[str, Callable[[str, str, bool, _Blocks], None]] = {
    "KERNEL": _kernel,
    "SUBSYSTEM": _subsystem,
    "ATTR": _attr,
    "ENV": _env,
    "DRIVER": _driver,
    "DRIVERS": _driver,
    "DEVPATH": _devpath,
    "SUBSYSTEMS": _subsystems,
    "ATTRS": _attrs,
    "KERNELS": _kernels,
    "TAG": _tag,
    "TAGS": _tag,
}


def _written(source: Source, result: _Result) -> str:
    differs = [
        "Akri offers a device in two resources, that of the Configuration and one for this device with a "
        "hash in "
        "its name; devhost only in the first. For a particular device add an entry with its serial "
        "or usbPort",
        "Akri makes brokers and services for each device; with devhost, write a Deployment or DaemonSet that "
        "requests the resource",
        "Akri scans every ten seconds, devhost at each event",
        "Akri offers devices without a node in /dev, devhost does not",
        "Akri offers a device of two Configurations twice; devhost in the first. Akri offers a USB device "
        "and the "
        "nodes of its interfaces; devhost one of them",
        "for Akri, DRIVERS, ATTRS, KERNELS and SUBSYSTEMS match any parent device; for devhost the USB "
        "device, "
        "the PCI function and the nearest driver",
        "for several devices Akri sets UDEV_DEVNODE_<hash> for each; devhost sets UDEV_DEVNODE with all "
        "of them, "
        "separated by commas",
    ]
    groups: dict[str, Written] = {"groups": result.groups} if result.groups else {}
    return document(source, "Akri", differs, result.entries, backends={"udev": groups})
