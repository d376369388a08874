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

MOST = 64  # globs for one expression
LONGEST = 256  # characters that a repetition with a number is written out to
LONGEST_RUN = 4  # repetitions of a class if * or + is not at the end of the expression
BOUNDED = f"devhost matches a repetition that is not at the end up to {LONGEST_RUN} times."

_START, _END, _REST = "\x02", "\x03", "?*"  # anchors are characters that no name has
_PART = r"(?:\[!?\]?[^]]*\]|[^]\[])"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": "\t\n\f\r "}
_PARTS = {
    **{"^": _START, r"\A": _START, "$": _END, r"\z": _END, ".": "?"},
    **{rf"\{name}": f"[{body}]" for name, body in _CLASSES.items()},
    **{rf"\{name.upper()}": f"[!{body}]" for name, body in _CLASSES.items()},
}
_TIMES = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}
# a part of an expression, or the start or end of a group, and how often it is repeated
_TOKEN = re.compile(
    r"(?s)(\((?:\?(?::|P?<\w+>))?|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.)((?:[*+?]|\{\d+(?:,\d*)?\})?)\??"
)

T = TypeVar("T")
# parts in order: a glob for one character, the same with * for any number of them, or an anchor
_Sequence = tuple[str, ...]


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
        never = {attribute: start + self.never} if self.never else {}
        return {attribute: start + self.text, **given(**{"not": never})}


def globs(expression: str, *, whole: bool = False) -> list[Glob]:
    """The globs that together match what the expression matches, anywhere in the value or as a ``whole``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of [[:alpha:]], which Go supports
        try:
            re.compile(re.sub(r"\(\?P?<\w+>", "(", expression.replace(r"\z", "$")))
        except (re.error, OverflowError, RecursionError) as error:
            raise Invalid(f"{shown(expression)} is not a regular expression: {error}") from None
    found: list[Glob] = []
    for one in map("".join, _alternatives(iter(_TOKEN.findall(expression)))[0]):
        before = "" if whole or one.startswith(_START) else _REST
        after = "" if whole or one.endswith(_END) else _REST
        found += islice(_globs(before + one.lstrip(_START).rstrip(_END) + after), MOST + 1)
        if len(found) > MOST:
            raise Inexpressible(f"it needs more than {MOST} globs")
    return [*dict.fromkeys(found)]


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
        if re.search(r"[]\[!^\\*?]", body):
            raise Inexpressible("it has a named class such as [[:alpha:]], or a special character in a class")
        return f"[{negated}{body}]"
    if len(token) == 2 and token[1].isalnum():
        raise Inexpressible(f"it has {token}")
    return f"[{token[-1]}]" if token[-1] in "*?[]" else token[-1]


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
    """One alternative of each part, in every combination, of which there may be :data:`MOST`."""
    if math.prod(map(len, parts)) > MOST:
        raise Inexpressible(f"it needs more than {MOST} globs")
    return [tuple(chain.from_iterable(one)) for one in product(*parts)]


def _globs(text: str) -> Iterator[Glob]:
    """The globs of a sequence; none if it still has an anchor, where it never matches."""
    if _START in text or _END in text:
        return
    text = re.sub(rf"(?s)({_PART}\*)*\?\*({_PART}\*)*", _REST, text)  # .* includes what is repeated beside it
    every = re.finditer(rf"(?s)({_PART})(\*?)", text)
    repeated = next((one for one in every if one[2] and one[0] != _REST), None)
    if repeated is None:
        yield Glob(text.replace(_REST, "*"))
        return
    before, one, after = text[: repeated.start()], repeated[1], text[repeated.end() :]
    if not after and _REST not in before:
        others = f"[{one[2:]}" if one[:2] == "[!" else f"[!{one.strip('[]') or ']'}]"
        yield Glob(f"{before}*", f"{before}*{others}*")
        return
    for count in range(LONGEST_RUN + 1):
        for found in _globs(before + one * count + after):
            yield replace(found, is_bounded=True)
