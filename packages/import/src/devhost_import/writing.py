"""Writes a devhost.yaml from entries and remarks: differences at the top, other remarks at their entries."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from devhost.backend import Attribute, where
from devhost.config.diagnostics import Diagnostics, KeyPath, one_line
from devhost.config.document import parse
from devhost.config.language import naming
from devhost.config.reader import read_where

from .source import Source

Written = str | int | bool | Sequence["Written"] | Mapping[str, "Written"]
Block = Mapping[str, Written]  # one block of where
Group = Mapping[str, Written]  # a group of the udev backend

_WIDTH = 110
_PLAIN = re.compile(r"(?!(?i:true|false|yes|no|on|off|null|y|n)\Z)[/A-Za-z][A-Za-z0-9_./-]*")


@dataclass(slots=True)
class Entry:
    """An entry under ``resources``. Without a ``name`` it has only remarks, on something that was omitted.
    ``keys`` are those after ``where``, in order. ``groups`` are those that ``where`` names."""

    name: str = ""
    backend: str = ""
    where: Sequence[Block] = ()
    keys: Mapping[str, Written] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    groups: Sequence[Group] = ()


_ATTRIBUTES = {  # how backends compare what importers write, other ids in lower case
    "*": Attribute(str, "", ""),
    "isRdma": Attribute(bool, "", True),
    "pKey": Attribute(str, "", "0x8001", hex=True),
    **dict.fromkeys(("acpiIndex", "index", "sfNum", "vfIndex"), Attribute(int, "", 0)),
}


def document(
    source: Source, peer: str, differs: list[str], found: list[Entry], gpu: Written = (), labels: Written = ()
) -> str:
    """The whole file, with the remarks on the input at the head. ``differs`` are the differences between the
    plugin and devhost, without a full stop. ``gpu`` are options of that backend."""
    kept = [*_kept(found)]
    groups = [group for entry in kept for group in entry.groups]
    parts = [group.get(key, ()) for group in groups for key in ("members", "usb")]
    if any("shared" in one for part in parts for one in _mappings(part)):
        what = "a node in several of these resources serves each of them: `shared: true`."
        source.note(f"As with {peer}, {what} Remove it if only one pod at a time may have the node.")
    lines = [f"# Converted from a configuration of {peer}. Differences:"]
    for n, one in enumerate(differs, 1):
        lines += _comment(one + ("." if n == len(differs) else ";"), "# - ")
    for note in source.remarks():
        lines += _comment(note, "# ")
    lines += ["version: 1", ""]
    if options := given(gpu=gpu, udev=given(groups=groups)):
        lines += ["backends:", *_nested(options, "  ", is_open=True), ""]
    if labels:
        lines += [f"labels: {flow(labels)}", ""]
    lines.append("resources:" if any(entry.name for entry in kept) else "resources: []")
    return "\n".join([*lines, *(line for entry in kept for line in _entry(entry)), ""])


def flow(value: Written) -> str:
    """A value in YAML's flow style, which YAML reads back unchanged; what does not print is escaped."""
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return json.dumps(value, ensure_ascii=not value.isprintable()).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{flow(key)}: {flow(one)}' for key, one in value.items())}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(flow, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def given(**values: Written) -> dict[str, Written]:
    return {key: value for key, value in values.items() if value}


def refused(node: str) -> str:
    """Why devhost refuses a pattern for paths of device nodes; empty if it does not."""
    found, paths = Diagnostics(""), {"path": Attribute(str, "", "/dev/null", begins="/dev/")}
    read_where(parse(flow({"path": node}).encode(), found), "", paths, KeyPath(found))
    return found.found[0][2].replace("this attribute", "devNode") if found.found else ""


def replicas(number: int) -> dict[str, Written]:
    return {"share": {"replicas": number}} if number > 1 else {}


def several(values: Sequence[Written]) -> Written:
    return values[0] if len(values) == 1 else list(values)


def _kept(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The entries. One that could never get a device is replaced by its remarks and the reason."""
    names: set[str] = set()
    above: dict[str, where.Covering[Entry]] = {}  # by backend
    for entry in entries:
        if not entry.name:
            yield entry
            continue
        node, aside = parse(flow(entry.where).encode(), Diagnostics("")), KeyPath(Diagnostics(""))
        blocks = read_where(node, entry.backend, _ATTRIBUTES, aside) or (where.Block(),)
        earlier = above.setdefault(entry.backend, where.Covering())
        takers = [_taker(earlier, entry, block) for block in blocks]
        is_offered = entry.name in names and not naming.fields(entry.name)
        if is_offered or all(takers):
            why = "is already offered above"
            if others := [name for name in dict.fromkeys(takers) if name and name != entry.name]:
                why = f"gets no device: {' and '.join(others)} takes all of them first"
            yield Entry(remarks=[*entry.remarks, f"{entry.name} {why}: omitted."])
            continue
        names.add(entry.name)
        for block in blocks:
            earlier.add(block, entry)
        yield entry


def _taker(above: where.Covering[Entry], later: Entry, block: where.Block) -> str:
    """The name of an earlier entry that takes all that ``block`` of ``later`` selects, or empty text."""
    named = {*naming.fields(later.name), *(term.attribute for term in block.terms)}
    for earlier in above.owners(block):
        both_share = earlier.keys.get("exclusive") is False and later.keys.get("exclusive") is False
        if not both_share and named.issuperset(naming.fields(earlier.name)):
            return earlier.name
    return ""


def _comment(remark: str, first: str) -> list[str]:
    further = first.partition("#")[0] + "#   "
    words = textwrap.TextWrapper(_WIDTH, first, further, break_long_words=False, break_on_hyphens=False)
    return words.wrap(one_line(remark, 2000))


def _nested(values: Mapping[str, Written], indent: str, *, is_open: bool = False) -> Iterator[str]:
    """A mapping in YAML's block style; values that fit into a line are in flow style unless ``is_open``."""
    for key, value in values.items():
        line = f"{indent}{flow(key)}:"
        if isinstance(value, Mapping) and (is_open or len(f"{line} {flow(value)}") > _WIDTH):
            yield from (line, *_nested(value, f"{indent}  "))
        elif mappings := _mappings(value):
            yield line
            for one in mappings:
                whole = f"{indent}  - {flow(one)}"
                if len(whole) > _WIDTH or any(map(_mappings, one.values())):
                    first, *more = _nested(one, f"{indent}    ")
                    yield from (f"{indent}  - {first.strip()}", *more)
                else:
                    yield whole
        else:
            yield f"{line} {flow(value)}"


def _mappings(value: Written) -> list[Mapping[str, Written]]:
    members = () if isinstance(value, (str, int, Mapping)) else value
    return [one for one in members if isinstance(one, Mapping)]


def _entry(entry: Entry) -> Iterator[str]:
    for remark in entry.remarks:
        yield from _comment(remark, "  # ")
    if entry.name:
        yield from (f"  - name: {flow(entry.name)}", f"    backend: {entry.backend}")
        if len(entry.where) > 1:
            yield from ("    where:", *(f"      - {flow(block)}" for block in entry.where))
        else:
            yield from (f"    where: {flow(block)}" for block in entry.where)
        yield from (f"    {key}: {flow(value)}" for key, value in entry.keys.items())
