"""Kubernetes objects in a file: several documents, a List, and the flags that start a plugin."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from devhost.config.diagnostics import WHOLE_FILE, Diagnostics, Mark, Place, shown
from devhost.config.document import Fields, Items, Node, Scalar, parse_all

from .notation import IF_EMPTY, embedded, untabbed

_IMPORTERS = {
    **{f"{name}DevicePlugin": "intel-device-plugins" for name in ("Dlb", "Dsa", "Fpga", "Gpu", "Iaa", "Npu")},
    **{f"{name}DevicePlugin": "intel-device-plugins" for name in ("Qat", "Sgx")},
    "Configuration": "akri",
    "DeviceConfig": "amd-device-plugin",
    "HyperConverged": "kubevirt",
    "KubeVirt": "kubevirt",
    "NicClusterPolicy": "sriov-network-device-plugin",
}
"""Which import reads a kind that others do not."""

WORKLOADS = ("DaemonSet", "Deployment", "Pod")
"""Kinds that start a plugin."""


@dataclass(frozen=True, slots=True)
class Found:
    """A document, and where it stands. ``kind`` is empty where it is no Kubernetes object."""

    kind: str
    node: Node
    place: Place

    def at(self, *path: str) -> tuple[Node, Place] | None:
        """The node below these keys and its place; ``None`` where one of them is missing or null."""
        node, place = self.node, self.place
        for key in path:
            if not isinstance(node, Fields) or key not in node.entries:
                return None
            node, place = node.entries[key].value, place.key(key)
        return None if isinstance(node, Scalar) and node.kind == "null" else (node, place)

    def text(self, *path: str) -> str:
        """The text below these keys; empty where there is none."""
        found = self.at(*path)
        return found[0].text if found and isinstance(found[0], Scalar) else ""


def documents(data: bytes, complaints: Diagnostics) -> list[Found]:
    """Every document of a file, and every object of a List.

    Raises:
        ConfigError: one of them is not YAML, or there is none.
    """
    parsed = parse_all(untabbed(data), complaints, if_empty=IF_EMPTY)
    nodes = [node for node in parsed if not (isinstance(node, Scalar) and node.kind == "null")]
    if not nodes:
        complaints.fail(WHOLE_FILE, "it is empty", IF_EMPTY)
    found = [one for node in nodes for one in _unlisted(node, Place(complaints))]
    if not found:
        complaints.fail(nodes[0].mark, "the list has no objects", IF_EMPTY)
    return found


def of_kinds(
    found: Sequence[Found], kinds: Collection[str], complaints: Diagnostics, *, hint: str
) -> list[Found]:
    """Those of these kinds; an empty kind stands for a document that is no Kubernetes object.

    Raises:
        ConfigError: there is none.
    """
    wanted = [one for one in found if one.kind in kinds]
    if not wanted:
        first = next((one for one in found if one.kind), found[0])
        entry = first.at("kind")
        mark = entry[0].mark if entry else first.node.mark
        what = f"a {shown(first.kind)} holds no configuration" if first.kind else "it is no Kubernetes object"
        if first.kind in _IMPORTERS:
            hint = f"`devhost import {_IMPORTERS[first.kind]}` reads it"
        complaints.fail(mark, what, hint)
    return wanted


def configuration(one: Found, key: str) -> tuple[Node, Place]:
    """The plugin's own document: what a ConfigMap has under a key, else the document itself.

    Args:
        one: a ConfigMap, or a document that is no Kubernetes object.
        key: under ``data``; another one is taken where it is the only one.

    Raises:
        ConfigError: the ConfigMap has several keys and not this one, or no text there.
    """
    if one.kind != "ConfigMap":
        return one.node, one.place
    data = one.at("data")
    names = [*data[0].entries] if data and isinstance(data[0], Fields) else []
    if key not in names and len(names) != 1:
        few = ", ".join(names[:8])
        hint = f"choose one with --key, which may be {few}" if names else "is it the right object?"
        one.place.complaints.fail(one.node.mark, f"it has no {one.place.key('data').key(key).path}", hint)
    key = key if key in names else names[0]
    node, place = one.at("data", key) or (one.node, one.place.key("data").key(key))
    if not isinstance(node, Scalar) or node.kind != "str":
        place.complaints.fail(node.mark, f"{place.path} must be text, not {node}")
    return embedded(node, place)


def _unlisted(node: Node, place: Place) -> Iterator[Found]:
    one = Found("", node, place)
    kind = one.text("kind")
    items = one.at("items") if kind.endswith("List") else None
    if items is None or not isinstance(items[0], Items):
        yield Found(kind, node, place)
        return
    for n, item in enumerate(items[0].items):
        yield from _unlisted(item, items[1].item(n))


@dataclass(frozen=True, slots=True)
class Argument:
    """The value that a flag was given, and where."""

    value: str
    mark: Mark
    path: str


@dataclass(frozen=True, slots=True)
class Program:
    """A container of a workload: the flags and variables that its program starts with."""

    mark: Mark
    flags: Mapping[str, Argument] = field(default_factory=dict)
    env: Mapping[str, Argument] = field(default_factory=dict)


def program(workload: Found, word: str, switches: Collection[str] = ()) -> Program | None:
    """The first container that has a word in its image, command or arguments; ``None`` without one.

    Args:
        workload: of one of the :data:`WORKLOADS`.
        word: names the program.
        switches: flags that have no value; all others may have theirs as an argument of its own.
    """
    template = ("spec",) if workload.kind == "Pod" else ("spec", "template", "spec")
    found = workload.at(*template, "containers")
    for n, node in enumerate(found[0].items if found and isinstance(found[0], Items) else ()):
        container = Found("", node, found[1].item(n) if found else workload.place)
        words = [*_words(container, "command"), *_words(container, "args")]
        if word in container.text("image") or any(word in one.value for one in words):
            return Program(node.mark, _flags(words, switches), _variables(container))
    return None


def _words(container: Found, key: str) -> Iterator[Argument]:
    found = container.at(key)
    for n, node in enumerate(found[0].items if found and isinstance(found[0], Items) else ()):
        if found and isinstance(node, Scalar):
            path = found[1].item(n).path
            if " -" in node.text:  # a line for a shell
                yield from (Argument(one, node.mark, path) for one in shlex.split(node.text))
            else:
                yield Argument(node.text, node.mark, path)


def _flags(words: Sequence[Argument], switches: Collection[str]) -> dict[str, Argument]:
    """Flags as Go's package ``flag`` reads them: one hyphen or two, ``=`` or the next word."""
    flags: dict[str, Argument] = {}
    for word, following in itertools.zip_longest(words, words[1:]):
        name, equals, value = word.value.partition("=")
        if not name.startswith("-"):
            continue
        name = name.lstrip("-")
        if not equals:
            separate = following is not None and name not in switches and not following.value.startswith("-")
            value = following.value if following and separate else "true"
        flags[name] = Argument(value, word.mark, word.path)
    return flags


def _variables(container: Found) -> dict[str, Argument]:
    found = container.at("env")
    variables: dict[str, Argument] = {}
    for n, node in enumerate(found[0].items if found and isinstance(found[0], Items) else ()):
        one = Found("", node, found[1].item(n) if found else container.place)
        variables[one.text("name")] = Argument(one.text("value"), node.mark, one.place.path)
    return variables
