"""Converts Configurations of Akri for its udev handler.

Rules are read as in Akri's ``discovery_impl.rs``: libudev compares ``KERNEL``, ``SUBSYSTEM``, ``ATTR`` and
``ENV`` with globs; everything else is a regular expression for the whole value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import escape
from itertools import product
from typing import Annotated

from devhost.backend import option
from devhost.config.diagnostics import shown
from devhost.config.language import MAX_REPLICAS, naming
from devhost.config.reader import Bounds, Form

from . import globs
from .globs import Glob, Inexpressible, Invalid
from .source import PCI_ID, Source, Value, pci_id, some, text_at
from .writing import Block, Entry, Group, Written, document, given, replicas, several

DOMAIN = "akri.sh"
_HINT = "give a Configuration of akri.sh whose discoveryHandler is udev"
_TERM = re.compile(r'\s*([A-Z]+)(?:\{([^{}]*)\})?\s*(==|!=|\+=|-=|:=|=)\s*"([^"]*)"\s*(,|$)')
_WITH_KEY = ("ATTR", "ATTRS", "ENV")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ATTRIBUTES = {
    "KERNEL": "sysName", "SUBSYSTEM": "subsystem", "DRIVER": "driver", "DRIVERS": "driver",
    "DEVPATH": "sysPath", "KERNELS": "pciBusID", "ENV{DEVTYPE}": "devType", "ENV{DEVNAME}": "devNode",
    "ENV{SUBSYSTEM}": "subsystem", "ENV{DRIVER}": "driver", "ENV{MAJOR}": "major", "ENV{MINOR}": "minor",
    "ATTRS{idVendor}": "idVendor", "ATTRS{idProduct}": "idProduct", "ATTRS{serial}": "serial",
    "ATTRS{manufacturer}": "vendor", "ATTRS{product}": "model", "ATTRS{bInterfaceNumber}": "usbInterface",
}  # fmt: skip
_Found = tuple[Entry, Sequence[Block], dict[str, Written]]  # with the blocks of its rules, and their member
_BUSES = {"usb": "usbPort", "pci": "pciBusID"}


@dataclass(frozen=True, slots=True)
class _Details:
    udev_rules: tuple[str, ...] = option(example="['KERNEL==\"video[0-9]*\"']")
    permissions: Annotated[str, Form(r"(?!m?$)[rwm]{1,3}", "some of r, w and m")] = "rwm"
    group_recursive: bool = False


def convert(source: Source) -> str:
    if not (every := [*_configurations(source)]):
        source.of_kinds("Configuration", hint=_HINT)[0].fail("its discovery handler is not udev", _HINT)
    found = [_read(*each) for each in every]
    for n in globs.shared_blocks([blocks for _, blocks, _ in found]):
        found[n][2]["shared"] = True
    return document(source, "Akri", _DIFFERS, [entry for entry, _, _ in found])


def _configurations(source: Source) -> Iterator[tuple[str, Value, Value]]:
    """The name and the spec of each, also in values of Akri's chart, and the details of its handler."""
    if values := source.values("akri", recognized=lambda one: one.at("udev", "configuration")):
        udev = values.at("udev") or values
        if left := [*values.others("udev"), *(f"udev.{key}" for key in udev.others("configuration"))]:
            source.note(f"{some(left)}: settings of the chart, which are not converted.")
        spec = udev.at("configuration") or udev
        if not spec.is_true("enabled"):
            values.fail("udev.configuration.enabled is not true: the chart makes no Configuration", _HINT)
        yield spec.text("name") or "akri-udev", spec, spec.at("discoveryDetails")
        spec.omit("discoveryDetails")
    for one in source.of_kinds("Configuration"):
        handler, former = one.at("spec", "discoveryHandler"), one.at("spec", "protocol", "udev")
        if (name := text_at(handler.node, "name")) != "udev" and not former:
            source.note(f"{one.name}: the handler {name} does not find devices of a node: omitted.")
            one.take()
        else:
            handler.omit("name")
            yield one.name, one.at("spec") or one, handler.at("discoveryDetails") if handler else former


def _read(name: str, spec: Value, holder: Value) -> _Found:
    full = f"{DOMAIN}/{name}"
    if problem := naming.problem(full):
        spec.refuse(f"{shown(full)} {problem}", "change the name of the Configuration")
    found, remarks, blocks = holder.document(), list[str](), list[Block]()
    details = found.as_dataclass(_Details, remarks.append)
    number = spec.at("capacity")
    capacity = number.read_as(Annotated[int, Bounds(1, MAX_REPLICAS)]) if number else 1
    for one_rule, rule in zip(found.each("udevRules"), details.udev_rules, strict=True):
        try:
            blocks += _rule(rule, remarks)
        except Inexpressible as error:
            remarks.append(f"Rule {rule} is omitted: {error}.")
        except Invalid as error:
            one_rule.refuse(f"{shown(rule)}: {error}", "Akri refuses it as well")
    env = {"UDEV_DEVNODE": "{devNode}"}
    for key in spec.at("brokerProperties").keys:
        value = spec.text("brokerProperties", key)
        if "{" in value or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key):
            remarks.append(f"brokerProperties {key} is not a valid variable name: omitted.")
        else:
            env[key] = value
    known = ("capacity", "brokerProperties", "discoveryHandler", "protocol")
    if left := spec.others(*known, "discoveryDetails", "enabled", "name"):
        what = "write a Deployment or DaemonSet that requests the resource"
        spec.source.note(f"{name}: {', '.join(left)} are not converted: {what}.")
    if details.group_recursive:
        alone = "Akri gives the nodes below one device together, devhost each on its own."
        joined = "A group with a member for each kind of node joins them by their hardware."
        remarks.append(f"groupRecursive: {alone} {joined}")
    member: dict[str, Written] = {"where": several(blocks), "permissions": details.permissions}
    if not blocks:
        remarks.append(f"{full} has no rule that can be converted: omitted.")
        return Entry(remarks=remarks), blocks, member
    group: Group = {"name": name, "members": [member], "env": env}
    return Entry(full, "udev", [{"group": name}], replicas(capacity), remarks, [group]), blocks, member


def _rule(rule: str, remarks: list[str]) -> list[Block]:
    """The blocks of one rule, unless Akri refuses it or devhost has no equivalent."""
    choices, never, mine, at, properties = dict[str, list[Block]](), list[Block](), list[str](), 0, 0
    while at < len(rule.rstrip()):
        if (term := _TERM.match(rule, at)) is None:
            raise Invalid(f"{shown(rule[at:].strip())} is not a term")
        name, key, operator, value, _ = term.groups()
        if operator not in ("==", "!="):
            raise Invalid(f"{operator} assigns a value; only == and != select devices")
        if (name in _WITH_KEY) != (key is not None):
            raise Invalid(f"{name} {'needs' if name in _WITH_KEY else 'has no'} key in braces")
        at, holds = term.end(), operator == "=="
        properties += name == "ENV" and holds
        attribute, found = _condition(name, key or "", value, holds, mine)
        if any(one.is_bounded for one in found):
            if not holds:
                raise Inexpressible("!= cannot be expressed for it")
            mine.append(f"{name} {value}: {globs.BOUNDED}")
        blocks = [one.block(attribute, "/sys" if attribute == "sysPath" else "") for one in found]
        if not holds:
            never += blocks
        elif attribute in choices:
            raise Inexpressible(f"two terms are about {attribute}")
        elif blocks:
            choices[attribute] = blocks
        else:
            raise Inexpressible("it never matches")
    if not choices and not never:
        raise Invalid("it selects nothing") if not rule.strip() else Inexpressible("it selects every device")
    if properties > 1:
        remarks.append(f"Rule {rule}: for libudev one matching ENV term is enough; devhost requires all.")
    chosen = globs.few(product(*choices.values()))
    remarks += mine
    refused = [[*never, *(block["not"] for block in each if "not" in block)] for each in chosen]
    made = [{key: value for block in each for key, value in block.items()} for each in chosen]
    return [one | given(**{"not": several(no)}) for one, no in zip(made, refused, strict=True)]


def _condition(name: str, key: str, value: str, holds: bool, remarks: list[str]) -> tuple[str, list[Glob]]:
    """The attribute of a term, and its globs; none if every device meets it. ``holds``: for ``==``."""
    attribute = _ATTRIBUTES.get(f"{name}{{{key}}}" if key else name, "")
    is_glob = name in ("ATTR", "KERNELS", "SUBSYSTEM", "SUBSYSTEMS")
    is_glob |= holds and name in ("DEVPATH", "ENV", "KERNEL")  # for != these are expressions
    match name:
        case "KERNEL" if holds and "|" in value:
            remarks.append(f"KERNEL {value}: libudev takes | literally, and so does this entry.")
        case "DEVPATH" if holds:
            value = escape(value)
        case "KERNELS" if not _PCI_ADDRESS.fullmatch(value):
            raise Inexpressible("of KERNELS only a PCI address can be expressed")
        case "SUBSYSTEMS" if value not in _BUSES:
            raise Inexpressible(f"of SUBSYSTEMS only {' and '.join(_BUSES)} can be expressed")
        case "SUBSYSTEMS":
            attribute, value = _BUSES[value], "*"
        case "ATTR":
            attribute = f"sysattr.{key}"
        case "ATTRS" if key in ("vendor", "device") and PCI_ID.fullmatch(value) and value[:2] in ("0x", "0X"):
            attribute, value = f"pci{key.title()}", pci_id(value)
        case "ATTRS" if not attribute:
            attribute = f"sysattr.{key}"
            remarks.append(f"ATTRS{{{key}}}: devhost compares it only for the device itself.")
        case "ENV" if not holds and not value and attribute in ("major", "minor"):
            return attribute, []  # every device with a node has a number
        case "ENV" if attribute in ("major", "minor") and not value.isdecimal():
            raise Inexpressible(f"{key} is a number in devhost")
        case "ENV" if attribute == "devNode" and value[:1].isalnum():
            raise Inexpressible(f"no device has the DEVNAME {value}: all begin with /dev/")
        case "ENV" if key.startswith("ID_"):
            attribute = key
        case "ENV" if not attribute:
            raise Inexpressible(f"the property {key} is not an attribute of devhost")
        case "TAG" | "TAGS":
            raise Inexpressible(f"udev tags, such as {value}, are not attributes of devhost")
        case _ if not attribute:
            raise Invalid(f"{name} does not select devices")
    return attribute, [Glob(value)] if is_glob else globs.of_expression(value, whole=True)


_DIFFERS = [
    "Akri offers a device in two resources, that of the Configuration and one for this device with a hash in "
    "its name; devhost only in the first. For a particular device add an entry with its serial or usbPort",
    "Akri makes brokers and services for each device; with devhost, write a Deployment or DaemonSet that "
    "requests the resource",
    "Akri scans every ten seconds, devhost at each event",
    "Akri offers devices without a node in /dev, devhost does not",
    "for Akri, DRIVERS, ATTRS, KERNELS and SUBSYSTEMS match any parent device; for devhost the USB device, "
    "the PCI function and the nearest driver",
    "for several devices Akri sets UDEV_DEVNODE_<hash> for each; devhost sets UDEV_DEVNODE with all of "
    "them, separated by commas",
]
