"""Quantities of Kubernetes: ``4Gi``, ``100``, ``500m``. Pure.

Source: ``Quantity`` in ``k8s.io/apimachinery``, whose canonical form of 1000 is ``1k``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from devhost.backend.base import BINARY_UNITS, DECIMAL_UNITS

GREATEST = 2**63 - 1
"""The greatest number that schedulers count with."""

_SUFFIXES = "|".join((*DECIMAL_UNITS[1:], *BINARY_UNITS[1:]))

WHOLE = rf"^[0-9]{{1,19}}({_SUFFIXES})?$"
"""The pattern of a quantity that is a whole number."""

_QUANTITY = re.compile(rf"([0-9]{{1,19}})(?:({_SUFFIXES}|m)|[eE]([0-9]{{1,2}}))?")


def thousandths(text: str) -> int | None:
    """A quantity in thousandths; ``None`` if it is none, or is written in another form."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    digits, suffix = int(found[1]), found[2] or ""
    exponent = int(found[3] or 0)  # a claim's request may have one, and a scheduler keeps it
    return digits if suffix == "m" else digits * 10**exponent * factor(suffix) * 1000


def whole(text: str) -> int | None:
    """A quantity of something that is counted in whole numbers, rounded up; ``None`` as above."""
    found = thousandths(text)
    return None if found is None else -(-found // 1000)


def quantity(number: int, unit: str = "") -> str:
    """A number of units as the API server writes it in its answers: ``1k`` for 1000, ``1Gi`` for 1024 Mi."""
    units, base = _units(unit)
    place = units.index(unit)
    while number and number % base == 0 and place < len(units) - 1:
        number //= base
        place += 1
    return f"{number}{units[place]}" if number else "0"


def factor(unit: str) -> int:
    """What a suffix multiplies with."""
    units, base = _units(unit)
    return int(base ** units.index(unit))


def is_binary(unit: str) -> bool:
    """Whether a suffix is a power of 1024."""
    return unit.endswith("i")


def _units(unit: str) -> tuple[Sequence[str], int]:
    return (BINARY_UNITS, 1024) if is_binary(unit) else (DECIMAL_UNITS, 1000)
