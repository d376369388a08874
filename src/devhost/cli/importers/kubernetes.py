"""Finds a device plugin's configuration in Kubernetes objects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from devhost.config.diagnostics import WHOLE_FILE, Diagnostics, Place, shown
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
"""The importer for each kind of object that only one importer reads."""

GUIDE = "docs/migration.md"
"""The page for plugins and objects that cannot be imported."""


@dataclass(frozen=True, slots=True)
class Object:
    """A Kubernetes object, or another document; ``kind`` and ``name`` are then empty."""

    node: Node
    place: Place
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip() or "a document without kind"

    def at(self, *path: str) -> tuple[Node, Place] | None:
        """The node below these keys and its place; ``None`` if one of them is missing or null."""
        node, place = self.node, self.place
        for key in path:
            if not isinstance(node, Fields) or key not in node.entries:
                return None
            node, place = node.entries[key].value, place.key(key)
        return None if isinstance(node, Scalar) and node.kind == "null" else (node, place)

    def text(self, *path: str) -> str:
        """The text below these keys; empty if there is none."""
        found = self.at(*path)
        return found[0].text if found and isinstance(found[0], Scalar) else ""


def objects(data: bytes, diagnostics: Diagnostics) -> list[Object]:
    """The documents of a file, with a List replaced by its items; at least one.

    Raises:
        ConfigError: the file is not YAML, or is empty.
    """
    documents = parse_all(untabbed(data), diagnostics, if_empty=IF_EMPTY)
    found = [one for node in documents for one in _flat(node, Place(diagnostics))]
    if not found:
        listed = next((node for node in documents if isinstance(node, Fields)), None)
        if listed is None:
            diagnostics.fail(WHOLE_FILE, "it is empty", IF_EMPTY)
        diagnostics.fail(listed.mark, "the list has no objects", IF_EMPTY)
    return found


def _flat(node: Node, place: Place) -> Iterator[Object]:
    if isinstance(node, Scalar) and node.kind == "null":  # after a final "---"
        return
    this = Object(node, place, text_at(node, "kind"), text_at(node, "metadata", "name"))
    items = held(this, "items")[0] if this.kind == "List" else at(node, "items")
    if this.kind.endswith("List") and isinstance(items, Items):
        inside = [
            one for n, item in enumerate(items.items) for one in _flat(item, place.key("items").item(n))
        ]
        yield from [one for one in inside if one.kind] or ([this] if inside else [])
    else:
        yield this


def of_kinds(
    found: Sequence[Object], kinds: Collection[str], diagnostics: Diagnostics, *, hint: str
) -> list[Object]:
    """The objects of these kinds; an empty kind means a document that is not a Kubernetes object.

    Raises:
        ConfigError: there is none.
    """
    wanted = [one for one in found if one.kind in kinds]
    if not wanted:
        first = next((one for one in found if one.kind), found[0])
        entry = first.at("kind")
        mark = entry[0].mark if entry else first.node.mark
        what = (
            f"a {shown(first.kind)} contains no configuration"
            if first.kind
            else "it is not a Kubernetes object"
        )
        if first.kind in _IMPORTERS:
            hint = f"`devhost import {_IMPORTERS[first.kind]}` reads it"
        diagnostics.fail(mark, what, hint)
    return wanted


def configuration(one: Object, key: str) -> tuple[Node, Place]:
    """The plugin's document: the value of a key of a ConfigMap, else the document itself.

    Args:
        one: a ConfigMap, or a document that is not a Kubernetes object.
        key: the key under ``data``; if the ConfigMap has only one key, that one is read.

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
        one.place.diagnostics.fail(one.node.mark, f"it has no {one.place.key('data').key(key).path}", hint)
    key = key if key in names else names[0]
    node, place = one.at("data", key) or (one.node, one.place.key("data").key(key))
    if not isinstance(node, Scalar) or node.kind != "str":
        place.diagnostics.fail(node.mark, f"{place.path} must be text, not {node}")
    return embedded(node, place)


def unwrapped(
    found: Sequence[Object],
    *,
    config_map_key: str,
    fields: Mapping[str, Sequence[str]],
    choose_key: str = "",
    belongs: Mapping[str, tuple[Sequence[str], str]] | None = None,
) -> tuple[Node, Place]:
    """The plugin's document, taken out of the object that contains it, and a place for diagnostics about it.

    Args:
        found: the objects of the file. Those that cannot contain a configuration are ignored.
        config_map_key: the key under ``data`` of a ConfigMap; if it has only one key, that one is read.
        fields: by the kind of other objects, the keys that lead to the string or mapping.
        choose_key: a hint how to give another ``config_map_key``; empty if that is not possible.
        belongs: by kind, keys that lead to the configuration of another plugin, and its importer.

    Raises:
        ConfigError: no object contains such a document, or several do.
    """
    holder = the_holder(found, config_map_key=config_map_key, fields=fields)
    if not holder.kind:
        return holder.node, holder.place
    if holder.kind == "ConfigMap":
        key = config_map_entry(holder, config_map_key, choose_key)
        node, place = held(holder, "data", key)
    else:
        path = fields[holder.kind]
        elsewhere, importer = (belongs or {}).get(holder.kind, ((), ""))
        if elsewhere and not at(holder.node, *path) and at(holder.node, *elsewhere):
            message = f"this {holder} has {'.'.join(elsewhere)}, but no {'.'.join(path)}"
            hint = f"devhost import {importer}"
            holder.place.diagnostics.fail(holder.node.mark, message, hint)
        node, place = held(holder, *path)
    return opened(node, place)


def the_holder(
    found: Sequence[Object], *, config_map_key: str, fields: Mapping[str, Sequence[str]]
) -> Object:
    """The only object that may contain a configuration; the arguments are those of :func:`unwrapped`.

    Raises:
        ConfigError: no object does, or several do.
    """
    holders = [one for one in found if not one.kind or one.kind == "ConfigMap" or one.kind in fields]
    if not holders:
        _refuse(found[0], fields)
    if len(holders) > 1:
        # a namespace has unrelated ConfigMaps, and not every object of an operator configures this plugin
        ways = {**fields, "ConfigMap": ("data", config_map_key)}
        holders = [one for one in holders if at(one.node, *ways.get(one.kind, ()))] or holders
    if len(holders) > 1:
        names = " and ".join(map(str, holders[:3])) + (" and others" if len(holders) > 3 else "")
        message = f"several objects contain a configuration: {names}"
        holders[1].place.diagnostics.fail(holders[1].node.mark, message, "give only one of them")
    return holders[0]


def opened(node: Node, place: Place) -> tuple[Node, Place]:
    """The document in a value, which is a string with the document or the document itself.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(node, Fields):
        return node, place
    if not isinstance(node, Scalar) or node.kind != "str":
        place.diagnostics.fail(node.mark, f"{place.path} must be text, not {node}")
    return embedded(node, place)


def config_map_entry(found: Object, wanted: str, choose_key: str = "", *, strict: bool = False) -> str:
    """The key of a ConfigMap to read: the requested one, or the only one unless ``strict``.

    Raises:
        ConfigError: it has only other keys.
    """
    data, place = held(found, "data")
    names = [*data.entries] if isinstance(data, Fields) else []
    if strict and wanted in names:
        return wanted
    if choose_key and names and wanted not in names and (strict or len(names) > 1):
        message = f"it has no {place.key(wanted).path}"
        place.diagnostics.fail(data.mark, message, f"{choose_key}, which may be {some(names)}")
    return names[0] if len(names) == 1 else wanted


def some(names: Sequence[str]) -> str:
    """Names for a message: the first few, and the number of others."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def at(node: Node, *path: str) -> Node | None:
    """The node below these keys, if there is one."""
    for key in path:
        if not isinstance(node, Fields) or key not in node.entries:
            return None
        node = node.entries[key].value
    return node


def text_at(node: Node, *path: str) -> str:
    """The text below these keys; empty if there is none."""
    found = at(node, *path)
    return found.text if isinstance(found, Scalar) and found.kind != "null" else ""


def held(found: Object, *path: str) -> tuple[Node, Place]:
    """The node below these keys of an object, and its place.

    Raises:
        ConfigError: there is none.
    """
    node, place = found.node, found.place
    for key in path:
        if not isinstance(node, Fields) or key not in node.entries:
            place.diagnostics.fail(node.mark, f"it has no {place.key(key).path}", "is it the right object?")
        node, place = node.entries[key].value, place.key(key)
    return node, place


def _refuse(first: Object, fields: Mapping[str, Sequence[str]]) -> NoReturn:
    kind = at(first.node, "kind")
    message = f"a {shown(first.kind)} contains no configuration"
    wanted = f"give one {', one '.join(['ConfigMap', *fields])}, or the configuration itself"
    hint = f"{wanted}; for other plugins see {GUIDE}"
    first.place.diagnostics.fail((kind or first.node).mark, message, hint)
