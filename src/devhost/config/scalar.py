"""One scalar → one value: strict where YAML 1.1 is generous, with a hint how to write what was meant."""

from __future__ import annotations

import contextlib
import math
import re
from enum import Enum
from pathlib import Path
from typing import Any, Final

from .annotation import noun
from .diagnostics import Place, shown
from .nodes import Node, Scalar

_DECIMAL = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")


class _Wrong(Enum):
    WRONG = "wrong"


WRONG: Final = _Wrong.WRONG
"""Stands for a value that could not be read; the reason is among the complaints."""


def refuse(node: Node, wanted: Any, place: Place, hint: str = "") -> Any:
    """Complains that ``node`` is no ``wanted``; gives :data:`WRONG`."""
    if not hint and isinstance(node, Scalar) and node.kind == "null":
        hint = "give it a value or remove the key"
    place.complain(node, f"must be {noun(wanted)}, not {node}", hint)
    return WRONG


def read_text(node: Node, place: Place) -> Any:
    """Text; what YAML takes for something else is refused with the advice to quote it."""
    if isinstance(node, Scalar) and node.kind == "str":
        return node.text
    quotable = isinstance(node, Scalar) and node.kind != "null"
    return refuse(node, str, place, f"put it in quotes: {shown(node.text)}" if quotable else "")  # type: ignore[union-attr]


def read_bool(node: Node, place: Place) -> Any:
    """``true`` or ``false``; YAML 1.1's ``yes``, ``on`` and their opposites are refused."""
    if isinstance(node, Scalar) and node.kind == "bool" and node.text.lower() in ("true", "false"):
        return node.text.lower() == "true"
    hint = ""
    if isinstance(node, Scalar) and node.text.lower() in ("yes", "on", "y", "true"):
        hint = "write true"
    elif isinstance(node, Scalar) and node.text.lower() in ("no", "off", "n", "false"):
        hint = "write false"
    return refuse(node, bool, place, hint)


def read_int(node: Node, place: Place) -> Any:
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


def read_float(node: Node, place: Place) -> Any:
    if isinstance(node, Scalar):
        if node.kind == "int" and _DECIMAL.fullmatch(node.text):
            return float(node.text)
        if node.kind == "float":
            with contextlib.suppress(ValueError):  # YAML's base 60 and `.inf` are not Python's
                number = float(node.text)
                if math.isfinite(number):
                    return number
    return refuse(node, float, place)


def read_path(node: Node, place: Place) -> Any:
    text = read_text(node, place)
    if text is WRONG:
        return WRONG
    return Path(text) if text else refuse(node, Path, place, "it is empty")
