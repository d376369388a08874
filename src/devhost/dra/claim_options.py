"""The options that a claim, or its device class, configures for its devices.

An opaque configuration for this driver has the parameters

    {apiVersion: devhost/v1, kind: DeviceOptions, options: {…}}

whose ``options`` are those of the resource's entry in the configuration file. The same reader reads them.
They replace the entry's options: first those of the device class, then those of the claim. A class may set
every option, because administrators make classes; a claim may set only what the entry allows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal, cast

from devhost.backend import Backend, NoOptions
from devhost.backend.errors import ConfigError
from devhost.backend.frozen import frozen
from devhost.config.diagnostics import Diagnostics, KeyPath, Mark, one_line, suggest
from devhost.config.document import MAX_DEPTH, Entry, Fields, Items, Node, Scalar
from devhost.config.reader import WRONG, Raw, agreed, keys, read, read_fields
from devhost.config.resources import guarded
from devhost.planning.settings import ResourceSettings

from .answers import ClaimError, OpaqueConfig

MAX_ERRORS: Final = 3
"""Errors of one claim in its text; the pod's event has little space."""

_NOWHERE = Mark(0, 0)
_NO_OPTIONS = Fields(_NOWHERE)


@frozen
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
            options = _named(options, entry, resource, KeyPath(diagnostics, "config"))
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


def _named(options: object, entry: ResourceSettings, resource: str, place: KeyPath) -> object:
    """The options for the entry's name; what that name, or its way of sharing, rules out is reported."""

    def check() -> Any:
        found = options
        if named := getattr(options, "named", None):
            found = agreed(lambda: named(entry.name), Fields(_NOWHERE), "the backend", place)
        alone = getattr(options, "why_alone", None)
        if alone and (entry.share.divides or not entry.exclusive):
            place.report(Fields(_NOWHERE), f"{resource} is shared: {one_line(str(alone), 300)}")
        return found

    return guarded(check, Fields(_NOWHERE), f"the resource options of {resource}", place)


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
