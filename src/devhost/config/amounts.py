"""The keys ``share.capacity`` and ``share.limit`` of an entry."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from functools import partial

from devhost.backend import Backend, OptionError, templates
from devhost.backend.base import declared
from devhost.planning.amounts import CONSUMED, ENV, NO_LIMIT, NONE, Amount, Limit, factor, written
from devhost.planning.give import COUNT, ID, Give

from .diagnostics import MEANT, KeyPath, shown, suggest
from .document import Fields, Node
from .language import LimitVariables, SharedCapacity, Sharing
from .published import RESERVED
from .reader import agreed, complain, find

MOST = 8
"""Capacities of an entry: a device in a slice has 32 attributes and capacities together."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")


def read_amounts(
    sharing: Sharing, backend: type[Backend], node: Fields, place: KeyPath
) -> tuple[Amount, ...]:
    """The capacities that claims share, by the key ``share`` of an entry; what is wrong is reported."""
    if not sharing.capacity:
        return ()
    capacity, here = find(node, "share.capacity", place)
    assert isinstance(capacity, Fields)  # it has been read as a mapping
    if (count := len(sharing.capacity)) > MOST:
        here.report(capacity, f"must have at most {MOST} members, not {count}")
    return tuple(
        _amount(name, one, backend, capacity.entries[name].value, here.key(name))
        for name, one in sharing.capacity.items()
    )


def _amount(name: str, given: SharedCapacity, backend: type[Backend], node: Node, place: KeyPath) -> Amount:
    if not _NAME.fullmatch(name) or name in RESERVED:
        place.report(node, f"{shown(name)} is no name of a capacity", "for example memory or cores")
    attribute = "" if given.total is not None else given.attribute or name
    found = declared(backend.attributes, attribute)
    if attribute and (found is None or found.type is not int):
        numbers = {name: one for name, one in backend.attributes.items() if one.type is int}
        hint = suggest(attribute, numbers, "numbers")
        if not hint.startswith(MEANT):
            hint = f"write what each device has, such as total: 100; {hint}"
        place.report(node, f"backend {backend.name} has no number {shown(attribute)}", hint)
    amount = Amount(
        name,
        given.min,
        given.step,
        given.max,
        given.min if given.default is None else given.default,
        attribute,
        factor(found.unit) if found else 1,
        given.total or 0,
    )
    agreed(partial(_check, amount, given), node, backend.name, place)
    return amount


def _check(one: Amount, given: SharedCapacity) -> None:
    """Complains about amounts that do not fit to each other."""
    if given.attribute and given.total is not None:
        raise OptionError("cannot be together with attribute", key="total", hint="remove one of them")
    for key, number in (("min", one.least), ("step", one.step)):
        if number < 1:
            raise OptionError("must be 1 or more", key=key)
    if given.total is not None and one.total < one.least:
        raise OptionError(f"is less than min, {written(one.least)}", key="total")
    if one.most is not None and one.most < one.least:
        raise OptionError(f"is less than min, {written(one.least)}", key="max")
    if one.usual < one.least:
        raise OptionError(f"is less than min, {written(one.least)}", key="default")
    if beyond := (one.usual - one.least) % one.step:
        message = f"must be min, {written(one.least)}, and a multiple of step, {written(one.step)}, above it"
        raise OptionError(message, key="default", hint=f"for example {written(one.usual - beyond)}")
    for bound, most in (("max", one.most), ("total", given.total)):
        if most is not None and one.usual > most:
            raise OptionError(f"is more than {bound}, {written(most)}", key="default")
    for key, number in (("min", one.least), ("step", one.step)):
        if number % factor(given.unit):
            message = (
                f"variables count in 1{given.unit}, and {key}, {written(number)}, is not a multiple of it"
            )
            raise OptionError(message, key="unit", hint=f"set {key} to a multiple, or use a smaller unit")


def read_limit(
    sharing: Sharing,
    amounts: Sequence[Amount],
    options: object,
    backend: type[Backend],
    give: Give,
    node: Fields,
    place: KeyPath,
) -> Limit:
    """What limits containers, by the key ``share`` of an entry; what is wrong with it is reported."""
    given: object = sharing.limit
    if given is None:
        hint = "name what limits containers, or write limit: none if nothing does"
        complain(node, "share", place, "the key limit is required with capacity", hint)
        return NO_LIMIT
    at, place = find(node, "share.limit", place)
    names = [one.name for one in amounts]
    if isinstance(given, LimitVariables):
        units = {name: factor(one.unit) for name, one in sharing.capacity.items()}
        limit = Limit(ENV, given.env, units)
        variables = (*backend.variables, *getattr(options, "variables", ()))
        agreed(
            partial(_check_variables, limit, names, backend.name, variables, give), at, backend.name, place
        )
        return limit
    by = str(given)
    if by == NONE:
        return NO_LIMIT
    known = getattr(options, "limits", {})
    if by not in known:
        place.report(at, f"the entry does not have the key {by}, which does this", f"add {by}: to the entry")
    elif beyond := [name for name in names if name not in known[by]]:
        able = " and ".join(known[by])
        place.report(at, f"{by} cannot limit {shown(beyond[0])}, only {able}", "write limit: {env: …}")
    return Limit(by)


def _check_variables(
    limit: Limit, names: Sequence[str], backend: str, variables: Collection[str], give: Give
) -> None:
    """Complains about variables that would leave a container without one of its limits.

    A placeholder may not be an attribute: a device without it would not get the variable.
    """
    known = {templates.INDEX, COUNT, ID, *(f"{CONSUMED}{name}" for name in names)}
    used = set()
    templates.check_variables(limit.env, "env")
    for name, value in limit.env.items():
        key = f"env.{name}"
        used.update(templates.fields(value))
        for text in (name, value):
            if unknown := [one for one in templates.fields(text) if one not in known]:
                raise OptionError(
                    f"unknown placeholder {{{unknown[0]}}}", key=key, word=unknown[0], known=known
                )
        if name in give.env:
            raise OptionError("give sets this variable, too", key=key, hint="remove one of the two")
        if any(fnmatchcase(name, one) for one in variables):
            raise OptionError(f"backend {backend} sets this variable", key=key, hint="remove it")
    if missing := [name for name in names if f"{CONSUMED}{name}" not in used]:
        message = f"no variable has {{{CONSUMED}{missing[0]}}}, so that containers are not limited to it"
        raise OptionError(message, key="env", hint="add one, or remove the capacity")
