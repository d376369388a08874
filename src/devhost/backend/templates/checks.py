"""What is wrong with a text that has placeholders, for the person who wrote it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from devhost.backend.base import Attribute, OptionError, declared

from .texts import INDEX, fields

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
