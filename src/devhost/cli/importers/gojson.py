"""Shared by importers of plugins written in Go: JSON as Go reads it, and remarks on the consequences.

Go ignores unknown keys, and matches known keys without regard to case. This module does the same, and adds a
remark, because a misspelt selector selects more than intended.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from devhost.backend import OptionError
from devhost.config.diagnostics import Mark, Place, one_line, shown, suggest
from devhost.config.document import Entry, Fields, Items, Node, Scalar
from devhost.config.reader import Raw, keys, members

PCI_ID = re.compile(r"(0[xX])?[0-9A-Fa-f]{1,4}")
"""A vendor or device id in any notation."""

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Remark:
    """A place of the source that the plugin reads differently from what its author may expect."""

    mark: Mark
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return one_line(f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else ""))


UNKNOWN_KEY = "this import does not know it"
"""The remark on an unknown key: another release of the plugin may read it."""


def pruned(
    node: Node,
    wanted: Any,
    place: Place,
    remark: Callable[[Remark], None],
    elsewhere: Mapping[str, str] | None = None,
    only: Collection[str] = (),
) -> Node:
    """The value with only those keys, at any depth, that the plugin reads. Keys with null are dropped.

    Args:
        wanted: the type that the value is read as.
        remark: called with each key that is ignored.
        elsewhere: hints for keys that occur in files although the plugin ignores them.
        only: the keys of the value itself that the plugin reads; all if empty.
    """
    if typing.get_origin(wanted) is Annotated:
        wanted = typing.get_args(wanted)[0]
    if wanted == Raw:
        return node
    if isinstance(node, Items):
        inner = next((one for one in typing.get_args(wanted) if one is not Ellipsis), None)
        items = (pruned(one, inner, place.item(n), remark, elsewhere) for n, one in enumerate(node.items))
        return Items(node.mark, tuple(items))
    cls = next((one for one in members(wanted) if dataclasses.is_dataclass(one)), None)
    if not isinstance(node, Fields) or cls is None:
        return node
    assert isinstance(cls, type)
    names = {key.lower(): (key, one) for key, (_, one) in keys(cls).items() if not only or key in only}
    found = Fields(node.mark)
    for key, entry in node.entries.items():
        if isinstance(entry.value, Scalar) and entry.value.kind == "null":
            continue
        if (known := names.get(key.lower())) is None:
            hint = (elsewhere or {}).get(key) or suggest(key, [one for one, _ in names.values()], "keys")
            remark(Remark(entry.mark, place.key(key).path, UNKNOWN_KEY, hint))
        else:
            value = pruned(entry.value, known[1], place.key(key), remark, elsewhere)
            found.entries[known[0]] = Entry(entry.mark, value)
    return found


def pci_id(value: str) -> str:
    """A vendor or device id in the kernel's notation: four lower-case hex digits."""
    return value.lower().removeprefix("0x").rjust(4, "0") if PCI_ID.fullmatch(value) else value


def odd_ids(
    values: Iterable[str], mark: Mark, path: str, right: Callable[[str], str] = pci_id
) -> list[Remark]:
    """Remarks on ids that never match for a plugin that compares exactly, but match in devhost."""
    odd = ((value, right(value)) for value in dict.fromkeys(values))
    message = '{} never matches for the plugin; devhost takes it as "{}"'
    return [Remark(mark, path, message.format(shown(one), known)) for one, known in odd if one != known]


def check(key: str, values: Iterable[str], form: str, what: str, hint: str = "") -> None:
    """Refuses values under ``key`` without this form.

    Raises:
        OptionError: there is one; ``what`` describes it.
    """
    for n, value in enumerate(values):
        if not re.fullmatch(form, value, re.DOTALL):
            raise OptionError(f"{shown(value)} {what}", key=f"{key}[{n}]", hint=hint)


def check_ids(key: str, values: Iterable[str]) -> None:
    """Refuses values that are not PCI ids."""
    check(key, values, PCI_ID.pattern, "is not a PCI id", 'four hex digits, as in "15b3"')


def check_texts(key: str, values: Sequence[str]) -> None:
    """Refuses empty text.

    Raises:
        OptionError: a value under ``key`` is empty.
    """
    for n, value in enumerate(values):
        if not value:
            raise OptionError("is empty", key=f"{key}[{n}]", hint="remove it")


def literal(value: str) -> str:
    """A name as a glob in which ``*``, ``?`` and ``[`` are literal, as they are for the plugin."""
    return _GLOB.sub(lambda sign: f"[{sign[0]}]", value)
