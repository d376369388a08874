"""Converts regular expressions of Go and Rust to the globs of ``where``.

A glob has ``*``, ``?`` and ``[…]`` and matches the whole value. An expression without an exact equivalent is
refused with the reason.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

MOST = 64
"""The maximum number of globs for one expression."""

LONGEST_RUN = 4
"""The maximum number of repetitions of a class if ``*`` or ``+`` is not at the end of the expression."""

_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": "\t\n\f\r "}
_SPECIAL = "*?["


class Inexpressible(ValueError):
    """The expression is valid, but no globs are equivalent."""


class Invalid(ValueError):
    """It is not a regular expression."""


@dataclass(frozen=True, slots=True)
class Globs:
    """Any of ``some`` and none of ``never`` must match. ``is_bounded``: longer repetitions do not match."""

    some: tuple[str, ...]
    never: tuple[str, ...] = ()
    is_bounded: bool = False


@dataclass(frozen=True, slots=True)
class _Set:
    """One character: in ``body`` (as between brackets), with ``negated`` not in it, with ``any`` each one."""

    body: str
    negated: bool = False
    any: bool = False

    @property
    def glob(self) -> str:
        if self.any:
            return "?"
        if not self.negated and len(self.body) == 1:
            return f"[{self.body}]" if self.body in _SPECIAL else self.body
        return f"[{'!' if self.negated else ''}{self.body}]"

    @property
    def others(self) -> str:
        """A glob for one character outside the set."""
        return replace(self, negated=not self.negated).glob if len(self.body) > 1 else f"[!{self.body}]"


@dataclass(frozen=True, slots=True)
class _Run:
    """Any number of characters of a set."""

    set: _Set


_Item = _Set | _Run | str
"""``^`` and ``$`` are the anchors."""
_Sequence = tuple[_Item, ...]


def globs(expression: str, *, whole: bool = False) -> list[Globs]:
    """The globs that match the same values as the expression.

    Args:
        expression: matches anywhere in the value.
        whole: the expression must match the whole value.

    Raises:
        Inexpressible: no globs match the same.
        Invalid: it is no regular expression.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of [[:alpha:]], which Go supports
        try:
            re.compile(re.sub(r"\(\?P?<\w+>", "(", expression.replace(r"\z", "$").replace(r"\A", "^")))
        except re.error as error:
            raise Invalid(str(error)) from None
    parser = _Parser(expression)
    plain: dict[str, None] = {}
    bounded: dict[str, None] = {}
    others: list[Globs] = []
    for sequence in parser.all():
        items = _anchored(sequence, whole=whole)
        if items is None:
            continue
        for one in _globs(items):
            if one.never:
                others.append(one)
            else:
                (bounded if one.is_bounded else plain).update(dict.fromkeys(one.some))
    found = [Globs(tuple(plain))] if plain else []
    found += [Globs(tuple(bounded), is_bounded=True)] if bounded else []
    found += others
    if sum(len(one.some) for one in found) > MOST:
        raise Inexpressible(f"it needs more than {MOST} globs")
    return found


def _anchored(sequence: _Sequence, *, whole: bool) -> _Sequence | None:
    """The sequence without anchors, open at the ends without one; ``None`` if it can never match."""
    rest = _Run(_Set("", any=True))
    items = list(sequence)
    starts = whole
    while items and items[0] == "^":
        del items[0]
        starts = True
    ends = whole
    while items and items[-1] == "$":
        del items[-1]
        ends = True
    if "^" in items or "$" in items:
        return None
    return (*(() if starts else (rest,)), *items, *(() if ends else (rest,)))


def _globs(items: _Sequence) -> list[Globs]:
    """The globs of a sequence without anchors."""
    items = _simple(items)
    runs = [n for n, one in enumerate(items) if isinstance(one, _Run) and not one.set.any]
    if not runs:
        return [Globs(("".join(map(_glob, items)),))]
    last = items[-1]
    before = items[:-1]
    if runs == [len(items) - 1] and isinstance(last, _Run) and not any(isinstance(i, _Run) for i in before):
        prefix = "".join(map(_glob, before))
        return [Globs((f"{prefix}*",), (f"{prefix}*{last.set.others}*",))]
    at = runs[0]
    run = items[at]
    assert isinstance(run, _Run)
    found: list[Globs] = []
    for count in range(LONGEST_RUN + 1):
        found += _globs((*items[:at], *(run.set,) * count, *items[at + 1 :]))
        if len(found) > MOST:
            raise Inexpressible(f"it needs more than {MOST} globs")
    return [replace(one, is_bounded=True) for one in found]


def _simple(items: _Sequence) -> _Sequence:
    """Removes runs next to ``.*``, which includes them."""
    kept: list[_Item] = []
    for one in items:
        is_rest = isinstance(one, _Run) and one.set.any
        if isinstance(one, _Run) and kept and isinstance(kept[-1], _Run) and kept[-1].set.any:
            continue
        while is_rest and kept and isinstance(kept[-1], _Run):
            kept.pop()
        kept.append(one)
    return tuple(kept)


def _glob(item: _Item) -> str:
    return "*" if isinstance(item, _Run) else item if isinstance(item, str) else item.glob


class _Parser:
    """A recursive descent parser; each part returns its alternatives as sequences."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def all(self) -> list[_Sequence]:
        found = self._alternatives()
        if self._at < len(self._text):
            raise Invalid(f"unexpected {self._text[self._at]}")
        return found

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> list[_Sequence]:
        found = self._sequence()
        while self._peek() == "|":
            self._take()
            found += self._sequence()
        return list(dict.fromkeys(found))

    def _sequence(self) -> list[_Sequence]:
        found: list[_Sequence] = [()]
        while (sign := self._peek()) and sign not in "|)":
            found = _joined(found, self._repeated(self._atom()))
        return found

    def _atom(self) -> list[_Sequence]:
        sign = self._take()
        if sign == "(":
            return self._group()
        if sign == "[":
            return [(self._class(),)]
        if sign == "\\":
            return [(self._escape(),)]
        if sign == ".":
            return [(_Set("", any=True),)]
        return [(sign,)] if sign in "^$" else [(_Set(sign),)]

    def _group(self) -> list[_Sequence]:
        if self._peek() == "?":
            named = re.compile(r"\?(:|P?<\w+>)").match(self._text, self._at)
            if named is None:
                raise Inexpressible("it has a flag such as (?i)")
            self._at = named.end()
        found = self._alternatives()
        self._take()
        return found

    def _escape(self) -> _Item:
        sign = self._take()
        if sign.lower() in _CLASSES:
            return _Set(_CLASSES[sign.lower()], negated=sign.isupper())
        if sign in "Az":
            return "^" if sign == "A" else "$"
        if sign.isalnum():
            raise Inexpressible(f"it has \\{sign}")
        return _Set(sign)

    def _class(self) -> _Set:
        negated = self._peek() == "^"
        if negated:
            self._take()
        body = ""
        first = True
        while (sign := self._take()) != "]" or first:
            first = False
            if sign == "[" and self._peek() == ":":
                raise Inexpressible("it has a named class such as [[:alpha:]]")
            if sign == "\\":
                sign = self._take()
                if sign.isalnum() and sign not in "dws":
                    raise Inexpressible(f"it has \\{sign}")
                sign = _CLASSES.get(sign, sign)
            # a bracket ends the class of a glob unless it is the first character
            body = sign + body if sign == "]" else body + sign
        if not negated and body.startswith("!") and len(body) > 1:
            body = body[1:] + "!"
        return _Set(body, negated)

    def _repeated(self, atom: list[_Sequence]) -> list[_Sequence]:
        sign = self._peek()
        if sign == "{" and (times := re.compile(r"\{(\d+)(?:(,)(\d*))?\}").match(self._text, self._at)):
            self._at = times.end()
            low, high = int(times[1]), int(times[3] or -1) if times[2] else int(times[1])
        elif sign and sign in "*+?":
            self._take()
            low, high = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[sign]
        else:
            return atom
        if self._peek() == "?":  # a lazy quantifier matches the same
            self._take()
        if max(low, high) > 2 * LONGEST_RUN:
            raise Inexpressible("it repeats something too often")
        found: list[_Sequence] = [()]
        for _ in range(low):
            found = _joined(found, atom)
        if high < 0:
            one = atom[0][0] if len(atom) == 1 and len(atom[0]) == 1 else ""
            if isinstance(one, _Run):
                return found
            if not isinstance(one, _Set):
                raise Inexpressible("it repeats a group any number of times")
            return _joined(found, [(_Run(one),)])
        every = list(found)
        for _ in range(high - low):
            found = _joined(found, atom)
            every += found
        return every


def _joined(before: Sequence[_Sequence], after: Sequence[_Sequence]) -> list[_Sequence]:
    if len(before) * len(after) > MOST:
        raise Inexpressible(f"it needs more than {MOST} globs")
    return [(*one, *other) for one in before for other in after]
