"""Texts with placeholders in a group: ``{devNode}`` is an attribute of a node, ``{index}`` a number."""

from __future__ import annotations

import re
from collections.abc import Mapping

from devhost.backend import AttributeValue, OptionError
from devhost.backend.where import show

from .attributes import ATTRIBUTES, PROPERTY_FAMILY, SYSATTR_FAMILY

INDEX = "index"
"""The placeholder for the number, from 0, of a device among those of one resource in a container."""

NUMBER = "number"
"""The placeholder for the last number in the name of a node."""

RESOURCE = frozenset({"RESOURCE", "RESOURCE-"})
"""Placeholders in a variable's name that the core fills in (:class:`devhost.backend.model.Edits`)."""

_FIELD = re.compile(r"\{([^{}]*)\}")
_NO_VARIABLE = re.compile(r"[^A-Za-z0-9_]")
_KNOWN = frozenset({INDEX, NUMBER, *(name for name in ATTRIBUTES if not name.endswith("*"))})


def fields(text: str) -> list[str]:
    """The placeholders in ``text``, without braces."""
    return _FIELD.findall(text)


def attributes(text: str) -> set[str]:
    """The attributes that are needed to fill in ``text``."""
    return set(fields(text)) - {INDEX, NUMBER, *RESOURCE}


def check(text: str, key: str, *, name: bool = False, index: bool = True) -> None:
    """Refuses placeholders that do not exist.

    Args:
        text: the text with placeholders.
        key: the key of the option, for the error.
        name: whether it is the name of a variable, which may contain ``{RESOURCE}``, too.
        index: whether it may contain ``{index}``.

    Raises:
        OptionError: with the nearest placeholder, or a list.
    """
    known = _KNOWN | RESOURCE if name else _KNOWN if index else _KNOWN - {INDEX}
    for field in fields(text):
        family = next((f for f in (PROPERTY_FAMILY, SYSATTR_FAMILY) if field.startswith(f)), None)
        if field not in known and (family is None or field == family or "*" in field):
            raise OptionError(
                f"there is no attribute {field!r} to put here", key=key, word=field, known=known
            )


def check_path(path: str, key: str) -> None:
    """Refuses braces in a path of the host, which has no placeholders.

    Raises:
        OptionError: the path has a pair of braces.
    """
    for field in fields(path):
        hint = "write a glob; [{] matches a brace"
        raise OptionError(
            f"a path of the host cannot have a placeholder such as {{{field}}}", key=key, hint=hint
        )


def lacking(text: str, values: Mapping[str, AttributeValue]) -> list[str]:
    """The attributes that ``text`` needs and that are missing in ``values``."""
    return [field for field in fields(text) if field not in values and field not in {INDEX, *RESOURCE}]


def fill(text: str, values: Mapping[str, AttributeValue], index: int) -> str:
    """``text`` with placeholders replaced by the values, none of which may be :func:`lacking`."""

    def value(found: re.Match[str]) -> str:
        if found[1] in RESOURCE:
            return found[0]
        return str(index) if found[1] == INDEX else show(values[found[1]])

    return _FIELD.sub(value, text)


def fill_name(text: str, values: Mapping[str, AttributeValue], index: int) -> str:
    """The name of a variable with placeholders replaced; invalid characters of the values become ``_``."""
    legal = {field: _NO_VARIABLE.sub("_", show(value)) for field, value in values.items()}
    return fill(text, legal, index)
