"""A device plugin's configuration in the Kubernetes objects that carry it."""

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
"""Which import reads a kind that others do not."""

GUIDE = "docs/migration.md"
"""Where users find what to write for a plugin or an object that cannot be imported."""


@dataclass(frozen=True, slots=True)
class Object:
    """A Kubernetes object, or a document that is none; ``kind`` and ``name`` are then empty."""

    node: Node
    place: Place
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip() or "a document without kind"

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


def objects(data: bytes, diagnostics: Diagnostics) -> list[Object]:
    """The documents of a file, with a List replaced by its items; at least one.

    Raises:
        ConfigError: the file is not YAML, or has nothing in it.
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
    if isinstance(node, Scalar) and node.kind == "null":  # what follows a last "---"
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
        diagnostics.fail(mark, what, hint)
    return wanted


def configuration(one: Object, key: str) -> tuple[Node, Place]:
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
    """The plugin's own document, and a place for diagnostics about it; as it is where nothing is around it.

    Args:
        found: the objects of the file. Those that cannot hold a configuration are passed over.
        config_map_key: the key under ``data`` of a ConfigMap; another will do where it is the only one.
        fields: by the kind of other objects, the keys that lead to the string or mapping.
        choose_key: how a user gives another ``config_map_key``, as a hint; empty if he cannot.
        belongs: by kind, keys that lead to the configuration of another plugin, and its importer.

    Raises:
        ConfigError: no object holds such a document, or several do.
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
            message = f"this {holder} has {'.'.join(elsewhere)}, and no {'.'.join(path)}"
            hint = f"devhost import {importer}"
            holder.place.diagnostics.fail(holder.node.mark, message, hint)
        node, place = held(holder, *path)
    return opened(node, place)


def the_holder(
    found: Sequence[Object], *, config_map_key: str, fields: Mapping[str, Sequence[str]]
) -> Object:
    """The one object that may hold a configuration; the arguments are those of :func:`unwrapped`.

    Raises:
        ConfigError: no object does, or several do.
    """
    holders = [one for one in found if not one.kind or one.kind == "ConfigMap" or one.kind in fields]
    if not holders:
        _refuse(found[0], fields)
    if len(holders) > 1:
        # a namespace has ConfigMaps of others too, and not every object of an operator has this plugin
        ways = {**fields, "ConfigMap": ("data", config_map_key)}
        holders = [one for one in holders if at(one.node, *ways.get(one.kind, ()))] or holders
    if len(holders) > 1:
        names = " and ".join(map(str, holders[:3])) + (" and others" if len(holders) > 3 else "")
        message = f"several objects hold a configuration: {names}"
        holders[1].place.diagnostics.fail(holders[1].node.mark, message, "give it one of them")
    return holders[0]


def opened(node: Node, place: Place) -> tuple[Node, Place]:
    """The document in a value that is a string, or is the document itself.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(node, Fields):
        return node, place
    if not isinstance(node, Scalar) or node.kind != "str":
        place.diagnostics.fail(node.mark, f"{place.path} must be text, not {node}")
    return embedded(node, place)


def config_map_entry(found: Object, wanted: str, choose_key: str = "", *, strict: bool = False) -> str:
    """Which key of a ConfigMap to read: the one wanted, or the only one unless that is ``strict``.

    Raises:
        ConfigError: it has others.
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
    """Names for a message: a few of them, and how many more there are."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def at(node: Node, *path: str) -> Node | None:
    """What stands under these keys, if anything does."""
    for key in path:
        if not isinstance(node, Fields) or key not in node.entries:
            return None
        node = node.entries[key].value
    return node


def text_at(node: Node, *path: str) -> str:
    """The text under these keys; empty where there is none."""
    found = at(node, *path)
    return found.text if isinstance(found, Scalar) and found.kind != "null" else ""


def held(found: Object, *path: str) -> tuple[Node, Place]:
    """What stands under these keys of an object, and its place.

    Raises:
        ConfigError: nothing does.
    """
    node, place = found.node, found.place
    for key in path:
        if not isinstance(node, Fields) or key not in node.entries:
            place.diagnostics.fail(node.mark, f"it has no {place.key(key).path}", "is it the right object?")
        node, place = node.entries[key].value, place.key(key)
    return node, place


def _refuse(first: Object, fields: Mapping[str, Sequence[str]]) -> NoReturn:
    kind = at(first.node, "kind")
    message = f"a {shown(first.kind)} holds no configuration"
    wanted = f"give it one {', one '.join(['ConfigMap', *fields])}, or the configuration itself"
    hint = f"{wanted}; for what else there is see {GUIDE}"
    first.place.diagnostics.fail((kind or first.node).mark, message, hint)
