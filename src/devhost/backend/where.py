"""Conditions on attributes: the meaning of ``where`` in the YAML, compiled once and explained on demand.

A :class:`Block` holds if all its terms hold and none of its ``refuse`` blocks does. A ``where`` is a tuple of
blocks, and selects a device if any of them holds (an empty tuple selects every device). An attribute that a
device does not have matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import translate
from functools import lru_cache
from operator import itemgetter
from typing import Generic, TypeVar

from devhost.backend.errors import cut

from .frozen import frozen
from .model import PURPOSE, AttributeValue

_GLOB = re.compile(r"[*?\[]")
_Match = Callable[[str], object]
T = TypeVar("T")

_LONGEST = 80
"""Characters of a value that a reason quotes; a sysfs file may have 4096."""


@frozen
class Text:
    """A string or glob (``*``, ``?``, ``[…]``); ``fold`` compares hex ids case-insensitively."""

    pattern: str
    fold: bool = False

    @property
    def is_glob(self) -> bool:
        return _GLOB.search(self.pattern) is not None

    def matches(self, value: AttributeValue) -> bool:
        if isinstance(value, str):
            return self._one(value)
        return isinstance(value, tuple) and any(map(self._one, value))

    def names(self, names: AttributeValue) -> bool:
        """Whether it matches one of these paths; a wildcard matches no ``/``."""
        depth = self.pattern.count("/")
        return isinstance(names, tuple) and any(one.count("/") == depth and self._one(one) for one in names)

    def _one(self, value: str) -> bool:
        if self.fold:
            value = value.lower()
        return bool(_matcher(self.pattern.lower() if self.fold else self.pattern)(value))

    def __str__(self) -> str:
        return self.pattern


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> _Match:
    if _GLOB.search(pattern) is None:
        return pattern.__eq__
    return re.compile(translate(pattern)).match


@frozen
class Range:
    """Integers from ``low`` to ``high`` inclusive; ``None`` means no bound."""

    low: int | None
    high: int | None

    def matches(self, value: AttributeValue) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.low == self.high:
            return str(self.low)
        return f"{'' if self.low is None else self.low}-{'' if self.high is None else self.high}"


@frozen
class Flag:
    """Exactly true or false."""

    value: bool

    def matches(self, value: AttributeValue) -> bool:
        return value is self.value

    def __str__(self) -> str:
        return "true" if self.value else "false"


Pattern = Text | Range | Flag


@frozen
class Term:
    """One key of a block: the attribute must match any of the patterns.

    ``also`` is the attribute with further names of the same thing; empty if there is none
    (:class:`devhost.backend.Attribute`).
    """

    attribute: str
    patterns: tuple[Pattern, ...]
    also: str = ""

    def holds(self, attributes: Mapping[str, AttributeValue]) -> bool:
        value = attributes.get(self.attribute)
        if value is None:
            return False
        for pattern in self.patterns:
            if pattern.matches(value):
                return True
        if self.also and (names := attributes.get(self.also)):
            return any(isinstance(pattern, Text) and pattern.names(names) for pattern in self.patterns)
        return False

    @property
    def wanted(self) -> str:
        """The patterns in words: ``a or b``."""
        return " or ".join(map(str, self.patterns))

    def __str__(self) -> str:
        return f"{self.attribute}: {self.wanted}"


@frozen
class Block:
    """A mapping in ``where``: all ``terms`` hold, and no block of ``refuse`` (the key ``not``) does.

    ``without`` is the attribute that the block would have to name to see what a device inherited from its
    parts (:attr:`devhost.backend.model.Device.inherited`); empty if it sees everything.
    """

    terms: tuple[Term, ...] = ()
    refuse: tuple[Block, ...] = ()
    without: str = ""

    def holds(self, attributes: Mapping[str, AttributeValue]) -> bool:
        for term in self.terms:
            if not term.holds(attributes):
                return False
        for block in self.refuse:
            if block.holds(attributes):
                return False
        return True

    def sees(
        self, attributes: Mapping[str, AttributeValue], inherited: Collection[str]
    ) -> Mapping[str, AttributeValue]:
        """The attributes of a device that count for this block."""
        return _own(attributes, inherited) if inherited and self.without else attributes

    def shortfall(self, attributes: Mapping[str, AttributeValue], key: str) -> str | None:
        """See :func:`shortfall`."""
        for term in self.terms:
            if not term.holds(attributes):
                return f"{_found(term, attributes)}, {key} wants {term.wanted}"
        for block in self.refuse:
            if block.holds(attributes):
                found = " and ".join(_found(term, attributes) for term in block.terms)
                return f"{found or 'the device does not meet it'}, {key} refuses {{{block}}}"
        return None

    def unmet(self, attributes: Mapping[str, AttributeValue], most: int) -> list[Term | Block] | None:
        """The terms that do not hold and the ``refuse`` blocks that do; ``None`` if more than ``most``."""
        found: list[Term | Block] = []
        for term in self.terms:
            if not term.holds(attributes):
                if len(found) == most:
                    return None
                found.append(term)
        for block in self.refuse:
            if block.holds(attributes):
                if len(found) == most:
                    return None
                found.append(block)
        return found

    def objection(
        self, attributes: Mapping[str, AttributeValue], inherited: Collection[str] = ()
    ) -> str | None:
        """Why this block does not hold, for a user; ``None`` if it does."""
        every, attributes = attributes, self.sees(attributes, inherited)
        for term in self.terms:
            if not term.holds(attributes):
                if term.holds(every):
                    return f"{term.attribute} of this device counts only in a block that names {self.without}"
                value = every.get(term.attribute)
                has = "it has none" if value is None else f"it is {shortened(value)}"
                return f"{term.attribute} must be {term.wanted}, {has}"
        for block in self.refuse:
            if block.holds(attributes):
                return f"refused by not: {{{block}}}"
        return None

    def attributes(self) -> frozenset[str]:
        """The names of all attributes that this block depends on."""
        names = {term.attribute for term in self.terms} | {term.also for term in self.terms if term.also}
        return frozenset(names).union(*(block.attributes() for block in self.refuse))

    def __str__(self) -> str:
        parts = [str(term) for term in self.terms]
        parts += [f"not: {{{block}}}" for block in self.refuse]
        return ", ".join(parts)


Where = tuple[Block, ...]


def holds(where: Where, attributes: Mapping[str, AttributeValue]) -> bool:
    """Whether ``where`` selects a device with these attributes."""
    for block in where:
        if block.holds(attributes):
            return True
    return not where


def selected(
    where: Where, attributes: Mapping[str, AttributeValue], inherited: Collection[str] = ()
) -> Mapping[str, AttributeValue] | None:
    """The attributes of a device that count for an entry which selects it; ``None`` if it does not.

    Args:
        inherited: names of the attributes that count only for a block which sees them
            (:attr:`devhost.backend.model.Device.inherited`).
    """
    if not inherited:
        return attributes if holds(where, attributes) else None
    views = [view for block in where if block.holds(view := block.sees(attributes, inherited))]
    if not where:
        views.append(_own(attributes, inherited))
    return max(views, key=len, default=None)


def _own(
    attributes: Mapping[str, AttributeValue], inherited: Collection[str]
) -> Mapping[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if name not in inherited}


def names_purpose(
    where: Where, attributes: Mapping[str, AttributeValue], inherited: Collection[str] = ()
) -> bool:
    """Whether a block that selects a device with these attributes has a condition on ``purpose``.

    A condition in ``not`` does not count. ``inherited`` as in :func:`selected`.
    """
    return any(_names_purpose(block) and block.holds(block.sees(attributes, inherited)) for block in where)


def may_hold(where: Where, known: Mapping[str, AttributeValue]) -> bool:
    """Whether ``where`` could select a device of which only the attributes ``known`` are known."""
    for block in where:
        unmet = block.unmet(known, len(block.terms) + len(block.refuse)) or ()
        if all(isinstance(one, Term) and one.attribute not in known for one in unmet):
            return True
    return not where


def objection(
    where: Where, attributes: Mapping[str, AttributeValue], inherited: Collection[str] = ()
) -> str | None:
    """Why ``where`` does not select a device with these attributes; ``None`` if it does.

    Args:
        inherited: see :func:`selected`.
    """
    if selected(where, attributes, inherited) is not None:
        return None
    if len(where) == 1:
        return where[0].objection(attributes, inherited)
    return "; ".join(
        f"block {n}: {block.objection(attributes, inherited)}" for n, block in enumerate(where, 1)
    )


def shortfall(where: Where, attributes: Mapping[str, AttributeValue], key: str) -> str | None:
    """The attribute whose value ``where`` does not accept, with both values; ``None`` if a block holds.

    Args:
        key: the configuration key of ``where``, for the text.
    """
    if holds(where, attributes):
        return None
    reasons = [reason for block in where if (reason := block.shortfall(attributes, key))]
    return reasons[0] if len(reasons) == 1 else "; ".join(dict.fromkeys(reasons))


def _found(term: Term, attributes: Mapping[str, AttributeValue]) -> str:
    value = attributes.get(term.attribute)
    if value is None:
        return f"the device has no {term.attribute}"
    return f"{term.attribute} is {quoted(' '.join(value.split()) if isinstance(value, str) else value)}"


def covers(wide: Where, narrow: Where) -> bool:
    """Whether ``wide`` certainly selects every device that ``narrow`` selects.

    True is certain; false may also mean that the conditions do not allow a conclusion.
    """
    if not wide:
        return True
    if not narrow:
        return any(not block.terms and not block.refuse for block in wide)
    for inner in narrow:
        for outer in wide:
            if _block_covers(outer, inner):
                break
        else:
            return False
    return True


class Covering(Generic[T]):
    """Finds those of many blocks that cover another one, without a comparison with each of them."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], list[tuple[int, Block, frozenset[Block], T]]] = {}
        self._count = 0

    def add(self, block: Block, owner: T) -> None:
        held = (self._count, block, frozenset(block.refuse), owner)
        self._count += 1
        terms = block.terms or (Term("", (Flag(True),)),)
        keys = [
            {(one.attribute, key) for pattern in one.patterns for key in _accepts(pattern)} for one in terms
        ]
        # the condition that the fewest blocks have so far: often one is common to all, such as the vendor
        for key in min(keys, key=lambda each: max(len(self._by_key.get(key, ())) for key in each)):
            self._by_key.setdefault(key, []).append(held)

    def owners(self, narrow: Block, *, by_purpose: bool = False) -> Iterator[T]:
        """The owners of the blocks that certainly hold wherever ``narrow`` does, the first added first.

        Args:
            by_purpose: whether a device with a special purpose needs a block that names it, as in an entry.
        """
        refuse, is_special = frozenset(narrow.refuse), by_purpose and _names_purpose(narrow)
        keys = [("", "")]
        keys += [(term.attribute, key) for term in narrow.terms for key in _asks(term.patterns[0])]
        found = (one for key in keys for one in self._by_key.get(key, ()) if one[2] <= refuse)
        for _, block, _, owner in sorted(found, key=itemgetter(0)):
            if _block_covers(block, narrow) and (not is_special or _names_purpose(block)):
                yield owner


def _accepts(pattern: Pattern) -> Iterator[str]:
    """The keys of a pattern, of which :func:`_asks` has one for each that it covers."""
    if not isinstance(pattern, Text):
        yield ""
        return
    yield f"={pattern.pattern.lower()}"
    if pattern.is_glob:
        yield f"^{_GLOB.split(pattern.pattern, maxsplit=1)[0].lower()}"


def _asks(pattern: Pattern) -> Iterator[str]:
    if not isinstance(pattern, Text):
        yield ""
        return
    text = pattern.pattern.lower()
    yield f"={text}"
    yield from (f"^{text[:end]}" for end in range(1 if pattern.is_glob else len(text) + 1))


def _block_covers(wide: Block, narrow: Block) -> bool:
    if wide.without and not narrow.without and (wide.terms or wide.refuse):
        return False  # what narrow sees of a device may be inherited, and then wide does not see it
    for term in wide.terms:
        for other in narrow.terms:
            if other.attribute == term.attribute:
                break
        else:
            return False
        for pattern in other.patterns:
            for candidate in term.patterns:
                if _pattern_covers(candidate, pattern):
                    break
            else:
                return False
    for block in wide.refuse:
        if block not in narrow.refuse:
            return False
    return True


def _names_purpose(block: Block) -> bool:
    for term in block.terms:
        if term.attribute == PURPOSE:
            return True
    return False


def _pattern_covers(wide: Pattern, narrow: Pattern) -> bool:
    if isinstance(wide, Text) and isinstance(narrow, Text):
        if wide.pattern == "*" or wide == narrow:
            return True
        # a folding pattern also takes spellings that one which does not fold refuses
        return (wide.fold or not narrow.fold) and wide.matches(narrow.pattern) and not narrow.is_glob
    if isinstance(wide, Range) and isinstance(narrow, Range):
        low = wide.low is None or (narrow.low is not None and narrow.low >= wide.low)
        high = wide.high is None or (narrow.high is not None and narrow.high <= wide.high)
        return low and high
    return wide == narrow


def quoted(value: AttributeValue) -> str:
    """An attribute's value as a reason quotes it: shortened, and text in quotation marks."""
    text = shortened(value)
    return f'"{text}"' if isinstance(value, str) else text


def shortened(value: AttributeValue) -> str:
    """The beginning of an attribute's value, for a reason."""
    return cut(show(value), _LONGEST)


def show(value: AttributeValue) -> str:
    """An attribute's value as a user would write it in YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    return str(value)
