"""Bytes → a tree of nodes that know their place in the file.

YAML is read as a stream of events, never as objects: no tag makes anything but text, lists and
mappings, and nesting, aliases and size are bounded while the tree grows. What YAML 1.1 would take a plain
scalar for (``no`` is a boolean, ``0403`` an octal number) is kept beside its text, so that the reader of a
value can refuse it with a hint instead of guessing.
"""

from __future__ import annotations

import os
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import yaml

from devhost.backend.files import read_named, refuse_special
from devhost.backend.frozen import frozen

from .diagnostics import WHOLE_FILE, Diagnostics, KeyPath, Mark, shown

MERGE: Final = "merge"
"""The kind of a plain ``<<``."""


@frozen(slots=True)
class Scalar:
    """A single value: its text, and the ``kind`` YAML 1.1 takes it for.

    ``kind`` is ``str``, ``int``, ``float``, ``bool``, ``null``, ``timestamp`` or ``merge`` (``<<``).
    """

    mark: Mark
    text: str
    kind: str

    def __str__(self) -> str:
        if self.kind == "str":
            return f"the text {shown(self.text)}"
        if self.kind == "null":
            return "an empty value"
        if self.kind == "bool" and self.text.lower() not in ("true", "false"):
            return f"{self.text}, which YAML reads as true or false"
        what = {"bool": "the value", "timestamp": "the date", MERGE: "the merge key"}.get(
            self.kind, "the number"
        )
        return f"{what} {shown(self.text)[1:-1]}"


@frozen(slots=True)
class Items:
    """A list."""

    mark: Mark
    items: tuple[Node, ...]

    def __str__(self) -> str:
        return "a list" if self.items else "an empty list"


class Entry(NamedTuple):
    """A key of a mapping, its position, and its value."""

    mark: Mark
    value: Node


@frozen(slots=True)
class Fields:
    """A mapping; keys are text, each one once."""

    mark: Mark
    entries: dict[str, Entry] = field(default_factory=dict)

    def __str__(self) -> str:
        return "a mapping" if self.entries else "an empty mapping"


Node = Scalar | Items | Fields


IN_QUOTES: Final = "put it in quotes"
"""What the hint for a key begins with that YAML reads as something else than text."""

MAX_BYTES = 1 << 20
"""A ConfigMap cannot hold more than 1 MiB either."""

PIPE_DEADLINE = 10.0
"""Seconds to wait for data if the file is a pipe, as in ``devhost check <(generate)``."""

MAX_NODES = 100_000
"""Nodes of a document with every alias written out."""

MAX_DEPTH = 64
"""Nesting of a document with every alias written out."""


T = TypeVar("T")


class _Events(Protocol):
    """The part of a PyYAML loader that is used: its events and its rule for plain scalars."""

    def check_event(self, *kinds: type[yaml.Event]) -> bool: ...
    def peek_event(self) -> Any: ...
    def get_event(self) -> Any: ...
    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str: ...
    def dispose(self) -> None: ...


Parser = Callable[[str], _Events]

# libyaml is an option of PyYAML, and some twenty times faster
PARSER: Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TOO_DEEP = f"it nests deeper than {MAX_DEPTH} levels"
_STANDARD = "tag:yaml.org,2002:"
_NOT_YAML = re.compile("[\0-\x08\v\f\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_TAGS = frozenset({"str", "int", "float", "bool", "null", "map", "seq"})


def read_file(
    path: Path,
    diagnostics: Diagnostics,
    *,
    if_missing: str = "check the path",
    pipe_deadline: float = PIPE_DEADLINE,
) -> bytes:
    """The bytes of a file, at most :data:`MAX_BYTES` and one more.

    ``if_missing`` is the hint for a file that does not exist. It waits ``pipe_deadline`` seconds for data if
    the file is a pipe. Raises ``ConfigError`` if the file cannot be read.
    """
    try:
        return read_named(path, MAX_BYTES + 1, patience=pipe_deadline)
    except FileNotFoundError:
        diagnostics.fail(WHOLE_FILE, "there is no such file", if_missing)
    except IsADirectoryError:
        diagnostics.fail(WHOLE_FILE, "this is a directory", "name the YAML file in it")
    except PermissionError:
        diagnostics.fail(WHOLE_FILE, "it cannot be read: permission denied", "check its mode and owner")
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        diagnostics.fail(WHOLE_FILE, f"it cannot be read: {text}", "name the YAML file")


def read_standard_input(diagnostics: Diagnostics) -> bytes:
    """The same of standard input, for which it waits as long as it takes, unless it never ends."""
    try:
        refuse_special(os.fstat(0))
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    except OSError as error:
        diagnostics.fail(WHOLE_FILE, f"it cannot be read: {error.strerror}", "name the YAML file")


def parse(
    data: bytes,
    diagnostics: Diagnostics,
    *,
    if_empty: str = "it needs at least version: 1 and resources: []",
    parser: Parser = PARSER,
) -> Node:
    """The one document in ``data``. What is merely wrong is noted in ``diagnostics``.

    ``if_empty`` is the hint for a file without anything in it, ``parser`` a loader class of PyYAML. Raises
    ``ConfigError`` if it is not YAML, or not YAML that may be trusted to fit in memory.
    """
    return _parsed(data, diagnostics, if_empty, lambda builder: builder.document(), parser)


def parse_all(data: bytes, diagnostics: Diagnostics, *, if_empty: str) -> list[Node]:
    """Every document in ``data``, of which there is at least one, as :func:`parse` reads one."""
    return _parsed(data, diagnostics, if_empty, lambda builder: builder.documents())


def _parsed(
    data: bytes,
    diagnostics: Diagnostics,
    if_empty: str,
    read: Callable[[_Builder], T],
    parser: Parser = PARSER,
) -> T:
    text = _decode(data, diagnostics, if_empty)
    loader = parser(text)
    try:
        return read(_Builder(loader, diagnostics))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "it is not valid YAML"
        if error.context_mark and "quoted scalar" in (error.context or "") and "unexpected" in problem:
            mark, problem = error.context_mark, "the quote that begins here has no end"
        if "nesting" in problem:  # libyaml 0.2.6 has its own limit, and reads ahead of the events
            problem = _TOO_DEEP
        hint = _hint_for(problem, text, mark, error.context_mark)
        diagnostics.fail(_mark(mark) if mark else WHOLE_FILE, problem, hint)
    finally:
        loader.dispose()


def _decode(data: bytes, diagnostics: Diagnostics, if_empty: str) -> str:
    if len(data) > MAX_BYTES:
        diagnostics.fail(WHOLE_FILE, f"it is larger than {MAX_BYTES >> 20} MiB")
    if b"\0" in data:
        before = data[: data.index(b"\0")].decode(errors="replace")
        diagnostics.fail(_position(before), "this is not text: it has a zero byte", "is it the right file?")
    data = data.removeprefix(BOM_UTF8)  # the codec utf-8-sig takes longer to import
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode(errors="replace")
        diagnostics.fail(_position(before), "this is not UTF-8 text", "save the file as UTF-8")
    if odd := _NOT_YAML.search(text):
        place = _position(text[: odd.start()])
        diagnostics.fail(place, f"YAML does not allow the character {shown(odd[0])}")
    if not text.strip():
        diagnostics.fail(WHOLE_FILE, "it is empty", if_empty)
    return text


def _position(before: str) -> Mark:
    lines = before.split("\n")
    return Mark(len(lines), len(lines[-1]) + 1)


def _mark(mark: yaml.Mark) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


_ODD_SPACE = re.compile("[\xa0\u2000-\u200b\u202f\u3000]")
"""Spaces that look like one and are none for YAML: copied from a web page."""
_NO_SPACE = re.compile(r"\s*(?:- +)*(?:(-)[A-Za-z]|[A-Za-z]+(:)[^\s:/])")
"""A line whose dash or colon needs a space behind it, so that YAML takes the whole line for a text."""


def _hint_for(problem: str, text: str, mark: yaml.Mark | None, begin: yaml.Mark | None) -> str:
    lines = re.split("\r\n|\r|\n", text)[: mark.line + 1 if mark else 0]
    if lines and lines[-1].startswith("%"):
        return "remove this line: the file needs no directive"
    for number in range(len(lines), 0, -1):
        if odd := _ODD_SPACE.search(lines[number - 1]):
            return f"line {number} has U+{ord(odd[0]):04X} in place of a space: type the space again"
    if "cannot start any token" in problem and mark is not None:
        line = lines[mark.line] if mark.line < len(lines) else ""
        if "\t" in line[: mark.column + 1]:
            return "indent with spaces: YAML does not allow tabs"
        return "put the value in quotes"
    for number in range(len(lines), max(0, len(lines) - 2), -1):
        if "mapping values are not allowed" in problem and (found := _NO_SPACE.match(lines[number - 1])):
            return f"put a space after the {found[1] or found[2]} in line {number}"
    if "mapping values are not allowed" in problem:
        return "check the indentation, and put a value that has a colon and a space in quotes"
    if "sequence entries are not allowed" in problem:
        return "begin the list in a new line"
    if "expected" in problem:
        above = f"from line {begin.line + 1} to here" if begin else "here and in the lines above"
        return f"check the indentation, brackets and quotes {above}"
    return ""


class _Grown(NamedTuple):
    """A finished node, the nodes in it with aliases written out, and how deep they nest."""

    node: Node
    size: int
    height: int


class _Builder:
    def __init__(self, loader: _Events, diagnostics: Diagnostics) -> None:
        self._loader = loader
        self._diagnostics = diagnostics
        self._anchors: dict[str, _Grown | None] = {}
        self._size = 0

    def document(self) -> Node:
        self._start("it needs version: 1 and resources: []")
        root = self._one()
        if not self._loader.check_event(yaml.StreamEndEvent):
            mark = _mark(self._loader.peek_event().start_mark)
            self._diagnostics.fail(mark, "a second document starts here", "a configuration is one document")
        return root

    def documents(self) -> list[Node]:
        self._start("is it the right file?")
        found = []
        while not self._loader.check_event(yaml.StreamEndEvent):
            found.append(self._one())
        return found

    def _start(self, if_empty: str) -> None:
        self._loader.get_event()  # StreamStartEvent
        if self._loader.check_event(yaml.StreamEndEvent):
            self._diagnostics.fail(WHOLE_FILE, "it has only comments", if_empty)

    def _one(self) -> Node:
        self._loader.get_event()  # DocumentStartEvent
        self._anchors.clear()  # an anchor holds within its document (YAML 1.2.2, section 7.1)
        root = self._node(1).node
        self._loader.get_event()  # DocumentEndEvent
        return root

    def _node(self, depth: int) -> _Grown:
        event = self._loader.get_event()
        mark = _mark(event.start_mark)
        if depth > MAX_DEPTH:
            self._diagnostics.fail(mark, _TOO_DEEP)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), mark, depth)
        self._grow(1, mark)
        before = self._size
        if event.anchor:
            self._anchors[event.anchor] = None
        height = 1
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            node = Scalar(mark, event.value, self._kind(event, mark))
        elif isinstance(event, yaml.SequenceStartEvent):
            self._kind(event, mark)
            grown = list(self._until(yaml.SequenceEndEvent, depth))
            node = Items(mark, tuple(one.node for one in grown))
            height += max((one.height for one in grown), default=0)
        else:
            self._kind(event, mark)
            grown = list(self._until(yaml.MappingEndEvent, depth))
            node = self._mapping(mark, [one.node for one in grown])
            height += max((one.height for one in grown), default=0)
        done = _Grown(node, self._size - before + 1, height)
        if event.anchor:
            self._anchors[event.anchor] = done
        return done

    def _until(self, end: type[yaml.Event], depth: int) -> Iterator[_Grown]:
        while not self._loader.check_event(end):
            yield self._node(depth + 1)
        self._loader.get_event()

    def _alias(self, anchor: str, mark: Mark, depth: int) -> _Grown:
        if anchor not in self._anchors:
            self._diagnostics.fail(
                mark, f"the alias *{anchor} has no anchor", f"put &{anchor} before its value"
            )
        target = self._anchors[anchor]
        if target is None:
            self._diagnostics.fail(mark, f"the alias *{anchor} contains itself")
        self._grow(target.size, mark)
        if depth + target.height > MAX_DEPTH + 1:
            self._diagnostics.fail(mark, _TOO_DEEP)
        return target

    def _grow(self, nodes: int, mark: Mark) -> None:
        self._size += nodes
        if self._size > MAX_NODES:
            self._diagnostics.fail(mark, f"it has more than {MAX_NODES} values with all aliases written out")

    def _kind(self, event: Any, mark: Mark) -> str:
        tag: str | None = event.tag
        if tag is None or tag == "!":
            if not isinstance(event, yaml.ScalarEvent):
                return ""
            implicit = event.implicit if tag is None else (False, True)
            kind = self._loader.resolve(yaml.ScalarNode, event.value, implicit).removeprefix(_STANDARD)
            return "str" if kind == "value" else kind  # `=` had a meaning that nothing implements
        kind = tag.removeprefix(_STANDARD)
        if not tag.startswith(_STANDARD) or kind not in _TAGS:
            written = tag.replace(_STANDARD, "!!", 1)
            self._diagnostics.add(mark, "", f"the tag {shown(written)} is not allowed", "write a plain value")
            return "str"
        return kind

    def _mapping(self, mark: Mark, flat: list[Node]) -> Fields:
        fields = Fields(mark)
        merged: list[Node] = []
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            if not isinstance(key, Scalar):
                self._diagnostics.add(key.mark, "", f"a key must be text, not {key}")
            elif key.kind == MERGE:
                merged.append(value)
            elif key.text in fields.entries:
                first = fields.entries[key.text].mark.line
                message = f"the key {shown(key.text)} appears twice, first in line {first}"
                self._diagnostics.add(key.mark, "", message, "keep one of the two")
            else:
                if key.kind != "str":
                    hint = f"{IN_QUOTES}: {shown(key.text)}"
                    self._diagnostics.add(key.mark, "", f"a key must be text, not {key}", hint)
                fields.entries[key.text] = Entry(key.mark, value)
        for value in merged:
            self._merge(fields, value)
        return fields

    def _merge(self, into: Fields, value: Node) -> None:
        """Fills in what ``<<: *defaults`` or ``<<: [*a, *b]`` brings; keys already there win."""
        for source in value.items if isinstance(value, Items) else (value,):
            if isinstance(source, Fields):
                for key, entry in source.entries.items():
                    into.entries.setdefault(key, entry)
            else:
                KeyPath(self._diagnostics, "<<").report(source, f"must be a mapping to merge, not {source}")


_KEYS = ("kind", "apiVersion", "data", "config")
"""Keys of Kubernetes objects and of a chart's values, none of which a configuration has."""


def refuse_other_file(root: Node, diagnostics: Diagnostics) -> None:
    """Refuses what is no mapping, a Kubernetes object, and values of the chart."""
    if not isinstance(root, Fields):
        diagnostics.fail(
            root.mark, f"must be a mapping, not {root}", "a configuration begins with `version: 1`"
        )
    entries = root.entries
    found = [key for key in _KEYS if key in entries]
    if not found or "resources" in entries:
        return
    kind = entries["kind"].value if "kind" in entries else None
    name = kind.text if isinstance(kind, Scalar) else "ConfigMap" if "data" in found else "object"
    data = entries["data"].value if "data" in entries else None
    keys = [*data.entries] if isinstance(data, Fields) else []
    what = f"a Kubernetes {name}"
    if found == ["config"]:
        what, keys = "a file of values for the chart", found
    if len(keys) == 1:
        hint = f"keep only the text of its key {shown(keys[0])}, without the indentation"
    elif keys:
        hint = f"keep only the text of one of its keys, without the indentation: {', '.join(keys[:8])}"
    else:
        hint = "a configuration begins with `version: 1`"
    mark = entries[found[0]].mark
    diagnostics.fail(mark, f"this is {what}, not a configuration of devhost", hint)
