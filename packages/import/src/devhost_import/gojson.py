"""JSON as plugins written in Go read it: they ignore unknown keys, and the case of known ones. A misspelt
selector selects more than intended, so each ignored key is reported.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any

from devhost.config.diagnostics import Mark, Place, one_line, shown, suggest
from devhost.config.document import Entry, Fields, Items, Node, Scalar
from devhost.config.reader import Form, Raw, keys, members

PCI_ID = re.compile(r"(0[xX])?[0-9A-Fa-f]{1,4}")  # a vendor or device id in any notation
UNKNOWN_KEY = "this import does not know it"  # another release of the plugin may read it

Id = Annotated[str, Form(PCI_ID.pattern, "a PCI id", 'four hex digits, as in "15b3"')]
Text = Annotated[str, Form("(?s).+", "text that is not empty", "remove it")]
Report = Callable[[str], None]
Hints = Mapping[str, str]
Ignored = list[tuple[Mark, str, str]]  # position, path and a hint


def pruned(
    node: Node, wanted: Any, place: Place, ignored: Ignored, elsewhere: Hints, only: Collection[str] = ()
) -> Node:
    """The value with only those keys, at any depth, that the plugin reads into the type ``wanted``; null is
    as a missing key. The others are added to ``ignored``.

    ``elsewhere`` has hints for keys that occur in files although the plugin ignores them. Of the value itself
    it reads ``only`` these keys; all if empty.
    """
    wanted = without_annotation(wanted)
    if wanted == Raw:
        return node
    if isinstance(node, Scalar) and node.kind == "int" and ":" in node.text:  # Go has no numbers of base 60
        return dataclasses.replace(node, kind="str")
    if isinstance(node, Items):
        inner = next((one for one in typing.get_args(wanted) if one is not Ellipsis), None)
        items = (pruned(one, inner, place.item(n), ignored, elsewhere) for n, one in enumerate(node.items))
        return Items(node.mark, tuple(items))
    cls = next((one for one in members(wanted) if dataclasses.is_dataclass(one)), None)
    if not isinstance(node, Fields) or not isinstance(cls, type):
        return node
    names = {key.lower(): (key, one) for key, (_, one) in keys(cls).items() if not only or key in only}
    found = Fields(node.mark)
    for key, entry in node.entries.items():
        known = names.get(key.lower())
        if isinstance(entry.value, Scalar) and entry.value.kind == "null":
            continue
        if known is None:
            hint = elsewhere.get(key) or suggest(key, [one for one, _ in names.values()], "keys")
            ignored.append((entry.mark, place.key(key).path, hint))
        else:
            value = pruned(entry.value, known[1], place.key(key), ignored, elsewhere)
            found.entries[known[0]] = Entry(entry.mark, value)
    return found


def without_annotation(wanted: Any) -> Any:
    return typing.get_args(wanted)[0] if typing.get_origin(wanted) is Annotated else wanted


def pci_id(value: str) -> str:
    """A vendor or device id in the kernel's notation: four lower-case hex digits."""
    return value.lower().removeprefix("0x").rjust(4, "0") if PCI_ID.fullmatch(value) else value


def odd_ids(values: Iterable[str], path: str, right: Callable[[str], str] = pci_id) -> Iterator[str]:
    """Remarks on ids that never match for a plugin that compares exactly, but match in devhost."""
    for one in dict.fromkeys(values):
        if (known := right(one)) != one:
            what = f'never matches for the plugin; devhost takes it as "{known}"'
            yield one_line(f"{path}: {shown(one)} {what}")
