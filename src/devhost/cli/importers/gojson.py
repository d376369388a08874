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

PCI_ID = re.compile(r"(0[xX])?[0-9A-Fa-f]{1,4}")  # a vendor or device id in any notation
UNKNOWN_KEY = "this import does not know it"  # another release of the plugin may read it


@dataclass(frozen=True, slots=True)
class Remark:
    """A place of the source that the plugin reads differently from what its author may expect."""

    mark: Mark
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return one_line(f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else ""))


Report = Callable[[Remark], None]
Hints = Mapping[str, str] | None
Keys = Collection[str]


def pruned(
    node: Node, wanted: Any, place: Place, remark: Report, elsewhere: Hints = None, only: Keys = ()
) -> Node:
    """The value with only those keys, at any depth, that the plugin reads into the type ``wanted``. Keys with
    null are dropped.

    ``remark`` is called with each key that is ignored. ``elsewhere`` has hints for keys that occur in files
    although the plugin ignores them. Of the value itself it reads ``only`` these keys; all if empty.
    """
    wanted = without_annotation(wanted)
    if wanted == Raw:
        return node
    if isinstance(node, Items):
        inner = next((one for one in typing.get_args(wanted) if one is not Ellipsis), None)
        items = (pruned(one, inner, place.item(n), remark, elsewhere) for n, one in enumerate(node.items))
        return Items(node.mark, tuple(items))
    cls = next((one for one in members(wanted) if dataclasses.is_dataclass(one)), None)
    if not isinstance(node, Fields) or not isinstance(cls, type):
        return node
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


def without_annotation(wanted: Any) -> Any:
    return typing.get_args(wanted)[0] if typing.get_origin(wanted) is Annotated else wanted


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
    """Refuses values under ``key`` without this form, as ``what`` describes them."""
    for n, value in enumerate(values):
        if not re.fullmatch(form, value, re.DOTALL):
            raise OptionError(f"{shown(value)} {what}", key=f"{key}[{n}]", hint=hint)


def check_ids(key: str, values: Iterable[str]) -> None:
    check(key, values, PCI_ID.pattern, "is not a PCI id", 'four hex digits, as in "15b3"')


def check_texts(key: str, values: Sequence[str]) -> None:
    if "" in values:
        raise OptionError("is empty", key=f"{key}[{values.index('')}]", hint="remove it")


def literal(value: str) -> str:
    """A name as a glob in which ``*``, ``?`` and ``[`` are literal, as they are for the plugin."""
    return re.sub(r"[*?\[]", r"[\g<0>]", value)
