"""A status document without the names of pods (``devhost run --hide-pods``)."""

from __future__ import annotations

import re

from devhost.telemetry.document import DeviceStatus, ResourceStatus, StatusDocument

_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_CONTAINER = rf"{_LABEL}/{_LABEL}(?:\.{_LABEL})*/{_LABEL}"
_HOLDER = re.compile(rf"(?<=\bheld by ){_CONTAINER}(?![\w./-])|(?<![\w./-]){_CONTAINER}(?= (?:holds|has) )")
"""The container of a reason such as ``default/train-0/main holds d1 of backend gpu through …`` or ``held by
default/train-0/main, …``: a namespace and a container are labels, a pod is a subdomain (RFC 1123)."""
HIDDEN = "a pod"
"""What stands in a container's place."""


def without_pods(document: StatusDocument) -> StatusDocument:
    """The document with each holder ``None``, and with :data:`HIDDEN` where a reason names one."""
    return {
        **document,
        "problems": [{**problem, "reason": hidden(problem["reason"])} for problem in document["problems"]],
        "entries": [{**entry, "reason": hidden(entry["reason"])} for entry in document["entries"]],
        "resources": [_resource(resource) for resource in document["resources"]],
        "held": [{**held, "holder": None, "reason": hidden(held["reason"])} for held in document["held"]],
        "refusals": [{**refusal, "reason": hidden(refusal["reason"])} for refusal in document["refusals"]],
    }


def _resource(resource: ResourceStatus) -> ResourceStatus:
    return {
        **resource,
        "devices": [_device(device) for device in resource["devices"]],
        "together": [{**member, "reason": hidden(member["reason"])} for member in resource["together"]],
        "departed": [{**left, "reason": hidden(left["reason"])} for left in resource["departed"]],
    }


def _device(device: DeviceStatus) -> DeviceStatus:
    return {**device, "holder": None, "reason": hidden(device["reason"])}


def hidden(reason: str) -> str:
    """A reason that names no container."""
    return _HOLDER.sub(HIDDEN, reason)
