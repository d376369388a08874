"""Status documents of tests, as JSON."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from devhost.host.host import Host
from devhost.host.shown.status import captured
from devhost.telemetry.ask import read
from devhost.telemetry.document import StatusDocument, form, json_line

Json = dict[str, Any]
"""A JSON object."""

_EMPTY = {str: "", int: 0, float: 0.0, bool: False}


def status(host: Host) -> Json:
    """The present document of a host."""
    found: Json = json.loads(json_line(captured(host)()))
    return found


def document_of(json: Any) -> StatusDocument:
    """The document that a command reads from this JSON; what a test leaves out is empty."""
    return read(_completing(StatusDocument)(json), StatusDocument)


@cache  # tests make documents of thousands of devices
def _completing(kind: Any) -> Callable[[Any], Any]:
    """The function that adds what JSON of this type leaves out."""
    if get_origin(kind) is Sequence:
        each = _completing(get_args(kind)[0])
        return lambda json: [each(one) for one in json or ()]
    if get_origin(kind) is types.UnionType:
        given = _completing(get_args(kind)[0])
        return lambda json: None if json is None else given(json)
    if is_dataclass(kind):
        return _completing_object(kind)
    empty = _EMPTY.get(kind, "")
    return lambda json: empty if json is None else json


def _completing_object(kind: Any) -> Callable[[Any], Any]:
    hints, found = get_type_hints(kind), form(kind)
    values = {key: _completing(hints[name]) for name, key in found.keys.items()}

    def complete(json: Any) -> Json:
        json = json or {}
        return {
            key: value(json.get(key))
            for key, value in values.items()
            if key in json or key not in found.optional
        }

    return complete
