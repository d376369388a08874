"""Node + type → typed value, or complaints: what a backend's ``Options`` and the file itself go through.

Understood are ``bool``, ``int``, ``float``, ``str``, ``Path``, ``Literal``, enums, ``None``, lists, tuples
``tuple[T, ...]``, sets, ``dict[str, T]``, dataclasses, ``Annotated[…, Bounds]``, unions of these and
:data:`Raw`. ``Annotated[Where, Conditions(…)]`` is read as ``where`` of a resource is.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from devhost.backend import Conditions, OptionError

from .annotation import LISTS, MAPPINGS, Bounds, Form, Raw, choices, is_enum, keys, members, required, spelled
from .diagnostics import Diagnostics, Place, one_line, shown, suggest
from .nodes import Fields, Items, Node, Scalar
from .scalar import WRONG, read_bool, read_float, read_int, read_path, read_text, refuse
from .selection import read_where


def read(node: Node, wanted: Any, place: Place) -> Any:
    """The value that ``node`` holds, as type ``wanted``; :data:`WRONG` after complaining.

    Raises:
        TypeError: ``wanted`` is a type that YAML cannot carry, which is its author's mistake.
    """
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted == Raw:
        return node
    if origin is typing.Annotated:
        return _read_annotated(node, args[0], args[1:], place)
    if len(members(wanted)) > 1:
        return _read_union(node, members(wanted), place)
    if (origin or wanted) in LISTS:
        return _read_list(node, origin or wanted, args, place)
    if (origin or wanted) in MAPPINGS:
        return _read_mapping(node, args, place)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return read_dataclass(node, wanted, place)
    if origin is typing.Literal or is_enum(wanted):
        return _read_choice(node, wanted, place)
    return _read_scalar(node, wanted, place)


def _read_scalar(node: Node, wanted: Any, place: Place) -> Any:
    if wanted in (str, Path):
        return read_text(node, place) if wanted is str else read_path(node, place)
    if wanted is bool:
        return read_bool(node, place)
    if wanted is int:
        return read_int(node, place)
    if wanted is float:
        return read_float(node, place)
    if wanted is type(None):
        null = isinstance(node, Scalar) and node.kind == "null"
        return None if null else refuse(node, wanted, place)
    raise TypeError(f"a configuration cannot carry a value of type {wanted!r}")


def _read_choice(node: Node, wanted: Any, place: Place) -> Any:
    known = {spelled(value): value for value in choices(wanted)}
    if isinstance(node, Scalar) and node.text in known:
        value = known[node.text]
        kinds = {str: "str", int: "int", bool: "bool"}
        if node.kind == kinds.get(type(value)):
            return wanted(value) if is_enum(wanted) else value
        hint = f"put it in quotes: {shown(node.text)}" if isinstance(value, str) else "remove the quotes"
        return refuse(node, wanted, place, hint)
    hint = ""
    if isinstance(node, Scalar) and node.kind == "str" and len(known) > 1:
        hint = suggest(node.text, known, "values")
        hint = hint if hint.startswith("did") else ""
    return refuse(node, wanted, place, hint)


def _read_annotated(node: Node, wanted: Any, notes: tuple[Any, ...], place: Place) -> Any:
    for note in notes:
        if isinstance(note, Conditions):
            return read_where(node, note.backend, note.attributes, place)
    value = read(node, wanted, place)
    for bounds in notes:
        if isinstance(bounds, Form) and value is not WRONG and not re.fullmatch(bounds.pattern, value):
            place.complain(node, f"must be {bounds.words}, not {shown(value)}")
            return WRONG
        if value is WRONG or not isinstance(bounds, Bounds):
            continue
        amount, what = (value, "") if isinstance(value, (int, float)) else (len(value), "members")
        if not bounds.low <= amount <= bounds.high:
            span = f"from {bounds.low} to {bounds.high} {what}".rstrip()
            place.complain(node, f"must be {span}, not {amount}")
            return WRONG
    return value


def _read_list(node: Node, origin: Any, args: tuple[Any, ...], place: Place) -> Any:
    if origin is tuple and args[-1:] != (...,):
        raise TypeError("only tuple[T, ...] can be read, not a tuple of fixed length")
    if not isinstance(node, Items):
        single = isinstance(node, Scalar) and node.kind != "null"
        hint = f"put it in brackets: [{shown(node.text)[1:-1]}]" if single else ""  # type: ignore[union-attr]
        if isinstance(node, Scalar) and node.kind == "null":
            hint = "write [] for an empty list"
        return refuse(node, list, place, hint)
    inner = args[0] if args else str
    values = [read(item, inner, place.item(n)) for n, item in enumerate(node.items)]
    return WRONG if WRONG in values else LISTS[origin](values)


def _read_mapping(node: Node, args: tuple[Any, ...], place: Place) -> Any:
    if not isinstance(node, Fields):
        return refuse(node, dict, place, _empty_mapping(node))
    inner = args[1] if args else str
    values = {key: read(entry.value, inner, place.key(key)) for key, entry in node.entries.items()}
    return WRONG if WRONG in values.values() else values


def _empty_mapping(node: Node) -> str:
    return "write {} for an empty mapping" if isinstance(node, Scalar) and node.kind == "null" else ""


def _read_union(node: Node, wanted: tuple[Any, ...], place: Place) -> Any:
    """The first member that takes the node; if none does, the complaints of the one that came nearest."""
    others = [member for member in wanted if member is not type(None)]
    if len(others) == 1 and not (isinstance(node, Scalar) and node.kind == "null"):
        return read(node, others[0], place)  # there is nothing to choose between
    nearest: Diagnostics | None = None
    hint = ""
    for member in wanted:
        trial = Diagnostics(place.complaints.file)
        value = read(node, member, Place(trial, place.path))
        if value is not WRONG:
            return value
        # a complaint about something inside the node says that its kind was right
        inside = any(mark != node.mark or path != place.path for mark, path, _, _ in trial.found)
        hint = hint or trial.found[0][3]
        if inside and (nearest is None or len(trial.found) < len(nearest.found)):
            nearest = trial
    if nearest is None:
        return refuse(node, typing.Union[wanted], place, hint)  # noqa: UP007 - a tuple known at run time
    for complaint in nearest.found:
        place.complaints.add(*complaint)
    return WRONG


def read_fields(node: Node, cls: type, place: Place) -> dict[str, Any]:
    """What a mapping gives for the fields of a dataclass, by field name: good values only, no defaults.

    Every key that is unknown, missing or wrong has been complained about.
    """
    if not isinstance(node, Fields):
        refuse(node, dict, place, _empty_mapping(node))
        return {}
    known = keys(cls)
    values: dict[str, Any] = {}
    for key, entry in node.entries.items():
        if key not in known:
            hint = getattr(cls, "former_keys", {}).get(key, "") or suggest(key, known, "keys")
            place.complaints.add(entry.mark, place.path, f"unknown key {shown(key)}", hint)
            continue
        field, wanted = known[key]
        value = read(entry.value, wanted, place.key(key))
        if value is not WRONG:
            values[field.name] = value
    for key, (field, _) in known.items():
        if required(field) and key not in node.entries:
            example = field.metadata.get("example")
            hint = "" if example is None else f"for example {key}: {example}"
            place.complain(node, f"the key {key} is required", hint)
    return values


def read_dataclass(node: Node, cls: type, place: Place) -> Any:
    """A dataclass from a mapping. What its ``__post_init__`` objects to is a complaint at its key."""
    before = len(place.complaints.found)
    values = read_fields(node, cls, place)
    if len(place.complaints.found) > before:
        return WRONG
    return agreed(lambda: cls(**values), node, cls.__name__, place)


def agreed(call: Callable[[], Any], node: Node, who: str, place: Place) -> Any:
    """What a call gives that may raise OptionError, which is then a complaint at its key; else WRONG."""
    try:
        return call()
    except OptionError as error:
        at, where = _find(node, error.key, place)
        hint = error.hint or (suggest(error.word, error.known, "words") if error.known else "")
        where.complain(at, error.message, hint)
    except ValueError as error:
        place.complain(node, str(error) or f"is refused by {who}")
    return WRONG


def _find(node: Node, key: str, place: Place) -> tuple[Node, Place]:
    """The node at a path such as ``groups[2].paths`` below ``node``, as far as it exists."""
    for step in _steps(key):
        if isinstance(step, str) and isinstance(node, Fields) and step in node.entries:
            node, place = node.entries[step].value, place.key(step)
        elif isinstance(step, int) and isinstance(node, Items) and step < len(node.items):
            node, place = node.items[step], place.item(step)
        else:
            break
    return node, place


def _steps(key: str) -> Iterator[str | int]:
    for name, index in re.findall(r"([^.\[\]]+)|\[([0-9]+)\]", one_line(key)):
        yield name or int(index)
