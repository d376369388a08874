"""Whether a value that came as JSON has the form that a type of :mod:`.document` describes."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

Look = Callable[[object], str]
"""Where a value differs, as ``.kubelet.dir is missing``; empty if nowhere."""


def difference(value: object, kind: type) -> str:
    """Where ``value`` has not the form of ``kind``, a TypedDict; empty if it has it.

    Keys beyond those of ``kind`` and words that a Literal does not have are no difference: a newer devhost
    may write them.
    """
    found = _look(kind)(value)
    return f"it{found}" if found.startswith(" ") else found.removeprefix(".")


@cache
def _look(kind: Any) -> Look:
    if is_typeddict(kind):
        return _keys({name: _look(of) for name, of in get_type_hints(kind).items()})
    arguments = get_args(kind)
    if get_origin(kind) is list:
        return _each(_look(arguments[0]))
    if get_origin(kind) is types.UnionType:
        (of,) = (argument for argument in arguments if argument is not type(None))
        look = _look(of)
        return lambda value: "" if value is None else look(value)
    if get_origin(kind) is Literal:
        kind = str
    if kind is float:
        kind = int | float  # JSON has one kind of number
    return lambda value: "" if isinstance(value, kind) else " is of another kind"


def _keys(looks: dict[str, Look]) -> Look:
    def look(value: object) -> str:
        if not isinstance(value, dict):
            return " is of another kind"
        for key, looked in looks.items():
            if key not in value:
                return f".{key} is missing"
            if found := looked(value[key]):
                return f".{key}{found}"
        return ""

    return look


def _each(looked: Look) -> Look:
    def look(value: object) -> str:
        if not isinstance(value, list):
            return " is of another kind"
        for place, one in enumerate(value):
            if found := looked(one):
                return f"[{place}]{found}"
        return ""

    return look
