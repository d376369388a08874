"""A Kubernetes object where a configuration belongs: one complaint that says what of it to keep."""

from __future__ import annotations

from .diagnostics import Diagnostics, shown
from .nodes import Fields, Node, Scalar

_KEYS = ("kind", "apiVersion", "data")
"""Keys of Kubernetes objects, none of which a configuration has."""


def refuse_manifest(root: Node, complaints: Diagnostics) -> None:
    """Refuses a file that is a Kubernetes object, such as the ConfigMap that carries a configuration.

    Raises:
        ConfigError: it is one.
    """
    entries = root.entries if isinstance(root, Fields) else {}
    found = [key for key in _KEYS if key in entries]
    if not found or "resources" in entries:
        return
    kind = entries["kind"].value if "kind" in entries else None
    name = kind.text if isinstance(kind, Scalar) else "ConfigMap" if "data" in found else "object"
    data = entries["data"].value if "data" in entries else None
    keys = [*data.entries] if isinstance(data, Fields) else []
    if len(keys) == 1:
        hint = f"keep only the text of its key {shown(keys[0])}, without the indentation"
    elif keys:
        hint = f"keep only the text of one of its keys, without the indentation: {', '.join(keys[:8])}"
    else:
        hint = "a configuration begins with `version: 1`"
    mark = entries[found[0]].mark
    complaints.fail(mark, f"this is a Kubernetes {name}, not a configuration of devhost", hint)
