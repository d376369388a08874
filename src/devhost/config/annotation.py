"""What a type annotation asks for: its members, its choices, its keys, and what a message calls it."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from dataclasses import MISSING, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from .nodes import Fields, Items, Scalar

Raw = Scalar | Items | Fields
"""A value kept as its node, to be read later."""

LISTS: Final[dict[Any, type]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: tuple,
    collections.abc.Iterable: tuple,
    collections.abc.Collection: tuple,
    collections.abc.Set: frozenset,
}
"""Types written as a list in YAML, and what such a value is made of."""

MAPPINGS: Final = (dict, collections.abc.Mapping)


@dataclass(frozen=True, slots=True)
class Bounds:
    """In ``Annotated``: the least and the greatest number, or length of a list."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Form:
    """In ``Annotated[str, …]``: a pattern for the whole text, and how a message describes it."""

    pattern: str
    words: str


def camel(name: str) -> str:
    """The YAML key of a field: ``driver_root`` → ``driverRoot``, ``class_`` → ``class``."""
    first, *rest = name.strip("_").split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def keys(cls: type) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """The YAML keys of a dataclass, each with its field and its type.

    Raises:
        NameError: an annotation names something that its module does not have.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    return {camel(f.name): (f, hints[f.name]) for f in dataclasses.fields(cls) if f.init}


def required(field: dataclasses.Field[Any]) -> bool:
    """Whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def members(wanted: Any) -> tuple[Any, ...]:
    """The members of a union; a type that is none has one: itself."""
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return typing.get_args(wanted)
    return (wanted,)


def noun(wanted: Any) -> str:
    """What a type is called in a message."""
    origin = typing.get_origin(wanted) or wanted
    if wanted == Raw:
        return "a value"
    if len(members(wanted)) > 1:
        return " or ".join(noun(one) for one in members(wanted) if one is not type(None))
    if origin is typing.Annotated:
        return noun(typing.get_args(wanted)[0])
    if origin is typing.Literal or is_enum(wanted):
        values = [spelled(value) for value in choices(wanted)]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if origin in LISTS:
        return "a list"
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        Path: "a path",
        type(None): "nothing",
    }
    return names.get(origin, "a mapping")


def choices(wanted: Any) -> tuple[Any, ...]:
    """The values of a ``Literal`` or an enum."""
    if is_enum(wanted):
        return tuple(member.value for member in wanted)
    return typing.get_args(wanted)


def spelled(value: object) -> str:
    """A choice as it is written in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_enum(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, Enum)
