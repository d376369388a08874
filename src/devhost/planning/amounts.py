"""Devices that claims share by amount: what a claim may use of each, and what fits. Pure.

Amounts are quantities of Kubernetes: ``4Gi``, ``100``, ``500m``. Source: ``Quantity`` in
``k8s.io/apimachinery``, whose canonical form of 1000 is ``1k``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from devhost.backend import Consumed, templates
from devhost.backend.base import BINARY_UNITS, DECIMAL_UNITS
from devhost.backend.frozen import frozen
from devhost.backend.model import NOTHING, AttributeValue, Device, freeze

from .give import COUNT, ID

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


NONE: Final = "none"
"""The limit of an entry whose containers do not get one."""

ENV: Final = "env"
"""The limit of an entry that names variables."""

CONSUMED: Final = "consumed."
"""What the placeholders of these variables begin with; the name of a capacity follows."""


@frozen(slots=True)
class Amount:
    """A capacity of devices of which each claim uses an amount.

    A device has ``total``, or what its ``attribute`` has, counted in ``unit``. A claim uses ``least``, or
    more in steps of ``step``, up to ``most``; ``usual`` if it requests none.
    """

    name: str
    least: int
    step: int = 1
    most: int | None = None
    usual: int = 0
    attribute: str = ""
    unit: int = 1
    total: int = 0

    def size(self, attributes: Mapping[str, AttributeValue]) -> int | None:
        """What a device with these attributes has; ``None`` if that is not known."""
        if not self.attribute:
            return self.total
        found = attributes.get(self.attribute)
        size = found * self.unit if isinstance(found, int) else -1
        return size if 0 <= size <= GREATEST else None

    @property
    def words(self) -> str:
        """What a claim may use of it."""
        most = f" up to {written(self.most)}" if self.most is not None else ""
        steps = f"{written(self.least)} or more in steps of {written(self.step)}{most}"
        return f"{self.name}: {steps}; {written(max(self.usual, self.least))} by default"

    def published(self, size: int) -> Mapping[str, Any]:
        """The capacity of a device in the terms of JSON.

        The API server refuses a maximum, a default or a first step that the device does not have.
        """
        top = size if self.most is None else min(size, self.most)
        top -= (top - self.least) % self.step
        valid = {"min": written(self.least), "max": written(top)}
        if self.least + self.step <= size:
            valid["step"] = written(self.step)
        usual = min(max(self.usual, self.least), top)
        return {"value": written(size), "requestPolicy": {"default": written(usual), "validRange": valid}}


@frozen
class Limit:
    """How the containers of a claim are limited to what it uses.

    ``by`` is :data:`NONE`, :data:`ENV`, or the key of the backend that does it. ``env`` are the variables,
    which count each capacity in ``units``.
    """

    by: str = NONE
    env: Mapping[str, str] = NOTHING
    units: Mapping[str, int] = NOTHING

    def __post_init__(self) -> None:
        freeze(self, ("env", "units"))

    @property
    def by_backend(self) -> bool:
        return self.by not in (NONE, ENV)

    def variables(
        self, devices: Sequence[Device], consumed: Mapping[str, Mapping[str, Consumed]]
    ) -> Mapping[str, str]:
        """The variables of a container with these devices, of which the claim uses ``consumed``, by id."""
        found = []
        for index, device in enumerate(templates.ranked(devices)):
            values: dict[str, AttributeValue] = {ID: device.id, COUNT: len(devices)}
            for name, one in consumed[device.id].items():
                values[f"{CONSUMED}{name}"] = one.amount // self.units[name]
            found.append(templates.variables(self.env, values, index))
        return templates.joined(found)


NO_LIMIT: Final = Limit()


class CapacityUse(NamedTuple):
    """What a claim uses of one capacity of a device, and what the device had when it was prepared."""

    name: str
    amount: int
    total: int


def flaw(amounts: Iterable[Amount], attributes: Mapping[str, AttributeValue]) -> str:
    """Why claims cannot share a device with these attributes; empty if they can."""
    for one in amounts:
        size = one.size(attributes)
        if size is None:
            return f"it has no {one.attribute}, of which share.capacity gives claims an amount"
        if size < one.least:
            return (
                f"it has {written(size)} of {one.name}, and share.capacity gives {written(one.least)} or more"
            )
    return ""


def most_claims(amounts: Sequence[Amount], attributes: Mapping[str, AttributeValue], limit: int) -> int:
    """How many claims a device may have at once, between 1 and ``limit``."""
    fitting = ((one.size(attributes) or 0) // one.least for one in amounts)
    return max(1, min(limit, *fitting))


def shortage(wanted: Iterable[Sequence[CapacityUse]], held: Iterable[Sequence[CapacityUse]]) -> str:
    """Why a claim cannot have these parts of a device of which others hold some; empty if it can."""
    needed: Counter[str] = Counter()
    totals: dict[str, int] = {}
    for part in (part for parts in wanted for part in parts):
        needed[part.name] += part.amount
        totals[part.name] = part.total
    used = used_of(totals, held)
    for name, total in totals.items():
        if (free := total - used[name]) < needed[name]:
            free_of = f"{written(max(0, free))} of {written(total)} {name}"
            return f"{free_of} is free, and the claim needs {written(needed[name])}"
    return ""


def used_of(totals: Mapping[str, int], held: Iterable[Sequence[CapacityUse]]) -> Mapping[str, int]:
    """What is used of a device that has so much; one that holds it without parts has all of it."""
    used = dict.fromkeys(totals, 0)
    for parts in held:
        known = {part.name: part.amount for part in parts}
        for name, total in totals.items():
            used[name] += known.get(name, total)
    return used


def written(number: int) -> str:
    """A number as a quantity, by powers of 1024 or of 1000, as it is shorter: ``80Gi`` and ``10G``."""
    decimal = quantity(number)
    return decimal if number % 1024 else min(quantity(number // 1024, "Ki"), decimal, key=len)
