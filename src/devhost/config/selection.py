"""``where`` in the YAML → conditions on attributes, by the types that the backend declares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from devhost.backend import Attribute
from devhost.backend.where import Block, Flag, Pattern, Range, Term, Text, Where

from .diagnostics import Place, shown, suggest
from .nodes import Entry, Fields, Items, Node, Scalar
from .scalar import WRONG, read_bool, read_int, read_text

NOT: Final = "not"
"""The key of a block whose value refuses devices."""

RANGE: Final = re.compile(r"\s*([0-9]{1,18})?\s*(-)?\s*([0-9]{1,18})?\s*")

_IN_DOMAIN: Final = re.compile(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
"""A PCI address as people write it on machines with one domain; the kernel's always have that."""
_DIGITS: Final = re.compile(r"[0-9a-fA-F]+")


def declared(attributes: Mapping[str, Attribute], name: str) -> Attribute | None:
    """The declaration of attribute ``name``: its own, or that of the longest family (``ID_*``) it is in."""
    if name in attributes and not name.endswith("*"):
        return attributes[name]
    families = (f for f in attributes if f.endswith("*") and name.startswith(f[:-1]) and len(name) >= len(f))
    longest = max(families, key=len, default=None)
    return None if longest is None or name.endswith("*") else attributes[longest]


def read_where(node: Node, backend: str, attributes: Mapping[str, Attribute], place: Place) -> Where:
    """The blocks of a ``where``; what is wrong is complained about and left out."""
    return _Selection(backend, attributes).where(node, place)


class _Selection:
    def __init__(self, backend: str, attributes: Mapping[str, Attribute]) -> None:
        self._backend = backend
        self._attributes = attributes
        self._revealing = [name for name, attribute in attributes.items() if attribute.reveals]

    def where(self, node: Node, place: Place) -> Where:
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

    def _blocks(self, node: Node, place: Place) -> tuple[Block, ...]:
        if not isinstance(node, Items):
            place.complain(node, f"must be a mapping of attributes, or a list of such, not {node}")
            return ()
        if not node.items:
            place.complain(node, "an empty list can never match", "remove the key to match every device")
        blocks = []
        for n, item in enumerate(node.items):
            inner = place.item(n)
            if not isinstance(item, Fields):
                inner.complain(item, f"must be a mapping of attributes, not {item}")
            elif not item.entries:
                inner.complain(item, "an empty block matches every device", "remove it, or the whole list")
            else:
                blocks.append(self._block(item, inner))
        return tuple(blocks)

    def _block(self, node: Fields, place: Place) -> Block:
        terms: list[Term] = []
        refuse: tuple[Block, ...] = ()
        for name, entry in node.entries.items():
            if name == NOT:
                refuse = self._refusals(entry.value, place.key(NOT))
            elif (attribute := declared(self._attributes, name)) is None:
                self._unknown(name, entry, place)
            else:
                terms.append(Term(name, _patterns(entry.value, attribute, place.key(name))))
        return Block(tuple(terms), refuse)

    def _refusals(self, node: Node, place: Place) -> tuple[Block, ...]:
        if isinstance(node, Fields) and node.entries:
            return (self._block(node, place),)
        if isinstance(node, Fields):
            place.complain(node, "an empty block refuses every device", "remove it")
            return ()
        return self._blocks(node, place)

    def _unknown(self, name: str, entry: Entry, place: Place) -> None:
        message = f"backend {self._backend} has no attribute {shown(name)}"
        hint = suggest(name, self._attributes, "attributes")
        if name.lower() in ("any", "or", "all", "and"):
            hint = "all keys of a block must hold; a list of blocks means any of them"
        place.complaints.add(entry.mark, place.path, message, hint)


def _patterns(node: Node, attribute: Attribute, place: Place) -> tuple[Pattern, ...]:
    if not isinstance(node, Items):
        return _pattern(node, attribute, place)
    if not node.items:
        place.complain(node, "an empty list can never match", "remove the key, or name a value")
    parts = (_pattern(item, attribute, place.item(n)) for n, item in enumerate(node.items))
    return tuple(pattern for part in parts for pattern in part)


def _pattern(node: Node, attribute: Attribute, place: Place) -> tuple[Pattern, ...]:
    if not isinstance(node, Scalar):
        place.complain(node, f"must be one value or a list of values, not {node}")
        return ()
    if attribute.type is bool:
        value = read_bool(node, place)
        return () if value is WRONG else (Flag(value),)
    if attribute.type is int:
        return _ranges(node, place)
    return _text(node, attribute, place)


def _text(node: Scalar, attribute: Attribute, place: Place) -> tuple[Pattern, ...]:
    text = read_text(node, place)
    if text is WRONG:
        return ()
    if not text:
        hint = 'a device without this attribute is matched by not: {…: "*"}'
        place.complain(node, "empty text matches no device", hint)
        return ()
    pattern = Text(text, fold=attribute.hex)
    if attribute.hex and (problem := _odd_id(str(attribute.example), text)):
        place.complain(node, *problem)
        return ()
    if attribute.words and not any(map(pattern.matches, attribute.words)):
        what = f"the pattern {shown(text)} matches" if pattern.is_glob else f"{shown(text)} is"
        hint = suggest(text, attribute.words, "values")
        place.complain(node, f"{what} none of the values that this attribute can have", hint)
        return ()
    return (pattern,)


def _odd_id(example: str, text: str) -> tuple[str, str] | None:
    """What is wrong with an id that is not spelled as the attribute's example is, and how to mend it."""
    prefixed = example.lower().startswith("0x")
    if text[:2].lower() == "0x" and not prefixed:
        return f"the ids of this attribute have no 0x, {shown(text)} does", "leave out the 0x"
    if prefixed and _DIGITS.fullmatch(text):
        return f"the ids of this attribute begin with 0x, {shown(text)} does not", f'write "0x{text}"'
    bare = text.replace("-", "")
    if bare != text and "-" not in example and _DIGITS.fullmatch(bare) and len(bare) == len(example):
        return f"the ids of this attribute have no hyphens, {shown(text)} does", f'write "{bare}"'
    if _IN_DOMAIN.fullmatch(example.partition(":")[2]) and _IN_DOMAIN.fullmatch(text.lower()):
        return f"{shown(text)} lacks the domain of a PCI address", f'write "0000:{text}"'
    return None


def _ranges(node: Scalar, place: Place) -> tuple[Pattern, ...]:
    """A whole number, or text such as ``0-3,6,8-``."""
    if node.kind != "str":
        value = read_int(node, place)
        if value is not WRONG and value < 0:
            hint = 'where the kernel says -1 a device has no such attribute: not: {…: "0-"}'
            place.complain(node, f"numbers count from 0, {value} matches no device", hint)
        return () if value is WRONG else (Range(value, value),)
    ranges = []
    for part in node.text.split(","):
        found = RANGE.fullmatch(part)
        if found is None or not (found[1] or found[3]) or (found[3] and not found[2]):
            place.complain(
                node, f"{shown(node.text)} is not a range of whole numbers", 'write it as "0-3,6,8-"'
            )
            return ()
        low = int(found[1]) if found[1] else None
        high = int(found[3]) if found[3] else None if found[2] else low
        if low is not None and high is not None and low > high:
            place.complain(
                node, f"the range {shown(part.strip())} is empty", f'turn it round: "{high}-{low}"'
            )
            return ()
        ranges.append(Range(low, high))
    return tuple(ranges)
