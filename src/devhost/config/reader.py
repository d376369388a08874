"""Node + type → typed value, or diagnostics: what a backend's ``Options`` and the file itself go through.

Understood are ``bool``, ``int``, ``float``, ``str``, ``Path``, ``Literal``, enums, ``None``, lists, tuples
``tuple[T, ...]``, sets, ``dict[str, T]``, dataclasses, ``Annotated[…, Bounds]``, unions of these and
:data:`Raw`. ``Annotated[Where, Conditions(…)]`` is read as ``where`` of a resource is: conditions on
attributes, by the types that the backend declares. Scalars are read strictly where YAML 1.1 is generous, with
a hint how to write what was meant.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import math
import posixpath
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from devhost.backend import Attribute, Conditions, OptionError
from devhost.backend.base import declared
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import BDF
from devhost.backend.where import Block, Flag, Pattern, Range, Term, Text, Where
from devhost.planning.amounts import GREATEST, WHOLE, thousandths

from .diagnostics import Diagnostics, KeyPath, one_line, shown, suggest
from .document import Entry, Fields, Items, Node, Scalar

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


@frozen
class Bounds:
    """In ``Annotated``: the least and the greatest number, or length of a list."""

    low: int
    high: int


@frozen
class Form:
    """In ``Annotated[str, …]``: a pattern for the whole text, how a message describes it, and its hint."""

    pattern: str
    words: str
    hint: str = ""


@frozen
class Ranges:
    """In ``Annotated[int | str, …]``: a whole number, or text as :func:`read_ranges` takes it."""


@frozen
class Quantity:
    """In ``Annotated[int, …]``: a whole number that may be written as a quantity of Kubernetes."""


@frozen
class Mistaken:
    """In ``Annotated``: a text that is refused with its own hint, because people take it for a value."""

    text: str
    hint: str


def camel(name: str) -> str:
    """The YAML key of a field: ``driver_root`` → ``driverRoot``, ``class_`` → ``class``."""
    first, *rest = name.strip("_").split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


@lru_cache(maxsize=256)
def keys(cls: type) -> Mapping[str, tuple[dataclasses.Field[Any], Any]]:
    """The YAML keys of a dataclass, each with its field and its type. To evaluate the annotations takes long.

    Raises ``NameError`` if an annotation names something that its module does not have.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    return types.MappingProxyType(
        {camel(f.name): (f, hints[f.name]) for f in dataclasses.fields(cls) if f.init}
    )


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
        values = [spelled(value) or '""' for value in choices(wanted)]
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


_DECIMAL = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")


class _Wrong(Enum):
    WRONG = "wrong"


WRONG: Final = _Wrong.WRONG
"""A value that could not be read; the reason is among the diagnostics."""


def refuse(node: Node, wanted: Any, place: KeyPath, hint: str = "") -> Any:
    """Complains that ``node`` is no ``wanted``; gives :data:`WRONG`."""
    if not hint and isinstance(node, Scalar) and node.kind == "null":
        hint = "give it a value or remove the key"
    place.report(node, f"must be {noun(wanted)}, not {node}", hint)
    return WRONG


def read_text(node: Node, place: KeyPath) -> Any:
    """Text; what YAML takes for something else is refused with the advice to quote it."""
    if isinstance(node, Scalar) and node.kind == "str":
        return node.text
    quotable = isinstance(node, Scalar) and node.kind != "null"
    return refuse(node, str, place, f"put it in quotes: {shown(node.text)}" if quotable else "")  # type: ignore[union-attr]


def read_bool(node: Node, place: KeyPath) -> Any:
    """``true`` or ``false``; YAML 1.1's ``yes``, ``on`` and their opposites are refused."""
    if isinstance(node, Scalar) and node.kind == "bool" and node.text.lower() in ("true", "false"):
        return node.text.lower() == "true"
    hint = ""
    if isinstance(node, Scalar) and node.text.lower() in ("yes", "on", "y", "true"):
        hint = "write true"
    elif isinstance(node, Scalar) and node.text.lower() in ("no", "off", "n", "false"):
        hint = "write false"
    return refuse(node, bool, place, hint)


def read_int(node: Node, place: KeyPath) -> Any:
    """A whole number in plain decimals; YAML 1.1's octal, hexadecimal and base 60 are refused."""
    hint = ""
    if isinstance(node, Scalar):
        decimal = _DECIMAL.fullmatch(node.text) is not None
        if node.kind == "int" and decimal:
            return int(node.text)
        if node.kind == "int":
            hint = "write it in plain decimals: no leading 0, no 0x, no colons, at most 18 digits"
        elif decimal:
            hint = "remove the quotes"
    return refuse(node, int, place, hint)


def read_float(node: Node, place: KeyPath) -> Any:
    if isinstance(node, Scalar):
        if node.kind == "int" and _DECIMAL.fullmatch(node.text):
            return float(node.text)
        if node.kind == "float":
            with contextlib.suppress(ValueError):  # YAML's base 60 and `.inf` are not Python's
                number = float(node.text)
                if math.isfinite(number):
                    return number
    return refuse(node, float, place)


def read_path(node: Node, place: KeyPath) -> Any:
    text = read_text(node, place)
    if text is WRONG:
        return WRONG
    return Path(text) if text else refuse(node, Path, place, "it is empty")


NOT: Final = "not"
"""The key of a block whose value refuses devices."""

RANGE: Final = re.compile(r"\s*([0-9]{1,18})?\s*(-)?\s*([0-9]{1,18})?\s*")

_WILDCARD: Final = re.compile(r"[*?\[]")
_ODD_IN_NAMES: Final = re.compile(r"/|(?<=[\w.-])[|](?=[\w.-]+$)|[{](?=[\w.-]+,[\w.,-]+[}])")
_ODD_IN_PATHS: Final = re.compile(r"[|{}]|\\(?!x[0-9a-fA-F]{2})")
"""What no path has, and what means alternatives in a name; udevd writes characters as \\x and two digits."""
_SET: Final = re.compile(r"\[!?.[^\]]*\]")
_ALTERNATIVES: Final = re.compile(r"([^(){}|]*)[({]([^(){}]*)[)}]([^(){}|]*)")
_BEGINS_BDF: Final = re.compile(
    r"[0-9a-f]{0,8}|[0-9a-f]{4,8}:([0-9a-f]{0,2}|[0-9a-f]{2}:([0-9a-f]{0,2}|[0-9a-f]{2}\.[0-7]?))"
)
"""How a PCI address may begin. People omit the domain on machines with one; the kernel's always have it."""
_DIGITS: Final = re.compile(r"[0-9a-fA-F]+")


def read_where(node: Node, backend: str, attributes: Mapping[str, Attribute], place: KeyPath) -> Where:
    """The blocks of a ``where``; what is wrong is complained about and left out."""
    return _Selection(backend, attributes).where(node, place)


class _Selection:
    def __init__(self, backend: str, attributes: Mapping[str, Attribute]) -> None:
        self._backend = backend
        self._attributes = attributes
        self._revealing = [name for name, attribute in attributes.items() if attribute.reveals]

    def where(self, node: Node, place: KeyPath) -> Where:
        if isinstance(node, Fields):
            return (self._view(self._block(node, place)),) if node.entries else ()
        return tuple(map(self._view, self._blocks(node, place)))

    def _view(self, block: Block) -> Block:
        """The block with what it would have to name to see what devices inherited from their parts."""
        named = {term.attribute for term in block.terms}
        return (
            block
            if named.intersection(self._revealing)
            else replace(block, without=" or ".join(self._revealing))
        )

    def _blocks(self, node: Node, place: KeyPath) -> tuple[Block, ...]:
        if not isinstance(node, Items):
            place.report(node, f"must be a mapping of attributes, or a list of such, not {node}")
            return ()
        if not node.items:
            place.report(node, "an empty list can never match", "remove the key to match every device")
        blocks = []
        for n, item in enumerate(node.items):
            inner = place.item(n)
            if not isinstance(item, Fields):
                inner.report(item, f"must be a mapping of attributes, not {item}")
            elif not item.entries:
                inner.report(item, "an empty block matches every device", "remove it, or the whole list")
            else:
                blocks.append(self._block(item, inner))
        return tuple(blocks)

    def _block(self, node: Fields, place: KeyPath) -> Block:
        terms: list[Term] = []
        refuse: tuple[Block, ...] = ()
        for name, entry in node.entries.items():
            if name == NOT:
                refuse = self._refusals(entry.value, place.key(NOT))
            elif (attribute := declared(self._attributes, name)) is None:
                self._unknown(name, entry, place)
            else:
                patterns = _patterns(entry.value, attribute, place.key(name))
                terms.append(Term(name, patterns, attribute.also))
        return Block(tuple(terms), refuse)

    def _refusals(self, node: Node, place: KeyPath) -> tuple[Block, ...]:
        if isinstance(node, Fields) and node.entries:
            return (self._block(node, place),)
        if isinstance(node, Fields):
            place.report(node, "an empty block refuses every device", "remove it")
            return ()
        return self._blocks(node, place)

    def _unknown(self, name: str, entry: Entry, place: KeyPath) -> None:
        message = f"backend {self._backend} has no attribute {shown(name)}"
        hint = suggest(name, self._attributes, "attributes")
        if name.lower() in ("any", "or", "all", "and"):
            hint = "all keys of a block must hold; a list of blocks means any of them"
        place.diagnostics.add(entry.mark, place.path, message, hint)


def _patterns(node: Node, attribute: Attribute, place: KeyPath) -> tuple[Pattern, ...]:
    if not isinstance(node, Items):
        return _pattern(node, attribute, place)
    if not node.items:
        place.report(node, "an empty list can never match", "remove the key, or name a value")
    parts = (_pattern(item, attribute, place.item(n)) for n, item in enumerate(node.items))
    return tuple(pattern for part in parts for pattern in part)


def _pattern(node: Node, attribute: Attribute, place: KeyPath) -> tuple[Pattern, ...]:
    if not isinstance(node, Scalar):
        place.report(node, f"must be one value or a list of values, not {node}")
        return ()
    if attribute.type is bool:
        value = read_bool(node, place)
        return () if value is WRONG else (Flag(value),)
    if attribute.type is int:
        return read_ranges(node, place)
    return _text(node, attribute, place)


def _text(node: Scalar, attribute: Attribute, place: KeyPath) -> tuple[Pattern, ...]:
    text = read_text(node, place)
    if text is WRONG:
        return ()
    if not text:
        hint = 'a device without this attribute is matched by not: {…: "*"}'
        place.report(node, "empty text matches no device", hint)
        return ()
    pattern = Text(text, fold=attribute.hex)
    if problem := _odd_character(attribute, text) or _never(attribute, pattern):
        place.report(node, *problem)
        return ()
    if attribute.hex and (problem := _odd_id(str(attribute.example), pattern)):
        place.report(node, *problem)
        return ()
    if attribute.words and not any(map(pattern.matches, attribute.words)):
        what = f"the pattern {shown(text)} matches" if pattern.is_glob else f"{shown(text)} is"
        hint = suggest(text, attribute.words, "values")
        place.report(node, f"{what} none of the values that this attribute can have", hint)
        return ()
    return (pattern,)


def _never(attribute: Attribute, pattern: Text) -> tuple[str, str] | None:
    """Why no value of an attribute matches a pattern, and how to fix it; ``None`` if one may."""
    text, begins = pattern.pattern, attribute.begins
    fixed = text.removeprefix("^").removesuffix("$").replace(".*", "*").replace("\\", "")
    if begins and f"/{fixed}".startswith(begins):
        fixed = f"/{fixed}"
    elif begins and not fixed.startswith(("/", "*")):
        fixed = begins + fixed
    is_expression = text.startswith("^") and (begins or attribute.hex or text.endswith("$"))
    if is_expression or (begins and text.endswith("$")):
        return (
            f"{shown(text)} is a regular expression; a pattern is a glob for the whole value",
            f'write "{fixed}"',
        )
    if begins.startswith("/") and not {"", ".", ".."}.isdisjoint(text.split("/")[1:]):
        fixed = posixpath.normpath(fixed)
        fixed = fixed if fixed.startswith(begins) else f"{begins}*"
        return f'a path has no end "/" and no part "", "." or "..", {shown(text)} has', f'write "{fixed}"'
    literal = _WILDCARD.split(text, maxsplit=1)[0]
    if literal.startswith(begins) or (pattern.is_glob and begins.startswith(literal)):
        return None
    hint = f'write "{fixed}"' if fixed.startswith(begins) else ""
    return f"every value of this attribute begins with {begins}, {shown(text)} does not", hint


def _odd_character(attribute: Attribute, text: str) -> tuple[str, str] | None:
    """What a pattern has that no value of an attribute has, and how to fix it."""
    is_path = attribute.begins.startswith("/")
    if not (is_path or attribute.plain or attribute.hex):
        return None
    if text != (bare := text.strip()):
        what = f"no value of this attribute begins or ends with white space, {shown(text)} does"
        return what, f"write {shown(bare)}" if bare else ""
    if "[" in _SET.sub("", text):
        return f"the [ in {shown(text)} has no ]", f"write {shown(text + ']')}" if "]" not in text else ""
    if (odd := (_ODD_IN_PATHS if is_path else _ODD_IN_NAMES).search(text)) is None:
        return None
    if odd[0] == "/":
        hint = f"write {shown(posixpath.basename(text.rstrip('/')))}"
    elif odd[0] == "\\":
        hint = f"write {shown(text.replace(f'{odd[0]}d', '[0-9]').replace(odd[0], ''))}"
    else:
        parts = _ALTERNATIVES.fullmatch(text)
        begin, middle, end = parts.groups() if parts else ("", text, "")
        hint = f"write [{', '.join(shown(begin + one + end) for one in re.split('[|,]', middle))}]"
    return f"no value of this attribute contains {odd[0]}, {shown(text)} does", hint


def _odd_id(example: str, pattern: Text) -> tuple[str, str] | None:
    """What is wrong with an id that is not spelled as the attribute's example is, and how to fix it."""
    text = pattern.pattern
    prefixed = example.lower().startswith("0x")
    if text[:2].lower() == "0x" and not prefixed:
        return f"the ids of this attribute have no 0x, {shown(text)} does", "leave out the 0x"
    if prefixed and _DIGITS.fullmatch(text):
        return f"the ids of this attribute begin with 0x, {shown(text)} does not", f'write "0x{text}"'
    if not pattern.is_glob and len(example) == 4 and _DIGITS.fullmatch(example):  # of PCI and USB
        if not _DIGITS.fullmatch(text):
            return f"{shown(text)} is no id of four hexadecimal digits", f'an example is "{example}"'
        if len(text) != 4:
            hint = f'write "{text:0>4}"' if len(text) < 4 else ""
            return f"the ids of this attribute have four digits, {shown(text)} has {len(text)}", hint
    bare = text.replace("-", "")
    if bare != text and "-" not in example and _DIGITS.fullmatch(bare) and len(bare) == len(example):
        return f"the ids of this attribute have no hyphens, {shown(text)} does", f'write "{bare}"'
    return _odd_address(pattern) if BDF.fullmatch(example.lower()) else None


def _odd_address(pattern: Text) -> tuple[str, str] | None:
    """What a PCI address lacks, and how to fix it."""
    text = pattern.pattern.lower()
    fixed = text if _BEGINS_BDF.fullmatch(literal := _WILDCARD.split(text, maxsplit=1)[0]) else f"0000:{text}"
    if fixed == text and (pattern.is_glob or BDF.fullmatch(text)):
        return None
    if not pattern.is_glob and BDF.fullmatch(f"{fixed}.0"):
        fixed += ".*"
    known = BDF.fullmatch(fixed.replace("*", "0")) or _BEGINS_BDF.fullmatch(f"0000:{literal}")
    return (
        f"{shown(pattern.pattern)} is no PCI address with domain and function",
        f'write "{fixed}"' if known else "",
    )


def read_ranges(node: Scalar, place: KeyPath, *, is_condition: bool = True) -> tuple[Range, ...]:
    """A whole number, or text such as ``0-3,6,8-``. A condition of ``where`` is about an attribute."""
    if node.kind != "str":
        value = read_int(node, place)
        if value is not WRONG and value < 0:
            hint = 'if the kernel reports -1, the device has no such attribute: not: {…: "0-"}'
            if is_condition:
                place.report(node, f"numbers count from 0, {value} matches no device", hint)
            else:
                place.report(node, f"must be 0 or more, not {value}", f'for at most {-value}: "0-{-value}"')
        return () if value is WRONG else (Range(value, value),)
    ranges = []
    for part in node.text.split(","):
        found = RANGE.fullmatch(part)
        if found is None or not (found[1] or found[3]) or (found[3] and not found[2]):
            place.report(
                node, f"{shown(node.text)} is not a range of whole numbers", 'write it as "0-3,6,8-"'
            )
            return ()
        low = int(found[1]) if found[1] else None
        high = int(found[3]) if found[3] else None if found[2] else low
        if low is not None and high is not None and low > high:
            place.report(node, f"the range {shown(part.strip())} is empty", f'turn it round: "{high}-{low}"')
            return ()
        ranges.append(Range(low, high))
    return tuple(ranges)


def read(node: Node, wanted: Any, place: KeyPath) -> Any:
    """The value that ``node`` holds, as type ``wanted``; :data:`WRONG` after complaining.

    Raises ``TypeError`` if ``wanted`` is a type that YAML cannot carry, which is its author's mistake.
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


def _read_scalar(node: Node, wanted: Any, place: KeyPath) -> Any:
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


def _read_choice(node: Node, wanted: Any, place: KeyPath) -> Any:
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


def _read_annotated(node: Node, wanted: Any, notes: tuple[Any, ...], place: KeyPath) -> Any:
    for note in notes:
        if isinstance(note, Conditions):
            return read_where(node, note.backend, note.attributes, place)
        if isinstance(note, Ranges) and not (isinstance(node, Scalar) and node.kind in ("int", "str")):
            missing = isinstance(node, Scalar) and node.kind == "null"
            hint = "give it a value or remove the key" if missing else 'write it as 8, "4-8" or "1-"'
            place.report(node, f"must be a whole number or a range of them, not {node}", hint)
            return WRONG
        if isinstance(note, Quantity):
            return _read_quantity(node, place)
        if isinstance(note, Mistaken) and isinstance(node, Scalar) and node.text == note.text:
            return refuse(node, wanted, place, note.hint)
        bare = isinstance(node, Scalar) and node.kind not in ("str", "null")
        if isinstance(note, Form) and bare and not re.fullmatch(note.pattern, node.text):  # type: ignore[union-attr]
            place.report(node, f"must be {note.words}, not {node}", note.hint)  # quotes would not help
            return WRONG
    value = read(node, wanted, place)
    for bounds in notes:
        if isinstance(bounds, Form) and value is not WRONG and not re.fullmatch(bounds.pattern, value):
            place.report(node, f"must be {bounds.words}, not {shown(value)}", bounds.hint)
            return WRONG
        if value is WRONG or not isinstance(bounds, Bounds):
            continue
        amount, what = (value, "") if isinstance(value, (int, float)) else (len(value), "members")
        if not bounds.low <= amount <= bounds.high:
            span = f"from {bounds.low} to {bounds.high} {what}".rstrip()
            place.report(node, f"must be {span}, not {amount}")
            return WRONG
    return value


def _read_quantity(node: Node, place: KeyPath) -> Any:
    text = node.text if isinstance(node, Scalar) and node.kind in ("int", "str") else ""
    amount = thousandths(text) if re.fullmatch(WHOLE, text) else None
    if amount is None:
        place.report(node, f"must be a whole quantity, not {node}", "write it as 10, 256Mi or 4Gi")
        return WRONG
    if amount // 1000 > GREATEST:
        place.report(node, f"must be at most {GREATEST}, which is less than 8Ei, not {node}")
        return WRONG
    return amount // 1000


def _read_list(node: Node, origin: Any, args: tuple[Any, ...], place: KeyPath) -> Any:
    if origin is tuple and args[-1:] != (...,):
        raise TypeError("only tuple[T, ...] can be read, not a tuple of fixed length")
    inner = args[0] if args else str
    if not isinstance(node, Items):
        hint = ""
        if isinstance(node, Scalar) and node.kind == "null":
            hint = "write [] for an empty list"
        elif isinstance(node, Scalar) and _takes(node, inner):
            hint = f"put it in brackets: [{shown(node.text)[1:-1]}]"
        if isinstance(node, Fields) and node.entries:
            hint = 'begin each member with "- "'
        return refuse(node, list, place, hint)
    values = [read(item, inner, place.item(n)) for n, item in enumerate(node.items)]
    return WRONG if WRONG in values else LISTS[origin](values)


def _read_mapping(node: Node, args: tuple[Any, ...], place: KeyPath) -> Any:
    if not isinstance(node, Fields):
        return refuse(node, dict, place, _empty_mapping(node))
    inner = args[1] if args else str
    values = {key: read(entry.value, inner, place.key(key)) for key, entry in node.entries.items()}
    return WRONG if WRONG in values.values() else values


def _empty_mapping(node: Node) -> str:
    if isinstance(node, Items) and any(isinstance(one, Fields) for one in node.items):
        return 'remove the "- " before its keys'
    return "write {} for an empty mapping" if isinstance(node, Scalar) and node.kind == "null" else ""


def _read_union(node: Node, wanted: tuple[Any, ...], place: KeyPath) -> Any:
    """The first member that takes the node; if none does, the diagnostics of the one that came nearest."""
    others = [member for member in wanted if member is not type(None)]
    if len(others) == 1 and not (isinstance(node, Scalar) and node.kind == "null"):
        return read(node, others[0], place)  # there is nothing to choose between
    nearest: Diagnostics | None = None
    hint = ""
    for member in wanted:
        trial = Diagnostics(place.diagnostics.file)
        value = read(node, member, KeyPath(trial, place.path))
        if value is not WRONG:
            return value
        # a diagnostic about something inside the node shows that its kind was right
        inside = any(mark != node.mark or path != place.path for mark, path, _, _ in trial.found)
        inside |= isinstance(node, Fields) and noun(member) == "a mapping"
        hint = hint or trial.found[0][3]
        if inside and (nearest is None or len(trial.found) < len(nearest.found)):
            nearest = trial
    if nearest is None:
        return refuse(node, typing.Union[wanted], place, hint)  # noqa: UP007 - a tuple known at run time
    for one in nearest.found:
        place.diagnostics.add(*one)
    return WRONG


def read_fields(node: Node, cls: type, place: KeyPath) -> dict[str, Any]:
    """What a mapping gives for the fields of a dataclass, by field name: good values only, no defaults.

    Every key that is unknown, missing or wrong has been complained about.
    """
    if not isinstance(node, Fields):
        refuse(node, dict, place, _as_mapping(node, cls))
        return {}
    known = keys(cls)
    values: dict[str, Any] = {}
    for key, entry in node.entries.items():
        if key not in known:
            hint = getattr(cls, "former_keys", {}).get(key, "") or suggest(key, known, "keys")
            place.diagnostics.add(entry.mark, place.path, f"unknown key {shown(key)}", hint)
            continue
        field, wanted = known[key]
        value = read(entry.value, wanted, place.key(key))
        if value is not WRONG:
            values[field.name] = value
    for key, (field, _) in known.items():
        if required(field) and key not in node.entries:
            example = field.metadata.get("example")
            hint = "" if example is None else f"for example {key}: {example}"
            place.report(node, f"the key {key} is required", hint)
    return values


def _as_mapping(node: Node, cls: type) -> str:
    """How to write a value as a mapping: with the one key that it needs, or the first, if that takes it."""
    known = keys(cls)
    needed = {key: field.metadata.get("example") for key, (field, _) in known.items() if required(field)}
    key, *others = needed or [*known][:1]
    if isinstance(node, Scalar) and node.kind != "null" and not others and _takes(node, known[key][1]):
        return f"write {{{key}: {shown(node.text)[1:-1]}}}"
    hint = _empty_mapping(node)
    if not needed or isinstance(node, Items):
        return hint
    return (
        ""
        if None in needed.values()
        else f"write {{{', '.join(f'{key}: {one}' for key, one in needed.items())}}}"
    )


def _takes(node: Node, wanted: Any) -> bool:
    """Whether a value is known to be right there."""
    return wanted != Raw and read(node, wanted, KeyPath(Diagnostics(""))) is not WRONG


def read_dataclass(node: Node, cls: type, place: KeyPath) -> Any:
    """A dataclass from a mapping. An OptionError of its ``__post_init__`` becomes a diagnostic at its key."""
    before = len(place.diagnostics.found)
    values = read_fields(node, cls, place)
    if len(place.diagnostics.found) > before:
        return WRONG
    return agreed(lambda: cls(**values), node, cls.__name__, place)


def agreed(call: Callable[[], Any], node: Node, who: str, place: KeyPath) -> Any:
    """The result of a call; WRONG after an OptionError, which becomes a diagnostic at its key."""
    try:
        return call()
    except OptionError as error:
        hint = error.hint or (suggest(error.word, error.known, "words") if error.known else "")
        complain(node, error.key, place, error.message, hint)
    except ValueError as error:
        place.report(node, str(error) or f"is refused by {who}")
    return WRONG


def complain(node: Node, key: str, place: KeyPath, message: str, hint: str = "") -> None:
    """Reports what is wrong with the value at a path below ``node``, see :func:`find`."""
    at, where = find(node, key, place)
    where.report(at, message, hint)


def find(node: Node, key: str, place: KeyPath) -> tuple[Node, KeyPath]:
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
