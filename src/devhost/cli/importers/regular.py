"""Converts regular expressions of Go and Rust to the globs of ``where``.

A glob has ``*``, ``?`` and ``[…]`` and matches the whole value. An expression without an exact equivalent is
refused with the reason.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import TypeVar

from devhost.config.diagnostics import shown

from .writing import Block, given

MOST = 64
"""The maximum number of globs for one expression."""

LONGEST = 256
"""The maximum number of characters that a repetition with a number is written out to."""

LONGEST_RUN = 4
"""The maximum number of repetitions of a class if ``*`` or ``+`` is not at the end of the expression."""

BOUNDED = f"devhost matches a repetition that is not at the end up to {LONGEST_RUN} times."
"""The remark on globs that are bounded."""

_START, _END, _REST = r"\A", r"\z", "?*"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": "\t\n\f\r "}
_PARTS = {
    **{"^": _START, r"\A": _START, "$": _END, r"\z": _END, ".": "?"},
    **{rf"\{name}": f"[{body}]" for name, body in _CLASSES.items()},
    **{rf"\{name.upper()}": f"[!{body}]" for name, body in _CLASSES.items()},
}
_TIMES = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}
_TOKEN = re.compile(
    r"(\((?:\?(?::|P?<\w+>))?|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.)((?:[*+?]|\{\d+(?:,\d*)?\})?)\??", re.DOTALL
)
"""A part of an expression, or the start or end of a group, and how often it is repeated."""

T = TypeVar("T")
_Sequence = tuple[str, ...]
"""Parts in order: a glob for one character, the same with ``*`` for any number of them, or an anchor."""


class Inexpressible(ValueError):
    """The expression is valid, but no globs are equivalent."""


class Invalid(ValueError):
    """It is not a regular expression."""


@dataclass(frozen=True, slots=True)
class Glob:
    """Matches what ``never`` does not match. ``is_bounded``: longer repetitions do not match."""

    text: str
    never: str = ""
    is_bounded: bool = False

    def block(self, attribute: str, start: str = "") -> Block:
        """A block of ``where`` for values that begin with ``start``."""
        never = {attribute: start + self.never} if self.never else {}
        return {attribute: start + self.text, **given(**{"not": never})}


def globs(expression: str, *, whole: bool = False) -> list[Glob]:
    """The globs that together match the same values as the expression.

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
            re.compile(re.sub(r"\(\?P?<\w+>", "(", expression.replace(r"\z", "$")))
        except (re.error, OverflowError, RecursionError) as error:
            raise Invalid(f"{shown(expression)} is not a regular expression: {error}") from None
    sequences, _ = _alternatives(iter(_TOKEN.findall(expression)))
    every = (glob for one in sequences for glob in _globs(_anchored(one, whole=whole)))
    found = list(dict.fromkeys(islice(every, MOST + 1)))
    if len(found) > MOST:
        raise Inexpressible(f"it needs more than {MOST} globs")
    return found


def _alternatives(tokens: Iterator[tuple[str, str]]) -> tuple[list[_Sequence], str]:
    """The alternatives up to the end of a group, and how often the group is repeated."""
    before: list[_Sequence] = []
    found: list[_Sequence] = [()]
    for token, times in tokens:
        if token == ")":
            return [*before, *found], times
        if token == "|":
            before, found = [*before, *found], [()]
        elif token[0] != "(":
            found = in_order(found, _repeated([(_part(token),)], times))
        elif times:
            raise Inexpressible("it has a flag such as (?i)")
        else:
            found = in_order(found, _repeated(*_alternatives(tokens)))
    return [*before, *found], ""


def _part(token: str) -> str:
    if token in _PARTS:
        return _PARTS[token]
    if token[0] == "[" and len(token) > 1:
        negated = "!" if token[1] == "^" else ""
        body = re.sub(r"\\([dws.])", lambda one: _CLASSES.get(one[1], one[1]), token[1 + len(negated) : -1])
        if re.search(r"[]\[!^\\]", body):
            raise Inexpressible("it has a named class such as [[:alpha:]], or a special character in a class")
        return f"[{negated}{body}]"
    if len(token) == 2 and token[1].isalnum():
        raise Inexpressible(f"it has {token}")
    return f"[{token[-1]}]" if token[-1] in "*?[" else token[-1]


def _repeated(some: list[_Sequence], times: str) -> list[_Sequence]:
    if not times:
        return some
    least, comma, most = times[1:-1].partition(",")
    low, high = _TIMES.get(times) or (int(least), int(most or -1) if comma else int(least))
    if max(low, high) * max(map(len, some)) > LONGEST:
        raise Inexpressible("it repeats something too often")
    if high >= 0:
        return [one for count in range(low, high + 1) for one in in_order(*[some] * count)]
    one = "".join(some[0])
    if len(some) > 1 or len(some[0]) != 1 or one.endswith("*") or one in (_START, _END):
        raise Inexpressible("it repeats a group any number of times")
    return in_order(*[some] * low, [(f"{one}*",)])


def in_order(*parts: Sequence[tuple[T, ...]]) -> list[tuple[T, ...]]:
    """One alternative of each part, in every combination.

    Raises:
        Inexpressible: there are more than :data:`MOST`.
    """
    if math.prod(map(len, parts)) > MOST:
        raise Inexpressible(f"it needs more than {MOST} globs")
    return [tuple(chain.from_iterable(one)) for one in product(*parts)]


def _anchored(sequence: _Sequence, *, whole: bool) -> _Sequence:
    """The sequence without anchors at its ends, and with ``.*`` at an end that had none."""
    items, has_start, has_end = [*sequence], whole, whole
    while items[:1] == [_START]:
        has_start = bool(items.pop(0))
    while items[-1:] == [_END]:
        has_end = bool(items.pop())
    return (*(() if has_start else (_REST,)), *items, *(() if has_end else (_REST,)))


def _globs(items: _Sequence) -> Iterator[Glob]:
    """The globs of a sequence; none if it still has an anchor, where it never matches."""
    if _START in items or _END in items:
        return
    neighbours = zip(("", *items), items, (*items[1:], ""), strict=False)
    items = tuple(  # .* includes what is repeated beside it
        one
        for before, one, after in neighbours
        if one[-1] != "*" or (before != _REST and (after != _REST or one == _REST))
    )
    at = next((n for n, one in enumerate(items) if one[-1] == "*" and one != _REST), -1)
    if at < 0:
        yield Glob("".join(items).replace(_REST, "*"))
    elif at == len(items) - 1 and _REST not in items:
        start, one = "".join(items[:-1]) + "*", items[-1][:-1]
        others = f"[{one[2:]}" if one[:2] == "[!" else f"[!{one.strip('[]')}]"
        yield Glob(start, f"{start}{others}*")
    else:
        for count in range(LONGEST_RUN + 1):
            for found in _globs((*items[:at], *(items[at][:-1],) * count, *items[at + 1 :])):
                yield replace(found, is_bounded=True)
