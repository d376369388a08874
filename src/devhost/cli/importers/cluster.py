"""Reads a plugin's objects from a cluster with the user's own ``kubectl``; devhost needs no rights for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from devhost.backend import process
from devhost.backend.errors import UsageError

PATIENCE = 60.0
"""Seconds that one call of kubectl may take."""

LIMIT = 1 << 26
"""Bytes that it may print."""


def objects(kinds: Sequence[str], words: Sequence[str]) -> bytes:
    """The plugin's objects and workloads and the ConfigMaps that they name, as a List.

    Args:
        kinds: custom resources of the plugin and its operator, as kubectl names them.
        words: one of them is in the image of each container that runs the plugin. Its parts between slashes
            may also be in names, for the image of a mirror.

    Raises:
        UsageError: kubectl fails, or the cluster has no such object.
    """
    found = [one for kind in kinds for one in _get(kind)]
    for one in _get("daemonsets.apps"):
        name = one.get("metadata", {}).get("name")
        texts = [
            f"{name} {each.get('name')} {each.get('image')}"
            for each in _below(one, "spec", "template", "spec", "containers")
        ]
        found += [one] if any(_is_of(word, text) for word in words for text in texts) else []
    if not found:
        what = ", ".join((*kinds, *(f"DaemonSets with the image {word}" for word in words)))
        raise UsageError(f"the cluster has none of: {what}", "give a file, or check kubectl's context")
    for name, namespace in dict.fromkeys(pair for one in found for pair in _config_maps(one)):
        where = ("-n", namespace) if namespace else ("-A",)
        found += _get("configmaps", "--field-selector", f"metadata.name={name}", where=where)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": found}).encode()


def _is_of(word: str, text: str) -> bool:
    return all(part in text for part in word.split("/"))


def _config_maps(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The names and namespaces of the ConfigMaps that an object names."""
    namespace = one.get("metadata", {}).get("namespace", "")
    for volume in _below(one, "spec", "template", "spec", "volumes"):
        if name := volume.get("configMap", {}).get("name"):
            yield name, namespace
    for path in (("devicePlugin", "config"), ()):
        spec = one.get("spec", {})
        for key in path:
            spec = spec.get(key) or {}
        if name := spec.get("name" if path else "provisioningConfig"):
            yield name, namespace


def _below(one: dict[str, Any], *path: str) -> list[dict[str, Any]]:
    found: Any = one
    for key in path:
        found = found.get(key) or {}
    return found or []


def _get(kind: str, *more: str, where: Sequence[str] = ("-A",)) -> list[dict[str, Any]]:
    """The objects of a kind; none if the cluster does not know the kind."""
    command = ["kubectl", "get", kind, *where, *more, "-o", "json"]
    if shutil.which("kubectl") is None:
        raise UsageError("kubectl is not installed", "install it, or give a file")
    here = ["env", "-C", str(Path.cwd())]  # KUBECONFIG may be a relative path
    try:
        done = process.run([*here, *command], deadline=PATIENCE, name="kubectl", limit=LIMIT)
    except process.OutputTooLarge:
        raise UsageError(f"{' '.join(command)} printed more than {LIMIT >> 20} MiB", "give a file") from None
    except process.ProcessError:
        raise UsageError(f"kubectl did not answer within {PATIENCE:g} s", "check its context") from None
    if done.status:
        reason = done.errors.decode(errors="replace").strip().rpartition("\n")[2]  # after its log
        if "the server doesn't have a resource type" in reason:
            return []
        raise UsageError(f"{' '.join(command)} failed: {reason}", "check kubectl's context and your rights")
    try:
        items = json.loads(done.output)["items"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{' '.join(command)} printed no list", "check kubectl") from None
    return [one for one in items if isinstance(one, dict)]
