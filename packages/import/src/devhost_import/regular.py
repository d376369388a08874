"""Converts regular expressions of Go and Rust to the globs of ``where``.

A glob has ``*``, ``?`` and ``[…]`` and matches the whole value. An expression without an exact equivalent is
refused with the reason.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import TypeVar

from devhost.config.diagnostics import shown

from .writing import Block, given

MOST = 64  # globs for one expression
LONGEST = 256  # characters that a repetition with a number is written out to
LONGEST_RUN = 4  # repetitions of a class if * or + is not at the end of the expression
BOUNDED = f"devhost matches a repetition that is not at the end up to {LONGEST_RUN} times."

_START, _END, _ANY = "\x02", "\x03", "?*"  # anchors are characters that no name has
_PART = r"(?:\[!?\]?[^]]*\]|[^]\[])"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": "\t\n\f\r "}
_PARTS = {
    **{"^": _START, r"\A": _START, "$": _END, r"\z": _END, ".": "?"},
    **{rf"\{name}": f"[{body}]" for name, body in _CLASSES.items()},
    **{rf"\{name.upper()}": f"[!{body}]" for name, body in _CLASSES.items()},
}
_TIMES = {"": (1, 1), "*": (0, -1), "+": (1, -1), "?": (0, 1)}
_TOKEN = re.compile(r"(?s)(\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.)((?:[*+?]|\{\d+(?:,\d*)?\})?)\??")
_GROUP = re.compile(r"\((\?P?<\w+>|\?:)?([^()]*)\)(\?\??)?")  # without another one inside
# what is no group and no alternative: escaped, in a class, or where a repetition would come to be
_CHARACTER = re.compile(r"\\[()|]|\[\^?\]?(?:\\.|[^]\\])*?[()|]|[(|]\{")

T = TypeVar("T")


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
    if _CHARACTER.search(expression):
        raise Inexpressible("it has a bracket or | as a character")
    texts: list[str] = []
    for plain in _few(_alternatives(expression)):
        parts = [_repeated(_part(token), times) for token, times in _TOKEN.findall(plain)]
        for one in map("".join, in_order(*parts)):
            before = "" if whole or one.startswith(_START) else _ANY
            after = "" if whole or one.endswith(_END) else _ANY
            texts.append(before + one.lstrip(_START).rstrip(_END) + after)
    return [*dict.fromkeys(_few(chain.from_iterable(map(_globs, texts))))]


def in_order(*parts: Sequence[T]) -> list[tuple[T, ...]]:
    """One alternative of each part, in every combination, of which there may be :data:`MOST`."""
    return _few(product(*parts))


def _few(every: Iterable[T]) -> list[T]:
    if len(found := [*islice(every, MOST + 1)]) > MOST:
        raise Inexpressible(f"it needs more than {MOST} globs")
    return found


def _alternatives(expression: str) -> Iterator[str]:
    """The expressions without groups and alternatives that together match the same."""
    waiting = [expression]
    while waiting:
        one = waiting.pop()
        if (group := _GROUP.search(one)) is None:
            yield from one.split("|")
            continue
        if group[2].startswith("?"):
            raise Inexpressible("it has a flag such as (?i)")
        if one[group.end() :].startswith(("*", "+", "{")):
            raise Inexpressible("it repeats a group")
        inside = [*([""] if group[3] else []), *group[2].split("|")]
        waiting += [f"{one[: group.start()]}{each}{one[group.end() :]}" for each in reversed(inside)]


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


def _repeated(part: str, times: str) -> list[str]:
    least, comma, most = times[1:-1].partition(",")
    low, high = _TIMES.get(times) or (int(least), int(most or -1) if comma else int(least))
    if max(low, high) > LONGEST:
        raise Inexpressible("it repeats something too often")
    return [part * count for count in range(low, high + 1)] if high >= 0 else [f"{part * low}{part}*"]


def _globs(text: str) -> Iterator[Glob]:
    """The globs of parts in order; none if an anchor is inside, where it never matches."""
    if _START in text or _END in text:
        return
    text = re.sub(rf"(?s)({_PART}\*)*\?\*({_PART}\*)*", _ANY, text)  # .* includes what is repeated beside it
    every = re.finditer(rf"(?s)({_PART})(\*?)", text)
    repeated = next((one for one in every if one[2] and one[0] != _ANY), None)
    if repeated is None:
        yield Glob(text.replace(_ANY, "*"))
        return
    before, part, after = text[: repeated.start()], repeated[1], text[repeated.end() :]
    if after or _ANY in before:
        for count in range(LONGEST_RUN + 1):
            yield from (replace(one, is_bounded=True) for one in _globs(before + part * count + after))
    else:
        others = f"[{part[2:]}" if part[:2] == "[!" else f"[!{part.strip('[]') or ']'}]"
        yield Glob(f"{before}*", f"{before}*{others}*")
