"""What KubeVirt reads of the metadata files of a claim, by the rules of its reader.

Source: kubevirt/kubevirt, ``pkg/dra/utils.go`` and ``pkg/dra/metadata/types.go``, commit
d923fdb815cd2016ddaebdaaa51db04133576d72.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BASE = "/var/run/kubernetes.io/dra-device-attributes"
SUPPORTED = {"metadata.resource.k8s.io/v1alpha1"}
PCI = "resource.kubernetes.io/pciBusID"
MDEV = "mdevUUID"


class Unreadable(ValueError):
    """KubeVirt would not start the virtual machine; the text is the reason."""


def address(mounts: Mapping[str, Path], kind: str, claim: str, request: str, attribute: str = PCI) -> str:
    """The value of an attribute of the one device of a request.

    Args:
        mounts: the files of the container by their paths in it.
        kind: ``resourceclaims`` or ``resourceclaimtemplates``.
        claim: the name of the claim, or that of the pod for it.

    Raises:
        Unreadable: there is no such value.
    """
    there = [
        path
        for path in mounts
        if path.startswith(f"{BASE}/{kind}/{claim}/{request}/") and path.endswith("-metadata.json")
    ]
    if len(there) != 1:
        raise Unreadable(f"{len(there)} files for {claim}/{request}")
    found = decoded(mounts[there[0]].read_text())
    for one in found["requests"]:
        if one["name"] == request:
            if len(one["devices"]) != 1:
                raise Unreadable(f"{len(one['devices'])} devices in request {request}")
            value = one["devices"][0].get("attributes", {}).get(attribute, {}).get("string")
            if not value:
                raise Unreadable(f"no {attribute} in request {request}")
            return str(value)
    raise Unreadable(f"no request {request} in {found['requests']}")


def decoded(text: str) -> dict[str, Any]:
    """The first object of a stream of a version that KubeVirt supports.

    Raises:
        Unreadable: there is none.
    """
    for one in objects(text):
        if not one.get("apiVersion"):
            raise Unreadable("missing apiVersion")
        if one["apiVersion"] in SUPPORTED:
            return one
    raise Unreadable("no compatible version")


def objects(text: str) -> list[dict[str, Any]]:
    """All objects of a stream."""
    decoder, found = json.JSONDecoder(), []
    while text := text.strip():
        one, end = decoder.raw_decode(text)
        found.append(one)
        text = text[end:]
    return found
