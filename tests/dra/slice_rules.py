"""The rules of the API server (1.37) for a ResourceSlice, and those for the slices of one pool.

Written from the limits of ``resource.k8s.io/v1``, without anything of the code under test. A field that
devhost never sets is a problem, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z")
SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?\Z")
_PART = r"(?:0|[1-9]\d*)"
_PRE = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
VERSION = re.compile(
    rf"{_PART}\.{_PART}\.{_PART}(?:-{_PRE}(?:\.{_PRE})*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?\Z", re.A
)
QUANTITY = re.compile(r"(0|[1-9][0-9]*)([kMGTPE]?|[KMGTPE]i)\Z")
UNITS = ["", "k", "M", "G", "T", "P", "E"]
BINARY_UNITS = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
DEVICE_FIELDS = {
    "name",
    "attributes",
    "capacity",
    "taints",
    "allowMultipleAllocations",
    "consumesCounters",
}
SPEC_FIELDS = {"driver", "nodeName", "pool", "devices", "sharedCounters"}
KINDS = {"bool": bool, "int": int, "string": str, "version": str}


def slice_problems(spec: Object) -> list[str]:
    """What the API server would refuse in the ``spec`` of a ResourceSlice."""
    return list(_slice(spec))


def pool_problems(slices: Mapping[str, Object]) -> list[str]:
    """What makes a pool unusable although each slice is valid: its slices by the names of the objects."""
    return list(_pool(slices))


def amount(quantity: str) -> int:
    """A quantity as a number; it must be written as the API server writes it in its answers.

    Raises:
        ValueError: it is none, or the server would write it in another way.
    """
    found = QUANTITY.match(quantity)
    if not found:
        raise ValueError(f"{quantity!r} is no quantity")
    number = int(found[1])
    units, base = (BINARY_UNITS, 1024) if found[2].endswith("i") else (UNITS, 1000)
    if (number % base == 0 and found[2] != units[-1]) if number else found[2]:
        raise ValueError(f"the server writes {quantity!r} with another unit")
    return number * int(base ** units.index(found[2]))


def _slice(spec: Object) -> Iterator[str]:
    if extra := spec.keys() - SPEC_FIELDS:
        yield f"spec has {sorted(extra)}"
    driver, node, pool = spec["driver"], spec["nodeName"], spec["pool"]
    if len(driver) > 63 or not SUBDOMAIN.match(driver):
        yield f"driver {driver!r}"
    if len(node) > 253 or not SUBDOMAIN.match(node):
        yield f"nodeName {node!r}"
    if pool.keys() != {"name", "generation", "resourceSliceCount"}:
        yield f"pool has {sorted(pool)}"
    if len(pool["name"]) > 253 or not all(SUBDOMAIN.match(part) for part in pool["name"].split("/")):
        yield f"pool.name {pool['name']!r}"
    if pool["generation"] < 0 or pool["resourceSliceCount"] < 1:
        yield "pool numbers"
    devices = spec.get("devices", [])
    advanced = any(
        device.get("taints")
        or device.get("consumesCounters")
        or any("strings" in one for one in device.get("attributes", {}).values())
        for device in devices
    )
    if len(devices) > (64 if advanced else 128):
        yield f"{len(devices)} devices"
    names = Counter(device["name"] for device in devices)
    if repeated := [name for name, count in names.items() if count > 1]:
        yield f"names {repeated}"
    for device in devices:
        yield from (f"device {device['name']}: {problem}" for problem in _device(device))
    sets = spec.get("sharedCounters", [])
    if sets and "devices" in spec:
        yield "devices and sharedCounters"
    if len(sets) > 8:
        yield f"{len(sets)} counter sets"
    for one in sets:
        yield from (f"counter set {one['name']}: {problem}" for problem in _counters(one, "name"))


def _device(device: Object) -> Iterator[str]:
    if extra := device.keys() - DEVICE_FIELDS:
        yield f"has {sorted(extra)}"
    if len(device["name"]) > 63 or not LABEL.match(device["name"]):
        yield "name"
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    if len(attributes) + len(capacity) > 32:
        yield f"{len(attributes)} attributes and {len(capacity)} capacities"
    if (count := sum(len(value.get("strings", "1")) for value in attributes.values())) > 48:
        yield f"{count} values"
    for key, value in attributes.items():
        yield from (f"attribute {key}: {problem}" for problem in (*_key(key), *_attribute(value)))
    shared = device.get("allowMultipleAllocations")
    if shared not in (None, True):
        yield "allowMultipleAllocations"
    for key, value in capacity.items():
        problems = (*_key(key), *_capacity(value, bool(shared)))
        yield from (f"capacity {key}: {problem}" for problem in problems)
    consumed = device.get("consumesCounters", [])
    if len(consumed) > 2 or len({one["counterSet"] for one in consumed}) < len(consumed):
        yield f"consumes counters of {[one['counterSet'] for one in consumed]}"
    for one in consumed:
        yield from (f"counter set {one['counterSet']}: {problem}" for problem in _counters(one, "counterSet"))
    taints = device.get("taints", [])
    if len(taints) > 16:
        yield f"{len(taints)} taints"
    for taint in taints:
        yield from (f"taint: {problem}" for problem in _taint(taint))


def _counters(one: Object, name: str) -> Iterator[str]:
    if one.keys() != {name, "counters"}:
        yield f"has {sorted(one)}"
    if not 0 < len(one["counters"]) <= 32:
        yield f"{len(one['counters'])} counters"
    for text in (one[name], *one["counters"]):
        if len(text) > 63 or not LABEL.match(text):
            yield f"name {text!r}"
    for counter in one["counters"].values():
        if counter.keys() != {"value"} or amount(counter["value"]) < 1:
            yield f"counter {counter}"


def _key(key: str) -> Iterator[str]:
    domain, slash, name = key.rpartition("/")
    if len(name) > 32 or not IDENTIFIER.match(name):
        yield "name"
    if slash and (len(domain) > 63 or not SUBDOMAIN.match(domain)):
        yield "domain"


def _attribute(value: Object) -> Iterator[str]:
    if len(value) != 1:
        yield f"has {len(value)} values"
    if members := value.get("strings"):
        for member in members:
            yield from _attribute({"string": member})
        return
    for kind, one in value.items():
        if type(one) is not KINDS.get(kind):
            yield f"{kind} is {one!r}"
        elif isinstance(one, int) and not -(2**63) <= one < 2**63:
            yield "more than 64 bits"
        elif isinstance(one, str) and len(one.encode()) > 64:
            yield "more than 64 bytes"
        elif isinstance(one, str) and kind == "version" and not _is_version(one):
            yield f"version {one!r}"


def _is_version(text: str) -> bool:
    """The API server takes any number in a version; selectors of claims fail if one has more than 64 bits."""
    numbers = re.split(r"[.-]", text.partition("+")[0])
    return bool(VERSION.match(text)) and all(int(one) < 2**64 for one in numbers if one.isdecimal())


def _capacity(value: Object, shared: bool) -> Iterator[str]:
    if extra := value.keys() - {"value", "requestPolicy"}:
        yield f"has {sorted(extra)}"
    most = amount(value["value"])
    policy = value.get("requestPolicy")
    if policy is None:
        return
    if not shared:
        yield "requestPolicy without allowMultipleAllocations"
    if extra := policy.keys() - {"default", "validRange"}:
        yield f"requestPolicy has {sorted(extra)}"
    usual, valid = amount(policy["default"]), policy["validRange"]
    least, top, step = amount(valid["min"]), amount(valid["max"]), amount(valid.get("step", "0"))
    if not least <= usual <= top <= most:
        yield f"the range {least}..{top} has not the default {usual}, or is beyond {most}"
    if least + step > most or (step and ((usual - least) % step or (top - least) % step)):
        yield f"steps of {step} do not fit"


def _taint(taint: Object) -> Iterator[str]:
    if taint.keys() - {"key", "value", "effect"}:
        yield f"has {sorted(taint)}"
    domain, slash, name = taint["key"].rpartition("/")
    if slash and (len(domain) > 253 or not SUBDOMAIN.match(domain)):
        yield f"domain {domain!r}"
    if not 0 < len(name) <= 63 or not LABEL_VALUE.match(name):
        yield f"name {name!r}"
    if len(taint["value"]) > 63 or not LABEL_VALUE.match(taint["value"]):
        yield f"value {taint['value']!r}"
    if taint["effect"] not in ("None", "NoSchedule", "NoExecute"):
        yield f"effect {taint['effect']!r}"


def _pool(slices: Mapping[str, Object]) -> Iterator[str]:
    for name, spec in slices.items():
        if len(name) > 253 or not SUBDOMAIN.match(name):
            yield f"object name {name!r}"
        yield from (f"{name}: {problem}" for problem in _slice(spec))
        if spec["pool"]["resourceSliceCount"] != len(slices):
            yield f"{name}: resourceSliceCount"
    for field in ("name", "generation"):
        if len({spec["pool"][field] for spec in slices.values()}) != 1:
            yield f"several values of pool.{field}"
    yield from _unique([device["name"] for spec in slices.values() for device in spec.get("devices", [])])
    sets = [one for spec in slices.values() for one in spec.get("sharedCounters", [])]
    yield from _unique([one["name"] for one in sets])
    known = {(one["name"], counter) for one in sets for counter in one["counters"]}
    for spec in slices.values():
        for device in spec.get("devices", []):
            for one in device.get("consumesCounters", []):
                if not known.issuperset((one["counterSet"], counter) for counter in one["counters"]):
                    yield f"device {device['name']}: no such counters in {one['counterSet']}"


def _unique(names: Sequence[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{count} devices or counter sets with the name {name}"
