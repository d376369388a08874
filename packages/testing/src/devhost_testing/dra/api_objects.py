"""The objects of a simulated API server: what it stores, refuses, selects and reports to watches.

:class:`.ApiServer` serves them over HTTP. See there for the limits of the simulation.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

Object = dict[str, Any]

RESOURCE_API = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCE_API}/resourceslices"
CLASSES = f"{RESOURCE_API}/deviceclasses"
NODES = "/api/v1/nodes"


def claims(namespace: str) -> str:
    """The path of the ResourceClaims of a namespace."""
    return f"{RESOURCE_API}/namespaces/{namespace}/resourceclaims"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that the server stores."""

    kind: str
    api_version: str
    plural: str
    namespaced: bool = False
    fields: tuple[str, ...] = ("metadata.name",)
    immutable: tuple[str, ...] = ()


KINDS = (
    Kind(
        "ResourceSlice",
        "resource.k8s.io/v1",
        "resourceslices",
        fields=("metadata.name", "spec.nodeName", "spec.driver"),
        immutable=("spec.driver", "spec.pool.name", "spec.nodeName"),
    ),
    Kind(
        "ResourceClaim",
        "resource.k8s.io/v1",
        "resourceclaims",
        namespaced=True,
        fields=("metadata.name", "metadata.namespace"),
        immutable=("spec",),
    ),
    Kind("DeviceClass", "resource.k8s.io/v1", "deviceclasses"),
    Kind("Node", "v1", "nodes", fields=("metadata.name",)),
)


class ApiRefused(Exception):
    """A request that the server answers with an error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class ApiPath:
    """Where a path leads: a collection, an object of it, or its status."""

    kind: Kind
    namespace: str
    name: str
    part: str


class Change(NamedTuple):
    """A change of the store, as watches get it."""

    version: int
    type: str
    kind: Kind
    value: Object


def place(path: str) -> ApiPath:
    """The place of a path. Raises ``ApiRefused`` if the server has no such path."""
    for kind in KINDS:
        root = f"/apis/{kind.api_version}" if "/" in kind.api_version else f"/api/{kind.api_version}"
        if not path.startswith(f"{root}/"):
            continue
        parts = path[len(root) + 1 :].split("/")
        namespace = ""
        if parts[0] == "namespaces" and kind.namespaced and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        if parts[0] != kind.plural or len(parts) > 3 or (len(parts) == 3 and parts[2] != "status"):
            continue
        name, part = ([*parts[1:], "", ""])[:2]
        if name and kind.namespaced and not namespace:
            continue
        return ApiPath(kind, namespace, name, part)
    raise ApiRefused(404, "NotFound", "the server could not find the requested resource")


_Leaf = tuple[str, ...]
"""A field of a device in the status of a claim, after the device's identity."""


class Objects:
    """The stored objects and their history."""

    def __init__(self) -> None:
        self.version = 100
        self.dropped: frozenset[str] = frozenset()
        self.counters_apart = self.all_taints = True
        self.refused: dict[str, int] = {}
        """Attributes of devices that are refused, each with how many devices an answer names at most."""
        self.listeners: list[Callable[[], object]] = []
        self._stored: dict[tuple[str, str, str], Object] = {}
        self._history: list[Change] = []
        self._oldest = self.version
        self._owners: dict[str, dict[_Leaf, set[str]]] = {}
        """Who applied what of the status of a claim, by its uid; "" for what was not applied."""
        self._uids = itertools.count(1)
        self._pages: dict[str, tuple[int, list[Object]]] = {}

    # Reading

    def get(self, where: ApiPath) -> Object:
        """One object."""
        try:
            return self._stored[where.kind.plural, where.namespace, where.name]
        except KeyError:
            message = f'{where.kind.plural} "{where.name}" not found'
            raise ApiRefused(404, "NotFound", message) from None

    def all(self, where: ApiPath, query: Mapping[str, str]) -> list[Object]:
        """The objects of a collection that the selectors of a query match, by namespace and name."""
        return [value for value in self._of(where) if selected(where.kind, value, query)]

    def page(self, where: ApiPath, query: Mapping[str, str]) -> tuple[int, list[Object], str, int]:
        """One page of a list: its version, objects, the token of the next page, how many objects remain."""
        if token := query.get("continue", ""):
            if token not in self._pages:
                raise ApiRefused(410, "Expired", "The provided continue parameter is too old")
            version, found = self._pages[token]
        else:
            version, found = self.version, self.all(where, query)
        limit = int(query.get("limit", "0") or 0)
        if not limit or len(found) <= limit:
            return version, found, "", 0
        token = f"page-{len(self._pages)}-of-{version}"
        self._pages[token] = version, found[limit:]
        return version, found[:limit], token, len(found) - limit

    def changes(self, where: ApiPath, version: int) -> list[Change]:
        """What happened to a collection after a version. Raises ``ApiRefused`` 410 if it is forgotten."""
        if version < self._oldest:
            message = f"too old resource version: {version} ({self._oldest})"
            raise ApiRefused(410, "Expired", message)
        return [
            change
            for change in self._history
            if change.version > version
            and change.kind is where.kind
            and where.namespace in ("", change.value["metadata"].get("namespace", ""))
        ]

    # Writing

    def create(self, where: ApiPath, body: Object) -> Object:
        """Stores a new object."""
        new = self._received(where.kind, body)
        metadata = new["metadata"]
        if "generateName" in metadata:
            raise ApiRefused(422, "Invalid", "metadata.generateName: Forbidden: this test wants stable names")
        name = metadata.get("name", "")
        if not name or len(name) > 253:
            raise ApiRefused(422, "Invalid", f"{where.kind.kind} {name!r} is invalid: metadata.name")
        if (where.kind.plural, where.namespace, name) in self._stored:
            raise ApiRefused(409, "AlreadyExists", f'{where.kind.plural} "{name}" already exists')
        if where.namespace:
            metadata["namespace"] = where.namespace
        metadata["uid"] = metadata.get("uid") or f"uid-{next(self._uids)}"
        metadata["generation"] = 1
        metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
        self._check(where.kind, new)
        return self._store(replace(where, name=name), "ADDED", new)

    def update(self, where: ApiPath, body: Object) -> Object:
        """Replaces an object, or its status."""
        old = self.get(where)
        new = self._received(where.kind, body)
        given, stored = new["metadata"], old["metadata"]
        for key in ("resourceVersion", "uid"):
            if given.get(key) not in (None, "", stored[key]):
                message = (
                    f'Operation cannot be fulfilled on {where.kind.plural} "{where.name}": {key} differs'
                )
                raise ApiRefused(409, "Conflict", message)
        if given.get("name") != where.name:
            raise ApiRefused(400, "BadRequest", "the name of the object does not match the name on the URL")
        if where.part == "status":
            new = {**_copied(old), "status": new.get("status", {})}
        elif "status" in old and where.kind.kind != "Node":
            new["status"] = _copied(old["status"])
        for field in where.kind.immutable:
            if _field(new, field) != _field(old, field):
                raise ApiRefused(422, "Invalid", f"{field}: Invalid value: field is immutable")
        kept = ("uid", "generation", "creationTimestamp", "resourceVersion", "namespace")
        new["metadata"].update({key: stored[key] for key in kept if key in stored})
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] += 1
        self._check(where.kind, new)
        return self._store(where, "MODIFIED", new)

    def patch(self, where: ApiPath, changes: Object) -> Object:
        """Changes an object, or its status, by a strategic merge patch."""
        old = self.get(where)
        version = changes.get("metadata", {}).get("resourceVersion", "")
        if version not in ("", old["metadata"]["resourceVersion"]):
            message = f'Operation cannot be fulfilled on {where.kind.plural} "{where.name}": it was modified'
            raise ApiRefused(409, "Conflict", message)
        other = "spec" if where.part == "status" else "status"
        new = _merged(old, {key: value for key, value in changes.items() if key != other})
        if new == old:
            return old
        return self._store(where, "MODIFIED", new)

    def apply(self, where: ApiPath, body: Object, manager: str, *, force: bool) -> Object:
        """Makes the status of a claim have these devices (server-side apply); no other field is known."""
        old = self.get(where)
        if where.kind.kind != "ResourceClaim" or where.part != "status" or not manager:
            raise ApiRefused(
                400, "BadRequest", "only the status of a ResourceClaim can be applied, with a manager"
            )
        self._same_claim(where, body, old)
        now, new = _leaves(old), _leaves(body)
        owners = self._owners.setdefault(old["metadata"]["uid"], {})
        others = {path for path in new if owners.get(path, {""}) - {manager}}
        if conflicts := sorted(path for path in others if now.get(path, new[path]) != new[path]):
            if not force:
                fields = ", ".join(".".join(path[1:]) for path in conflicts)
                raise ApiRefused(409, "Conflict", f"Apply failed with {len(conflicts)} conflicts: {fields}")
            for path in conflicts:
                owners[path] = set()
        for path in [path for path, names in owners.items() if manager in names and path not in new]:
            owners[path].discard(manager)
            if not owners[path]:
                now.pop(path, None)
        for path, value in new.items():
            owners.setdefault(path, {""} if now.get(path) == value else set()).add(manager)
            now[path] = value
        devices: Any = _devices(now) if "devices" not in self.dropped else []
        changed = {**_copied(old), "status": {**old["status"], "devices": devices}}
        return old if changed == old else self._store(where, "MODIFIED", changed)

    def _same_claim(self, where: ApiPath, body: Object, old: Object) -> None:
        """Refuses the status of another claim, and of devices that are not allocated to this one."""
        if body.get("metadata", {}).get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise ApiRefused(409, "Conflict", f'{where.kind.plural} "{where.name}": uid differs')
        allocation = (old.get("status") or {}).get("allocation") or {}
        allocated = {_identity(one) for one in allocation.get("devices", {}).get("results", ())}
        for one in body["status"]["devices"]:
            if _identity(one) not in allocated:
                message = f"{one['device']}: must be an allocated device in the claim"
                raise ApiRefused(422, "Invalid", message)

    def delete(self, where: ApiPath, preconditions: Mapping[str, str] | None = None) -> Object:
        """Removes an object, if it still is the one in the preconditions."""
        old = self.get(where)
        for key, wanted in (preconditions or {}).items():
            if wanted != old["metadata"][key]:
                message = f"Precondition failed: {key} in precondition: {wanted}, in object meta: "
                raise ApiRefused(409, "Conflict", message + old["metadata"][key])
        del self._stored[where.kind.plural, where.namespace, where.name]
        self._record("DELETED", where.kind, old)
        return old

    def kept(self, kind: Kind, value: Object) -> Object:
        """A new object as it would be stored."""
        new = self._received(kind, value)
        self._check(kind, new)
        return new

    def put(self, path: str, value: Object) -> Object:
        """Stores an object as it is, status included: what another client of the server did."""
        where = place(path)
        name = value["metadata"]["name"]
        where = replace(where, name=name)
        if (where.kind.plural, where.namespace, name) in self._stored:
            new = {**_copied(self.get(where)), **_copied(value)}
            new["metadata"] = {**self.get(where)["metadata"], **value["metadata"]}
            if new.get("spec") != self.get(where).get("spec"):
                new["metadata"]["generation"] += 1
            return self._store(where, "MODIFIED", new)
        return self.create(replace(where, name=""), value)

    def forget(self) -> None:
        """Forgets the history and open lists: older versions are answered with 410."""
        self.version += 1
        self._oldest = self.version
        self._history.clear()
        self._pages.clear()
        self._tell()

    def _of(self, where: ApiPath) -> Iterator[Object]:
        for (plural, namespace, _), value in sorted(self._stored.items()):
            if plural == where.kind.plural and where.namespace in ("", namespace):
                yield value

    def _received(self, kind: Kind, body: Object) -> Object:
        if body.get("kind", kind.kind) != kind.kind or body.get("apiVersion") != kind.api_version:
            raise ApiRefused(400, "BadRequest", f"the object is not a {kind.kind} of {kind.api_version}")
        new: Object = _copied(body, self.dropped)
        new["kind"] = kind.kind
        new.setdefault("metadata", {})
        return new

    def _check(self, kind: Kind, value: Object) -> None:
        if kind.kind != "ResourceSlice":
            return
        for attribute, most in self.refused.items():
            devices = value["spec"].get("devices") or []
            found = [number for number, one in enumerate(devices) if attribute in one.get("attributes", {})]
            errors = [f"spec.devices[{one}].attributes[{attribute}]: Invalid value" for one in found[:most]]
            if errors:
                raise ApiRefused(422, "Invalid", f"ResourceSlice is invalid: [{', '.join(errors)}]")
        problems = list(_slice_problems(value["spec"]))
        if not self.counters_apart:
            problems += _counter_problems(value["spec"])
        if not self.all_taints:
            problems += _taint_problems(value["spec"])
        if problems:
            name = value["metadata"]["name"]
            message = f'ResourceSlice.resource.k8s.io "{name}" is invalid: {", ".join(problems)}'
            raise ApiRefused(422, "Invalid", message)

    def _store(self, where: ApiPath, change: str, value: Object) -> Object:
        self._stored[where.kind.plural, where.namespace, where.name] = value
        return self._record(change, where.kind, value)

    def _record(self, change: str, kind: Kind, value: Object) -> Object:
        self.version += 1
        value["metadata"] = {**value["metadata"], "resourceVersion": str(self.version)}
        self._history.append(Change(self.version, change, kind, _copied(value)))
        self._tell()
        return value

    def _tell(self) -> None:
        for listener in tuple(self.listeners):
            listener()


def selected(kind: Kind, value: Object, query: Mapping[str, str]) -> bool:
    """Whether an object matches the selectors of a query; only ``key=value`` is known.

    Raises ``ApiRefused`` 400 if the kind cannot be selected by such a field.
    """
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        field, _, wanted = term.partition("=")
        if field not in kind.fields:
            raise ApiRefused(400, "BadRequest", f"field label not supported: {field}")
        if _field(value, field) != wanted.removeprefix("="):
            return False
    labels = value["metadata"].get("labels", {})
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, _, wanted = term.partition("=")
        if labels.get(key) != wanted.removeprefix("="):
            return False
    return True


def metadata_of(value: Object) -> Object:
    """An object without ``spec`` and ``status``."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": value["metadata"],
    }


def encoded(value: Object) -> bytes:
    """An object as the server sends it."""
    return json.dumps(value, separators=(",", ":")).encode()


def _field(value: Object, field: str) -> Any:
    found: Any = value
    for key in field.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _copied(value: Any, dropped: Collection[str] = ()) -> Any:
    """A copy of what JSON can hold, without some fields: ``copy.deepcopy`` takes several times as long."""
    if isinstance(value, dict):
        return {key: _copied(one, dropped) for key, one in value.items() if key not in dropped}
    if isinstance(value, list):
        return [_copied(one, dropped) for one in value]
    return value


def _merged(old: Any, changes: Any, name: str = "") -> Any:
    """A value after a strategic merge patch."""
    if isinstance(changes, dict):
        merged = dict(old) if isinstance(old, dict) else {}
        for key, value in changes.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = _merged(merged.get(key), value, key)
        return merged
    if name == "conditions":
        types = [one["type"] for one in changes]
        kept = [one for one in old or () if one["type"] not in types]
        return kept + [
            _merged(next((one for one in old or () if one["type"] == new["type"]), {}), new)
            for new in changes
        ]
    return _copied(changes)


def _identity(device: Object) -> str:
    """What distinguishes a device in a claim."""
    return json.dumps([device.get(key, "") for key in ("driver", "pool", "device", "shareID")])


def _leaves(claim: Object) -> dict[_Leaf, Any]:
    """The fields of the devices in the status of a claim."""
    found: dict[_Leaf, Any] = {}
    for one in (claim.get("status") or {}).get("devices") or ():
        device = _identity(one)
        for condition in one.get("conditions") or ():
            found |= {
                (device, "conditions", condition["type"], key): value for key, value in condition.items()
            }
        found |= {(device, "networkData", key): value for key, value in one.get("networkData", {}).items()}
    return found


def _devices(leaves: Mapping[_Leaf, Any]) -> list[Object]:
    """The devices that have these fields."""
    found: dict[str, Object] = {}
    for (device, field, *path), value in leaves.items():
        names = zip(("driver", "pool", "device", "shareID"), json.loads(device), strict=True)
        one = found.setdefault(device, {key: text for key, text in names if text})
        if field == "networkData":
            one.setdefault(field, {})[path[0]] = value
            continue
        conditions = one.setdefault("conditions", [])
        known = next((each for each in conditions if each["type"] == path[0]), None)
        if known is None:
            conditions.append(known := {"type": path[0]})
        known[path[1]] = value
    return list(found.values())


def _counter_problems(spec: Object) -> Iterator[str]:
    """Devices that consume counters of another slice."""
    known = {one["name"] for one in spec.get("sharedCounters") or ()}
    for index, device in enumerate(spec.get("devices") or ()):
        for number, one in enumerate(device.get("consumesCounters", ())):
            if one["counterSet"] not in known:
                yield (
                    f"spec.devices[{index}].consumesCounters[{number}].counterSet: Invalid value: "
                    f'"{one["counterSet"]}": must reference a counterSet defined in the ResourceSlice '
                    "sharedCounters"
                )


def _taint_problems(spec: Object) -> Iterator[str]:
    """Taints that Kubernetes 1.34 does not take."""
    for index, device in enumerate(spec.get("devices") or ()):
        taints, where = device.get("taints", ()), f"spec.devices[{index}].taints"
        if len(taints) > 4:
            yield f"{where}: Too many: {len(taints)}: must have at most 4 items"
        for number, one in enumerate(taints):
            if one["effect"] not in ("NoExecute", "NoSchedule"):
                supported = 'supported values: "NoExecute", "NoSchedule"'
                yield f'{where}[{number}].effect: Unsupported value: "{one["effect"]}": {supported}'


def _slice_problems(spec: Object) -> Iterator[str]:
    """The rules of a ResourceSlice that are simulated."""
    devices = spec.get("devices") or []
    if spec.get("pool", {}).get("resourceSliceCount", 0) < 1:
        yield "spec.pool.resourceSliceCount: Invalid value: must be greater than zero"
    targets = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    if sum(key in spec for key in targets) != 1:
        yield "spec: Invalid value: exactly one of `nodeName`, `nodeSelector`, `allNodes` is required"
    most = 64 if any("taints" in device or "consumesCounters" in device for device in devices) else 128
    if len(devices) > most:
        yield f"spec.devices: Too many: {len(devices)}: must have at most {most} items"
    names = [device.get("name", "") for device in devices]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f'spec.devices[{index}].name: Duplicate value: "{name}"'
    for index, device in enumerate(devices):
        attributes = device.get("attributes", {})
        if len(attributes) + len(device.get("capacity", {})) > 32:
            yield f"spec.devices[{index}]: Too many: must have at most 32 attributes and capacities"
        for key, value in attributes.items():
            where = f"spec.devices[{index}].attributes[{key}]"
            if len(value) != 1:
                yield f"{where}: Invalid value: exactly one value must be specified"
            for text in (value.get("string"), value.get("version")):
                if text is not None and len(text.encode()) > 64:
                    yield f"{where}: Too long: may not be more than 64 bytes"
