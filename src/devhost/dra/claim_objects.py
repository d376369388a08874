"""ResourceClaim objects of the API server, as far as this driver needs them, and the options in them.

An opaque configuration for this driver has the parameters

    {apiVersion: devhost/v1, kind: DeviceOptions, options: {…}}

whose ``options`` are those of the resource's entry in the configuration file. The same reader reads them.
They replace the entry's options: first those of the device class, then those of the claim. A class may set
every option, because administrators make classes; a claim may set only what the entry allows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast

from devhost.backend import Backend, NoOptions
from devhost.backend.errors import ConfigError, DevhostError
from devhost.backend.frozen import frozen
from devhost.config.diagnostics import Diagnostics, KeyPath, Mark, one_line, suggest
from devhost.config.document import MAX_DEPTH, Entry, Fields, Items, Node, Scalar
from devhost.config.reader import WRONG, Raw, agreed, keys, read, read_fields
from devhost.config.resources import guarded
from devhost.planning.quantities import thousandths
from devhost.planning.settings import ResourceSettings

from .answers import Json

API: Final = "/apis/resource.k8s.io/v1"
"""Where the API server has ResourceClaims since Kubernetes 1.34."""

POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that was made from a template: the name that its pod has for it."""

MAX_ERRORS: Final = 3
"""Errors of one claim in its text; the pod's event has little space."""

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NOWHERE = Mark(0, 0)
_NO_OPTIONS = Fields(_NOWHERE)


def whole(amount: str) -> int:
    """A quantity of the API server that is counted in whole numbers, rounded down; 0 if it is none."""
    return (thousandths(amount) or 0) // 1000


class ClaimError(DevhostError):
    """A claim cannot be prepared; the kubelet shows the text in an event of the pod."""


@frozen
class Toleration:
    """A toleration of device taints, as in ``core/v1``: an empty ``key`` or ``effect`` matches every one."""

    key: str = ""
    operator: str = "Equal"
    effect: str = ""

    def tolerates(self, key: str, effect: str) -> bool:
        """Whether it tolerates a taint with this key and any value.

        The value names what is wrong with a device, which may change between scheduling and now.
        """
        any_key = not self.key and self.operator == "Exists"
        return (any_key or self.key == key) and self.effect in ("", effect)


@frozen
class Result:
    """One device that was allocated to the claim.

    ``request`` is as in the allocation: ``request`` or ``request/subrequest``. ``consumed`` is the capacity
    that this allocation uses, as quantities.
    """

    request: str
    pool: str
    device: str
    admin: bool = False
    share: str = ""
    consumed: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()

    def tolerates(self, key: str, effect: str) -> bool:
        """Whether the device may be used although it has such a taint."""
        return any(one.tolerates(key, effect) for one in self.tolerations)


@frozen
class OpaqueConfig:
    """A configuration for this driver. ``path`` is its place below ``status.allocation.devices``."""

    path: str
    from_class: bool
    requests: tuple[str, ...]
    parameters: Any

    def concerns(self, request: str) -> bool:
        """Whether it is for a request, given as in :attr:`Result.request`."""
        return not self.requests or not {request, request.partition("/")[0]}.isdisjoint(self.requests)


@frozen
class ClaimObject:
    """A ResourceClaim: what was allocated of this driver, in order. ``allocated``: whether anything was.

    ``pods`` are the names of the pods that it is reserved for. ``pod_claim`` is the name that its pod has for
    it, if it was made from a template. ``others`` are the devices of other drivers, each with its driver.
    """

    uid: str
    allocated: bool = False
    results: tuple[Result, ...] = ()
    config: tuple[OpaqueConfig, ...] = ()
    pods: tuple[str, ...] = ()
    pod_claim: str = ""
    others: tuple[tuple[str, Result], ...] = ()


def read_claim(body: object, driver: str) -> ClaimObject:
    """A ResourceClaim from its JSON; what concerns other drivers is left out.

    Raises ``Malformed`` if it is not a ResourceClaim of ``resource.k8s.io/v1``.
    """
    claim = Json(body, "the ResourceClaim")
    uid = claim.at("metadata").text("uid")
    allocation = claim.at("status").at("allocation")
    if allocation.value is None:
        return ClaimObject(uid)
    devices = allocation.at("devices")
    every = [(one.text("driver"), one) for one in devices.items("results")]
    results = [_result(one) for name, one in every if name == driver]
    others = [(name, _result(one)) for name, one in every if name != driver]
    config = [_config(one) for one in devices.items("config") if one.at("opaque").text("driver") == driver]
    ordered = sorted(config, key=lambda one: not one.from_class)  # stable: the order within a source counts
    reserved = claim.at("status").items("reservedFor")
    pods = tuple(one.text("name") for one in reserved if one.text("resource") == "pods")
    pod_claim = claim.at("metadata").at("annotations").text(POD_CLAIM)
    if not _LABEL.fullmatch(pod_claim):  # it becomes a part of a path
        pod_claim = ""
    return ClaimObject(uid, True, tuple(results), tuple(ordered), pods, pod_claim, tuple(others))


def _result(found: Json) -> Result:
    tolerations = (
        Toleration(one.text("key"), one.text("operator") or "Equal", one.text("effect"))
        for one in found.items("tolerations")
    )
    consumed = found.at("consumedCapacity").mapping()
    return Result(
        found.required("request"),
        found.required("pool"),
        found.required("device"),
        found.at("adminAccess").value is True,
        found.text("shareID"),
        {name: str(value) for name, value in consumed.items()},
        tuple(tolerations),
    )


def _config(found: Json) -> OpaqueConfig:
    requests = found.at("requests").value
    return OpaqueConfig(
        found.path.removeprefix("status.allocation.devices."),
        found.text("source") == "FromClass",
        tuple(map(str, requests)) if isinstance(requests, list) else (),
        found.at("opaque").at("parameters").value,
    )


@dataclass(frozen=True)
class DeviceOptions:
    """The parameters of an opaque configuration."""

    api_version: Literal["devhost/v1"]
    kind: Literal["DeviceOptions"]
    options: Raw = _NO_OPTIONS


def options_for(
    request: str,
    config: Sequence[OpaqueConfig],
    options: object,
    backend: type[Backend],
    entry: ResourceSettings,
    resource: str,
) -> object:
    """The options of a resource with what a claim configures for one request.

    ``request`` is as in :attr:`Result.request`, ``config`` the claim's, those of the class first. ``options``
    are the resource's own: the value of the backend's ``ResourceOptions``, or ``None``. ``entry`` has the
    keys that the claim itself may set. Raises ``ClaimError`` if something is wrong; the text has the path of
    each error.
    """
    diagnostics = Diagnostics("")
    before = options
    with suppress(ConfigError):  # there are too many errors to read further
        for one in config:
            if one.concerns(request):
                allowed = None if one.from_class else entry.dra.claim_options
                place = KeyPath(diagnostics, f"{one.path}.opaque.parameters")
                options = _overridden(one.parameters, options, backend, allowed, resource, place)
        if not diagnostics.found and options != before:
            _check(options, entry, resource, KeyPath(diagnostics, "config"))
    if diagnostics.found:
        raise ClaimError(_text(diagnostics))
    return options


def _overridden(
    parameters: Any,
    options: object,
    backend: type[Backend],
    allowed: Collection[str] | None,
    resource: str,
    place: KeyPath,
) -> object:
    """The options with what one configuration sets; unchanged after reporting what is wrong with it."""
    before = len(place.diagnostics.found)
    values = read_fields(node_of(parameters, place), DeviceOptions, place)
    if len(place.diagnostics.found) > before:
        return options
    given, place = cast("Node", values.get("options", _NO_OPTIONS)), place.key("options")
    if not isinstance(given, Fields):
        place.report(given, f"must be a mapping, not {given}")
        return options
    if backend.ResourceOptions is NoOptions or options is None:
        for key in given.entries:
            place.key(key).report(given, f"unknown key: {resource} has no options")
        return options
    what = f"the resource options of backend {backend.name}"
    changed = guarded(lambda: _changed(given, options, allowed, resource, place), given, what, place)
    return options if changed is WRONG else changed


def _changed(
    given: Fields, options: Any, allowed: Collection[str] | None, resource: str, place: KeyPath
) -> Any:
    kind: type = type(options)
    known = keys(kind)
    values = {}
    before = len(place.diagnostics.found)
    for key, entry in given.entries.items():
        here = place.key(key)
        if key not in known:
            here.report(entry, "unknown key", suggest(key, known, "keys"))
        elif allowed is not None and key not in allowed:
            hint = f"a DeviceClass can set it, or dra.claimOptions of {resource} can allow it"
            here.report(entry, "a claim must not set this option", hint)
        else:
            one, wanted = known[key]
            values[one.name] = read(entry.value, wanted, here)
    if len(place.diagnostics.found) > before:
        return WRONG
    return agreed(lambda: replace(options, **values), given, "the backend", place)


def _check(options: object, entry: ResourceSettings, resource: str, place: KeyPath) -> None:
    """Reports options that the entry's way of sharing rules out, or that the resource's name does."""

    def check() -> Any:
        if named := getattr(options, "named", None):
            agreed(lambda: named(resource), Fields(_NOWHERE), "the backend", place)
        alone = getattr(options, "why_alone", None)
        if alone and (entry.share.divides or not entry.exclusive):
            place.report(Fields(_NOWHERE), f"{resource} is shared: {one_line(str(alone), 300)}")
        return None

    guarded(check, Fields(_NOWHERE), f"the resource options of {resource}", place)


def node_of(value: Any, place: KeyPath, depth: int = 0) -> Node:
    """A JSON value as the reader of the configuration file takes it."""
    if depth > MAX_DEPTH:
        place.report(Fields(_NOWHERE), f"is nested more than {MAX_DEPTH} levels deep")
    elif isinstance(value, dict):
        entries = {
            str(key): Entry(_NOWHERE, node_of(one, place.key(str(key)), depth + 1))
            for key, one in value.items()
        }
        return Fields(_NOWHERE, entries)
    elif isinstance(value, list):
        nodes = (node_of(one, place.item(n), depth + 1) for n, one in enumerate(value))
        return Items(_NOWHERE, tuple(nodes))
    elif isinstance(value, bool):
        return Scalar(_NOWHERE, str(value).lower(), "bool")
    elif isinstance(value, int | float):
        return Scalar(_NOWHERE, repr(value), "int" if isinstance(value, int) else "float")
    elif isinstance(value, str):
        return Scalar(_NOWHERE, value, "str")
    return Scalar(_NOWHERE, "", "null")


def _text(diagnostics: Diagnostics) -> str:
    """The errors in one line."""
    found = dict.fromkeys(
        f"{one.path}: {one.message}" + (f" ({one.hint})" if one.hint else "")
        for one in diagnostics.error().diagnostics
    )
    texts = list(found)
    rest = len(texts) - MAX_ERRORS
    return "; ".join(texts[:MAX_ERRORS]) + (f"; and {rest} more" if rest > 0 else "")
