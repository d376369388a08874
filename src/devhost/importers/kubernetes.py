"""A device plugin's configuration in the Kubernetes object that carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devhost.config.complaints import Place, shown
from devhost.config.nodes import Fields, Items, Node, Scalar

from .notation import embedded


def unwrapped(
    node: Node,
    place: Place,
    *,
    config_map_key: str,
    fields: Mapping[str, Sequence[str]],
    choose_key: str = "",
) -> tuple[Node, Place]:
    """The plugin's own document, and a place for complaints about it; as it is where nothing is around it.

    Args:
        node: the document, or an object that has it as a string.
        place: where it stands.
        config_map_key: the key under ``data`` of a ConfigMap; another will do where it is the only one.
        fields: by the kind of other objects, the keys that lead to the string.
        choose_key: how a user gives another ``config_map_key``, as a hint; empty if he cannot.

    Raises:
        ConfigError: it is an object that holds no such document.
    """
    kind = _kind(node)
    if kind is None:
        return node, place
    if kind.text == "List":  # what kubectl prints where it is given no name
        items, _ = _at(node, place, ("items",))
        if isinstance(items, Items) and len(items.items) == 1:
            inner = place.key("items").item(0)
            return unwrapped(
                items.items[0],
                inner,
                config_map_key=config_map_key,
                fields=fields,
                choose_key=choose_key,
            )
    if kind.text == "ConfigMap":
        data, _ = _at(node, place, ("data",))
        names = [*data.entries] if isinstance(data, Fields) else []
        if choose_key and len(names) > 1 and config_map_key not in names:
            few = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            path = place.key("data").key(config_map_key).path
            place.complaints.fail(data.mark, f"it has no {path}", f"{choose_key}, which may be {few}")
        text, here = _at(node, place, ("data", names[0] if len(names) == 1 else config_map_key))
    elif kind.text in fields:
        text, here = _at(node, place, fields[kind.text])
    else:
        hint = f"give it one {', one '.join(['ConfigMap', *fields])}, or the configuration itself"
        place.complaints.fail(kind.mark, f"a {shown(kind.text)} holds no configuration", hint)
    if not isinstance(text, Scalar) or text.kind != "str":
        place.complaints.fail(text.mark, f"{here.path} must be text, not {text}")
    return embedded(text, here)


def _kind(node: Node) -> Scalar | None:
    entry = node.entries.get("kind") if isinstance(node, Fields) else None
    return entry.value if entry is not None and isinstance(entry.value, Scalar) else None


def _at(node: Node, place: Place, path: Sequence[str]) -> tuple[Node, Place]:
    for key in path:
        if not isinstance(node, Fields) or key not in node.entries:
            place.complaints.fail(node.mark, f"it has no {place.key(key).path}", "is it the right object?")
        node, place = node.entries[key].value, place.key(key)
    return node, place
