"""What the metadata files of a claim contain (KEP-5304). Pure.

A file is a stream of JSON objects with the same content, one for each version of the API, the newest first.
Source: ``api/metadata`` and ``kubeletplugin/metadata.go`` in ``k8s.io/dynamic-resource-allocation`` 0.37.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .claim_files import ClaimRecord
from .claim_metadata import TEMPLATES

VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
"""Version v1alpha1 is what Kubernetes 1.36 and KubeVirt 1.9 read."""


def contents(
    record: ClaimRecord, attributes: Sequence[Mapping[str, Any] | None], before: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The content of the file of each request.

    ``attributes`` are those of each device in the terms of a ResourceSlice, ``None`` for one that is not
    known: the content of a request with such a device stays as ``before``.
    """
    found: dict[str, bytes] = {}
    for request in record.requests:
        members = [
            (one, has) for one, has in zip(record.devices, attributes, strict=True) if one.base == request
        ]
        old = before.get(request, b"")
        if old and any(has is None for _, has in members):
            found[request] = old
            continue
        described: dict[str, list[dict[str, Any]]] = {}
        for one, has in members:
            device: dict[str, Any] = {"driver": record.driver, "pool": one.pool, "name": one.device}
            described.setdefault(one.request, []).append(
                device if has is None else {**device, "attributes": has}
            )
        found[request] = _renewed(record, described, old)
    return found


def _renewed(record: ClaimRecord, requests: Mapping[str, Sequence[Any]], old: bytes) -> bytes:
    """The new content: the old one if nothing else has changed, else of the next generation."""
    generation = _generation(old)
    same = _stream(record, requests, generation)
    return same if same == old else _stream(record, requests, generation + 1)


def _generation(content: bytes) -> int:
    """The generation of a content; 0 if it has none."""
    try:
        first, _ = json.JSONDecoder().raw_decode(content.decode())
        return int(first["metadata"]["generation"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0


def _stream(record: ClaimRecord, requests: Mapping[str, Sequence[Any]], generation: int) -> bytes:
    claim = record.claim
    content: dict[str, Any] = {
        "metadata": {
            "name": claim.name,
            "namespace": claim.namespace,
            "uid": claim.uid,
            "generation": generation,
        }
    }
    kind, _, name = record.metadata.partition("/")
    if kind == TEMPLATES:
        content["podClaimName"] = name
    content["requests"] = [{"name": name, "devices": devices} for name, devices in requests.items()]
    objects = ({"kind": "DeviceMetadata", "apiVersion": version, **content} for version in VERSIONS)
    return "".join(f"{json.dumps(one)}\n" for one in objects).encode()
