"""Texts with placeholders: ``{devNode}`` is an attribute of a device, ``{index}`` a number.

What hardware reports is data. The core has removed values that are not one line of printable text
(:mod:`devhost.discovery.validation`). In the name of a variable, a value has letters, digits and ``_`` only.
A path that a value leads elsewhere is :func:`unfit`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from posixpath import normpath

from devhost.backend.base import Attribute, OptionError, declared
from devhost.backend.errors import AllocationError
from devhost.backend.model import AttributeValue, Device
from devhost.backend.sysfs import natural
from devhost.backend.where import show

INDEX = "index"
"""The placeholder for the number, from 0, of a device among those of one resource in a container."""

RESOURCE = frozenset({"RESOURCE", "RESOURCE-"})
"""Placeholders in a variable's name that the core fills in (:class:`devhost.backend.model.Edits`)."""

_FIELD = re.compile(r"\{([^{}]*)\}")
_NO_VARIABLE = re.compile(r"[^A-Za-z0-9_]")
_PATHS = frozenset({"devNode", "sysName", "sysPath"})
"""Attributes whose slashes are the kernel's. That of any other value would lead to another directory."""

Values = Mapping[str, AttributeValue]


def fields(text: str) -> list[str]:
    """The placeholders in ``text``, without braces."""
    return _FIELD.findall(text)


def as_glob(text: str, each: str = "*") -> str:
    """``text`` with ``each`` for each placeholder."""
    return _FIELD.sub(each, text)


def attributes(text: str, others: Collection[str] = ()) -> set[str]:
    """The attributes that are needed to fill in ``text``; ``others`` are placeholders that are none."""
    return set(fields(text)).difference({INDEX}, RESOURCE, others)


def lacking(text: str, values: Values) -> list[str]:
    """The attributes that ``text`` needs and that are missing in ``values``."""
    return [field for field in fields(text) if field not in values and field not in {INDEX, *RESOURCE}]


def fill(text: str, values: Values, index: int) -> str:
    """``text`` with placeholders replaced by the values, none of which may be :func:`lacking`."""

    def value(found: re.Match[str]) -> str:
        if found[1] in RESOURCE:
            return found[0]
        return str(index) if found[1] == INDEX else show(values[found[1]])

    return _FIELD.sub(value, text)


def unfit(wanted: str, values: Values, path: str) -> str:
    """Why ``path``, made from the text ``wanted``, cannot be used in a container; empty if it can."""
    for field in fields(wanted):
        if field in values and field not in _PATHS and "/" in show(values[field]):
            return f"where the slash in its {field} would lead to another directory"
    if ".." in path.split("/"):
        return "which goes up with .."
    for part in wanted.split("/"):
        if "{" in part and fill(part, values, 0) in ("", "."):
            return f"which has no name at {part}"
    return "" if path.isprintable() else "which has a character that does not print"


def place(path: str) -> str:
    """The one spelling of an absolute path: ``/dev/x`` for ``/dev//x`` and ``/dev/./x``."""
    return normpath(f"//{path}")  # two slashes at the start would stay, but three become one


def variables(env: Mapping[str, str], values: Values, index: int) -> dict[str, str]:
    """The variables of one device, without those that need a missing attribute.

    In names, characters of the values that are invalid there become ``_``.

    Raises:
        AllocationError: two of them have the same name.
    """
    named = {field for name in env for field in fields(name) if field in values}
    legal = {field: _NO_VARIABLE.sub("_", show(values[field])) for field in named}
    found: dict[str, str] = {}
    made: dict[str, str] = {}
    for name, value in env.items():
        if lacking(name + value, values):
            continue
        filled = fill(name, legal, index)
        if (other := made.setdefault(filled, name)) != name:
            raise AllocationError(f"the variables {other} and {name} are both {filled} (rename one)")
        found[filled] = fill(value, values, index)
    return found


def joined(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The variables of several devices in one container: different values are joined with commas."""
    found: dict[str, dict[str, None]] = {}
    for part in parts:
        for name, value in part.items():
            found.setdefault(name, {})[value] = None
    return {name: ",".join(each) for name, each in found.items()}


def ranked(devices: Iterable[Device]) -> Sequence[Device]:
    """The devices of a container in the order of ``{index}``: in natural order of their nodes, then by id."""
    return sorted(devices, key=lambda one: (natural(str(one.attributes.get("devNode"))), one.id))


_VARIABLE = re.compile(r"([A-Za-z_]|\{[^{}]*\})([A-Za-z0-9_]|\{[^{}]*\})*")


def check(text: str, key: str, declarations: Mapping[str, Attribute], others: Collection[str]) -> None:
    """Refuses placeholders that are neither attributes of the backend nor among ``others``.

    Raises:
        OptionError: with the nearest placeholder, or a list. ``key`` is that of the option.
    """
    for field in fields(text):
        if field not in others and ("*" in field or declared(declarations, field) is None):
            named = {name: one for name, one in declarations.items() if "*" in field or "*" not in name}
            known = {**dict.fromkeys(others), **named}
            message = f"there is no attribute {field!r} to put here"
            raise OptionError(message, key=key, word=field, known=known)


def check_variables(names: Collection[str], key: str) -> None:
    """Refuses what cannot be the names of variables, and two that are one in a container.

    Raises:
        OptionError: with the name below ``key``, that of the option.
    """
    for name in names:
        if not _VARIABLE.fullmatch(name):
            hint = "use letters, digits and _, with no digit first"
            raise OptionError(f"{name!r} is not a variable's name", key=f"{key}.{name}", hint=hint)
        numbered = re.escape(name).replace(rf"\{{{INDEX}\}}", "(0|[1-9][0-9]*)")
        for other in names:
            if other != name and re.fullmatch(numbered, other):
                raise OptionError(f"{name} becomes {other}, too", key=f"{key}.{other}", hint="rename one")


def check_path(path: str, key: str, *, host: bool) -> None:
    """Refuses what cannot be a path of the host, or in a container, which may have placeholders.

    Raises:
        OptionError: with ``key``.
    """
    if not path.startswith("/"):
        raise OptionError(f"{path!r} is not absolute", key=key, hint="start it with /")
    if ".." in path.split("/"):
        raise OptionError(f"{path!r} contains ..", key=key, hint="write the path that it leads to")
    if "\0" in path:
        raise OptionError("a path cannot contain a NUL character", key=key)
    if not path.isprintable():
        raise OptionError("a path cannot contain a character that does not print", key=key)
    if not host:
        return
    if path.endswith("/"):
        raise OptionError(f"{path!r} ends in /", key=key, hint="remove the last /")
    for field in fields(path):
        message = f"a path of the host cannot have a placeholder such as {{{field}}}"
        raise OptionError(message, key=key, hint="write the path without it")
