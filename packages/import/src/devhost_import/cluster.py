"""Reads a plugin's objects from a cluster with the user's own ``kubectl``; devhost needs no rights for it."""

from __future__ import annotations

import json
import re
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

_NAME = re.compile(r"\.(configMap(Key)?(Ref)?|devicePlugin\.config)\.name$|\.provisioningConfig$")


def objects(kinds: Sequence[str], words: Sequence[str]) -> bytes:
    """The plugin's objects and workloads and the ConfigMaps that they name, as a List.

    ``kinds`` are custom resources of the plugin and its operator. One of ``words`` is in the image of each
    container that runs the plugin; its parts between slashes may also be in names, for the image of a mirror.
    """
    found = [one for kind in kinds for one in _get(kind)]
    for one in _get("daemonsets.apps"):
        pods, name = one["spec"]["template"]["spec"]["containers"], one["metadata"]["name"]
        texts = [f"{name} {each.get('name')} {each.get('image')}" for each in pods]
        if any(all(part in text for part in word.split("/")) for word in words for text in texts):
            found.append(one)
    if not found:
        what = ", ".join((*kinds, *(f"DaemonSets with the image {word}" for word in words)))
        raise UsageError(f"the cluster has none of: {what}", "give a file, or check kubectl's context")
    pairs = [(name, one["metadata"].get("namespace")) for one in found for name in _config_maps(one)]
    for name, namespace in dict.fromkeys(pairs):
        where = ("-n", namespace) if namespace else ("-A",)
        found += _get("configmaps", "--field-selector", f"metadata.name={name}", where=where)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": found}).encode()


def _config_maps(node: Any, path: str = "") -> Iterator[str]:
    """The names of ConfigMaps that an object mentions."""
    if isinstance(node, dict):
        for key, one in node.items():
            yield from _config_maps(one, f"{path}.{key}")
    elif isinstance(node, list):
        for one in node:
            yield from _config_maps(one, path)
    elif _NAME.search(path):
        yield str(node)


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
