"""Status documents of tests, as JSON."""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
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
    return read(_complete(json, StatusDocument), StatusDocument)


def _complete(json: Any, kind: Any) -> Any:
    arguments = get_args(kind)
    if get_origin(kind) is Sequence:
        return [_complete(one, arguments[0]) for one in json or ()]
    if get_origin(kind) is types.UnionType:
        return None if json is None else _complete(json, arguments[0])
    if is_dataclass(kind):
        return _object(json or {}, kind)
    return _EMPTY.get(kind, "") if json is None else json


_hints = cache(get_type_hints)  # tests make documents of thousands of devices


def _object(json: Json, kind: Any) -> Json:
    hints, found = _hints(kind), form(kind)
    missing = {key: name for name, key in found.keys.items() if key not in found.optional}
    given = {key: name for name, key in found.keys.items() if key in json}
    return {key: _complete(json.get(key), hints[name]) for key, name in (missing | given).items()}
