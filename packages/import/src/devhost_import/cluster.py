"""Reads a plugin's objects from a cluster with the user's own ``kubectl``; devhost needs no rights for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
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

    ``kinds`` are custom resources of the plugin and its operator. One of ``words`` is in the image of each
    container that runs the plugin; its parts between slashes may also be in names, for the image of a mirror.
    """
    found = [one for kind in kinds for one in _get(kind)]
    for one in _get("daemonsets.apps"):
        name = _below(one, "metadata", "name")
        pods = _below(one, "spec", "template", "spec", "containers") or []
        texts = [f"{name} {each.get('name')} {each.get('image')}" for each in pods]
        if any(all(part in text for part in word.split("/")) for word in words for text in texts):
            found.append(one)
    if not found:
        what = ", ".join((*kinds, *(f"DaemonSets with the image {word}" for word in words)))
        raise UsageError(f"the cluster has none of: {what}", "give a file, or check kubectl's context")
    for name, namespace in dict.fromkeys(pair for one in found for pair in _config_maps(one)):
        where = ("-n", namespace) if namespace else ("-A",)
        found += _get("configmaps", "--field-selector", f"metadata.name={name}", where=where)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": found}).encode()


def _config_maps(one: dict[str, Any]) -> list[tuple[str, str]]:
    pod = _below(one, "spec", "template", "spec") or {}
    names = [_below(volume, "configMap", "name") for volume in pod.get("volumes") or []]
    for each in pod.get("containers") or []:
        names += [_below(part, "configMapRef", "name") for part in each.get("envFrom") or []]
        names += [_below(part, "valueFrom", "configMapKeyRef", "name") for part in each.get("env") or []]
    names += [
        _below(one, "spec", "devicePlugin", "config", "name"),
        _below(one, "spec", "provisioningConfig"),
    ]
    return [(name, _below(one, "metadata", "namespace") or "") for name in names if name]


def _below(one: dict[str, Any], *path: str) -> Any:
    found: Any = one
    for key in path:
        found = (found or {}).get(key)
    return found


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
        return [one for one in json.loads(done.output)["items"] if isinstance(one, dict)]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{' '.join(command)} printed no list", "check kubectl") from None
